"""Programs that this process writes: the compiler beside it, its failures, and kills."""

import dataclasses
import functools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent import futures
from pathlib import Path

import filelock
import pytest

from abele import ExecutableCache, StepConfig, get_target
from abele.compilation import compiler_process, estimates, keys, native
from abele.compilation.compiler_process import FromCompiler
from abele.compilation.compiling import Lowered
from abele.compilation.executable import Executable, Failure, Running
from abele.kernels.build import RESULT, Making
from abele.storage import temporary
from abele.targets import Compiled
from abele.targets.base import Source
from abele.targets.reference import Interpreter, Reference
from helpers.models import MODELS
from helpers.processes import alive, eventually
from helpers.runs import captured, rule_for
from helpers.warm_python import python

SOURCE = Path(__file__).parents[3] / "src"
COPIES = ["cp"]  # stands for a compiler: the code is the text
SLEEPS = ["sleep", "1000"]


class Writing(Interpreter):
    """Writes a text that its "compiler" copies, and interprets."""

    compiles = True

    def __init__(self, command):
        self._compiler = command

    def source(self, program):
        def command(source, result):
            return [*COPIES, source, result] if self._compiler == COPIES else self._compiler

        return Source("the text", command, functools.partial(self.load, program))

    def load(self, program, payload):
        assert payload == b"the text"
        return Compiled(Interpreter().compile(program).run, payload)


class Target(Reference):
    """One lowering, or several that are measured."""

    def __init__(self, *commands):
        self.lowerings = tuple(Writing(command) for command in commands)
        for number, lowering in enumerate(self.lowerings):
            lowering.name = f"writing{number}"


def job_of(*commands, cache=None):
    module, config, target = MODELS["dense"].fresh(), StepConfig(), Target(*commands)
    programs = captured(module, MODELS["dense"].batch(), config, rule_for(module)).programs
    names = [lowering.name for lowering in target.lowerings]
    lowerings = {program.name: names if len(names) > 1 else names[0] for program in programs}
    parts = keys.key_parts(programs, config, target, lowerings)
    config = StepConfig(processes=2)  # these processes step together
    return Lowered(
        programs=programs, parts=parts, target=target, config=config, cache=cache, stored=None
    )


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Starts compilers; their folders lie under ``tmp_path / "temporary"``."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr(estimates, "note", lambda *_: None)
    begun = []

    def start(job, at=None):
        begun.append(FromCompiler(job, Running(), at, lambda text: None))
        return begun[-1]

    yield start
    for each in begun:
        each.close()
    left = [each for each in folder.glob("abele-*-*") if not each.match("abele-locks-*")]
    assert not left, "a folder was left behind"


def test_the_first_step_does_not_wait_until_programs_are_written(begin, tmp_path):
    later = begin(job_of(SLEEPS))
    assert later.look() is None
    assert not list((tmp_path / "temporary").iterdir())
    assert later.look() is None
    assert alive(later.process)


@pytest.mark.parametrize(("processors", "at_once"), [(2, 1), (3, 2)])
def test_programs_are_compiled_in_turn_where_processors_are_few(
    begin, monkeypatch, processors, at_once
):
    monkeypatch.setattr(compiler_process, "_compiling", [])
    monkeypatch.setattr(compiler_process.processor, "cores", lambda: processors)
    every = [begin(job_of(SLEEPS)) for _ in range(3)]
    for later in every * 2:
        later.look()
    assert [each._process is not None for each in every] == [n < at_once for n in range(3)]
    os.killpg(every[0].process, signal.SIGKILL)
    every[0]._process.wait()
    every[-1].look()
    assert alive(every[-1].process)


def test_where_it_is_said_when_they_take_over_they_are_written_at_once(begin):
    assert alive(begin(job_of(SLEEPS), at=7).process)


def test_programs_are_there_when_the_compiler_has_ended(begin, tmp_path):
    job = job_of(COPIES, cache=ExecutableCache(tmp_path / "cache"))
    later = begin(job)
    made = later.wait()
    assert isinstance(made, Executable)
    assert later.look() is made
    assert later.running.compile_s > 0
    assert job.cache.has(keys.key_of(job.parts))
    assert made.compiled["step"].payload == b"the text"


class Unprepared(Target):
    """Has a file to make once per machine, by a command."""

    def __init__(self, path, command):
        super().__init__(COPIES)
        self._path, self._command = path, command

    def setup_seconds_left(self, needed=None):
        return 0.0 if self._path.exists() else 4.0

    def preparing(self, needed=None):
        assert needed == frozenset()
        return [[Making(self._command, str(self._path))]]


def test_both_sides_mark_the_file_of_a_command_alike():
    assert native._RESULT == RESULT  # that process imports nothing of abele


def test_what_is_made_once_per_machine_is_made_before(begin, tmp_path):
    target = Unprepared(tmp_path / "new" / "kernel.o", ["touch", RESULT])
    job = dataclasses.replace(job_of(COPIES), target=target)
    assert isinstance(begin(job).wait(), Executable)
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["kernel.o"]


def test_nothing_is_compiled_for_a_program_whose_kernels_cannot_be_made(begin, tmp_path):
    target = Unprepared(tmp_path / "kernel.o", [sys.executable, "-c", "exit('not this one')"])
    failure = begin(dataclasses.replace(job_of(COPIES), target=target)).wait()
    assert isinstance(failure, Failure)
    assert "abele's kernels could not be compiled. Set CXX to another" in failure.problem
    assert "not this one" in failure.log


def test_a_look_finds_them_too(begin):
    later = begin(job_of(COPIES))
    assert eventually(lambda: isinstance(later.look(), Executable))


@pytest.mark.parametrize(
    "moment",
    [
        "abele.compilation.compiler_process.lowered_by",
        "abele.compilation.compiler_process._started",
        "abele.compilation.compiler_process.compile_programs",
    ],
)
def test_who_interrupts_a_step_gets_the_programs_later(moment, begin, monkeypatch):
    later = begin(job_of(COPIES))
    later.look()

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(moment, interrupted)
        with pytest.raises(KeyboardInterrupt):
            later.wait()
    assert isinstance(later.wait(), Executable)


def test_what_compiling_took_is_noted(begin, monkeypatch):
    noted = []
    monkeypatch.setattr(estimates, "note", lambda *what: noted.append(what))
    begin(job_of(COPIES)).wait()
    assert [(program.name, name) for program, name, _, _ in noted] == [("step", "writing0")]


def test_of_several_the_fastest_is_taken(begin):
    made = begin(job_of(COPIES, COPIES)).wait()
    assert made.chosen["step"].reason.startswith("measured: ")


def test_one_of_several_that_cannot_be_compiled_is_left_out(begin):
    made = begin(job_of(COPIES, ["false"])).wait()
    assert made.chosen["step"].name == "writing0"


def test_a_compiler_that_fails_is_a_failure_with_its_output(begin):
    outcome = begin(job_of(["cat", "nowhere"])).wait()
    assert outcome.problem.startswith("Program 'step' could not be compiled: the C++ compiler")
    assert "nowhere: No such file" in outcome.log


def test_a_compiler_that_does_not_exist_is_a_failure(begin):
    assert "no-such: No such file" in begin(job_of(["no-such"])).wait().log


def test_a_program_that_cannot_be_written_is_a_failure(begin, monkeypatch):
    def refuse(self, program):
        raise ZeroDivisionError("it divides")

    monkeypatch.setattr(Writing, "source", refuse)
    later = begin(job_of(COPIES))
    outcome = later.wait()
    assert outcome == later.look()
    said = (
        r"'step'.*'writing0' failed with ZeroDivisionError: it divides\. .* `abele doctor --json`"
    )
    assert re.search(said, outcome.problem)
    assert outcome.log.endswith("ZeroDivisionError: it divides\n")


def test_a_killed_process_is_a_failure_and_its_compiler_ends(begin, tmp_path):
    later = begin(job_of(["sh", "-c", f"echo $$ > {tmp_path}/compiler; sleep 1000"]), at=7)
    assert eventually((tmp_path / "compiler").exists)
    os.kill(later.process, signal.SIGKILL)
    assert later.wait() == Failure("the process that compiled was ended by SIGKILL")
    assert eventually(lambda: not alive(int((tmp_path / "compiler").read_text())))


def test_a_closed_one_ends_its_process(begin):
    later = begin(job_of(SLEEPS), at=7)
    later.close()
    assert not alive(later.process)
    assert later.look() == Failure("the model was closed while its programs were compiled")


def test_one_that_was_closed_before_it_began_begins_nothing(begin, tmp_path):
    later = begin(job_of(SLEEPS))
    later.close()
    assert isinstance(later.wait(), Failure)
    assert not list((tmp_path / "temporary").iterdir())


def test_a_forked_process_neither_waits_nor_begins(begin):
    later = begin(job_of(SLEEPS))
    child = os.fork()
    if child == 0:
        alone = later.look() is None and later.look() is None and isinstance(later.wait(), Failure)
        os._exit(0 if alone else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_compiler_ends_with_the_process_that_wants_its_code(tmp_path):
    """Killed, while a forked child keeps the lifeline open."""
    program = textwrap.dedent("""
        import os, sys, time
        sys.path[:0] = sys.argv[1:3]
        from test_compiler_process import job_of
        from abele.compilation.compiler_process import FromCompiler
        from abele.compilation.executable import Running
        command = ["sh", "-c", f"echo $$ > {sys.argv[3]}/compiler; exec sleep 120"]
        later = FromCompiler(job_of(command), Running(), 7, print)
        child = os.fork()
        if child == 0:
            time.sleep(120)
            os._exit(0)
        print(later.process, child, flush=True)
        time.sleep(120)
    """)
    places = [str(Path(__file__).parent), str(Path(__file__).parents[2]), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TMPDIR": str(tmp_path)}
    command = [python(), "-c", program, *places]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        process, child = map(int, parent.stdout.readline().split())
        assert eventually(lambda: (tmp_path / "compiler").exists() and compiler_in(tmp_path))
        parent.kill()
        parent.wait()
        try:
            assert eventually(lambda: not alive(process))
            assert eventually(lambda: not alive(compiler_in(tmp_path)))
        finally:
            os.kill(child, signal.SIGKILL)
    assert len(list(tmp_path.glob("abele-*"))) == 1  # the next process to come deletes it


def compiler_in(folder):
    return int((folder / "compiler").read_text() or 0)


# -- the process ---------------------------------------------------------------------------


def test_the_process_imports_the_standard_library_alone():
    text = f"import runpy, sys; runpy.run_path({native.__file__!r}); print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert {"torch", "abele", "numpy"}.isdisjoint(done.stdout.split())


@pytest.mark.parametrize(("runnable", "policy"), [(1, "SCHED_IDLE"), (1000, "SCHED_OTHER")])
@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux only")
def test_a_compiler_is_idle_work_unless_others_keep_the_machine_busy(runnable, policy):
    program = (
        f"import os, runpy; runpy.run_path({native.__file__!r})['step_back']({runnable}); "
        "print(os.sched_getscheduler(0), os.nice(0))"
    )
    command = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    kind, nice = map(int, done.stdout.split())
    assert kind == getattr(os, policy)
    assert nice == os.nice(0)  # beside four busy processes, one more takes three times as long


# -- who compiles --------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path):
    return ExecutableCache(tmp_path / "cache")


def looked(later):
    assert later.look() is None  # the first look waits for the first step
    return later.look()


def test_of_processes_that_step_together_one_compiles_and_the_others_load(begin, cache):
    first, second = (begin(job_of(COPIES, cache=cache)) for _ in range(2))
    looked(first)
    assert looked(second) is None
    assert second._process is None
    assert isinstance(first.wait(), Executable)
    assert eventually(lambda: isinstance(second.look(), Executable))
    assert (second._process, second.running.compile_s) == (None, 0.0)


def test_one_that_waits_does_so_until_the_other_has_compiled(begin, cache):
    first, second = (begin(job_of(COPIES, cache=cache)) for _ in range(2))
    looked(first)
    waiting = threading.Thread(target=second.wait)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    first.wait()
    waiting.join()
    assert isinstance(second.look(), Executable)
    assert second._process is None


def test_another_thread_may_take_the_programs(begin, cache):
    first, second = (begin(job_of(COPIES, cache=cache)) for _ in range(2))
    with futures.ThreadPoolExecutor(1) as pool:  # whose thread stays meanwhile
        pool.submit(looked, first).result()
        assert isinstance(first.wait(), Executable)
        assert eventually(lambda: isinstance(second.look(), Executable))


@pytest.mark.parametrize("end", [FromCompiler.close, FromCompiler.wait], ids=["closed", "failed"])
def test_another_process_compiles_what_the_first_has_not(begin, cache, end):
    first = begin(job_of(["false"], cache=cache))
    second = begin(dataclasses.replace(first._job, target=Target(COPIES)))
    looked(first)
    assert looked(second) is None
    end(first)
    assert isinstance(second.wait(), Executable)
    assert second.running.compile_s > 0


def test_another_process_compiles_where_the_first_was_killed(begin, cache):
    job = job_of(SLEEPS, cache=cache)  # builds of torch for CUDA do no backward in forked processes
    child = os.fork()
    if child == 0:
        later = FromCompiler(job, Running(), 7, print)
        later._end.detach()
        os.killpg(later.process, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert isinstance(begin(job_of(COPIES, cache=cache)).wait(), Executable)
    temporary.sweep()  # what the killed one has left


def test_processes_that_cannot_lock_compile_each(begin, cache, monkeypatch):
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    for _ in range(2):
        cache.path(keys.key_of(job_of(COPIES).parts)).unlink(missing_ok=True)
        assert isinstance(begin(job_of(COPIES, cache=cache)).wait(), Executable)


def test_the_emitter_writes_what_it_compiles():
    lowering = get_target("cpu").lowering("emitted")
    program = job_of(COPIES).programs[0]
    written = lowering.source(program)
    command = written.command("a.cpp", "a.so")
    assert "a.cpp" in command
    assert command[-1] == "a.so"
    assert "extern" in written.text
    assert json.dumps(command)


@pytest.mark.parametrize(("cores", "steps_s", "pause_s"), [(2, 1.0, 1 / 9), (1, 1.0, 3 / 7)])
def test_the_compiler_gets_a_small_share_of_a_short_run(begin, clock, cores, steps_s, pause_s):
    clock.cores(cores)
    later = clock.begun(begin, cpu_s=15.0)
    assert clock.paused(later, after_s=1.0, computed_s=steps_s) == pytest.approx(pause_s)


@pytest.mark.parametrize("cores", [1, 2])
def test_the_compiler_gets_half_of_a_run_that_goes_on(begin, clock, cores):
    clock.cores(cores)
    later = clock.begun(begin, cpu_s=15.0)
    assert clock.paused(later, after_s=90.1, computed_s=0.4) == pytest.approx(0.4)


@pytest.mark.parametrize("cores", [1, 2])
def test_a_compiler_that_is_quick_gets_nearly_all_for_as_long_as_it_should_need(
    begin, clock, cores
):
    clock.cores(cores)
    later = clock.begun(begin, cpu_s=4.0)
    first = 0.1 if cores > 1 else 0.3
    assert clock.paused(later, after_s=0.9, computed_s=1 - first) == pytest.approx(first)
    assert clock.paused(later, after_s=0.2, computed_s=0.05) == pytest.approx(0.95)
    assert clock.paused(later, after_s=0.2, computed_s=1.0) == pytest.approx(5.0)  # then a step
    assert clock.paused(later, after_s=20.0, computed_s=0.4) == pytest.approx(0.4)


def test_a_pause_ends_with_the_process(begin, monkeypatch):
    later = begin(job_of(COPIES))
    later.look()
    later.look()
    monkeypatch.setattr(estimates, "share", lambda *_, **__: 0.999)
    later._computed_s -= 1000.0  # as if steps had computed for so long: a pause of 500 s is due
    assert eventually(lambda: later.look() is not None)


def test_where_nobody_knows_how_long_it_takes_the_share_stays_small(begin, clock):
    clock.cores(2)
    later = clock.begun(begin, cpu_s=None)
    assert clock.paused(later, after_s=1000.0, computed_s=0.9) == pytest.approx(0.1)


def test_what_steps_wait_for_while_programs_are_written_counts_as_a_pause(begin, clock):
    clock.cores(2)
    later = clock.begun(begin, cpu_s=None, written_s=0.15)
    assert clock.paused(later, after_s=1.0, computed_s=0.9) == 0  # 0.1 s of it
    assert clock.paused(later, after_s=1.0, computed_s=0.9) == pytest.approx(0.05)
    assert clock.paused(later, after_s=1.0, computed_s=0.9) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("cores", "cpu_s", "seconds"),
    [
        (1, 20.0, 20 / 0.3),
        (2, 20.0, 80 + (20 - 8) / 0.5),
        (1, 4.0, 1 + (4 - 0.3) / 0.95),
        (2, 4.0, 1 + (4 - 0.1) / 0.95),
    ],
)
def test_what_is_expected_follows_from_the_shares(clock, cores, cpu_s, seconds):
    clock.cores(cores)
    assert estimates.wall_s(cpu_s) == pytest.approx(seconds)


@pytest.mark.parametrize(("cores", "seconds"), [(1, 1 + 0.7 / 0.5), (2, 1 + 0.9 / 0.5)])
def test_what_is_compiled_once_per_machine_gets_more_sooner(begin, clock, cores, seconds):
    clock.cores(cores)
    assert estimates.wall_s(1.0, once=True) == pytest.approx(seconds)
    later = clock.begun(begin, cpu_s=10.0, once=True)
    first = 0.1 if cores > 1 else 0.3
    assert clock.paused(later, after_s=9.0, computed_s=1 - first) == pytest.approx(first)
    assert clock.paused(later, after_s=2.0, computed_s=0.5) == pytest.approx(0.5)


class Clock:
    """Stands for the clocks and the pauses of a process."""

    def __init__(self, monkeypatch):
        self._monkeypatch, self._wait = monkeypatch, subprocess.Popen.wait
        self.now, self.computed, self.pauses = 100.0, 50.0, []
        monkeypatch.setattr(compiler_process.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(compiler_process.time, "thread_time", lambda: self.computed)
        waits = lambda process, timeout=None: self._waited(process, timeout)  # noqa: E731
        monkeypatch.setattr(subprocess.Popen, "wait", waits)

    def _waited(self, process, timeout):
        if timeout is None:
            return self._wait(process)
        self.pauses.append(timeout)
        raise subprocess.TimeoutExpired("compiler", timeout)

    def cores(self, count):
        self._monkeypatch.setattr(estimates.os, "sched_getaffinity", lambda _: range(count))

    def begun(self, begin, cpu_s, written_s=0.0, *, once=False):
        later = begin(job_of(SLEEPS))
        command = later._command

        def written(folder):
            self.computed += written_s
            return command(folder)

        self._monkeypatch.setattr(later, "_command", written)
        later.running.once, later.running.processor_s = once, cpu_s
        later.look()
        later.look()
        return later

    def paused(self, later, after_s, computed_s):
        """How long a look pauses then."""
        self.now += after_s
        self.computed += computed_s
        self.pauses.clear()
        later.look()
        (pause,) = self.pauses
        return pause


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)
