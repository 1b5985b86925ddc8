"""The process that compiles: its job, its result, and what is left when somebody is killed."""

import os
import signal
import subprocess
import tempfile
import textwrap
from pathlib import Path

import pytest
import torch

from abele import ExecutableCache, StepConfig, get_target
from abele.compile import executable, jobs, worker
from abele.compile.cache import CacheWarning
from abele.compile.executable import Executable
from abele.compile.jobs import Job, Result
from abele.compile.later import Failure, Running
from abele.compile.worker_process import FromWorker
from abele.errors import CorruptExecutable, ForeignExecutable, SerializationError
from abele.program import users_operator
from helpers.models import MODELS
from helpers.processes import alive, eventually
from helpers.runs import captured, rule_for
from helpers.warm_python import python

SOURCE = Path(__file__).parents[3] / "src"
REFERENCE = get_target("reference")


def job_of(cache=None, model="dense"):
    """A job that needs no compiler: its programs are to be interpreted."""
    module, config = MODELS[model].fresh(), StepConfig()
    programs = captured(module, MODELS[model].batch(), config, rule_for(module)).programs
    lowerings = {program.name: "interpreter" for program in programs}
    parts = executable.key_parts(programs, config, REFERENCE, lowerings)
    cache = None if cache is None else str(cache)
    return Job(programs=programs, parts=parts, target=REFERENCE, cache=cache, threads=1)


@pytest.fixture
def done(monkeypatch):
    """What a process that compiles leaves, as a function of a folder and a job."""
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", tempfile.gettempdir())
    monkeypatch.setattr("tempfile.tempdir", tempfile.tempdir)

    def do(folder, job):
        jobs.write(folder, job)
        worker.do(folder)
        return jobs.read_result(folder)

    return do


def stored(folder, job):
    return ExecutableCache(folder).load(job.programs, job.parts, job.target)


# -- the job -------------------------------------------------------------------------------


def test_a_job_is_read_as_it_was_written(tmp_path):
    job = job_of("somewhere")
    jobs.write(tmp_path, job)
    result = jobs.read(tmp_path)
    assert [p.text() for p in result.programs] == [p.text() for p in job.programs]
    assert (result.parts, result.target, result.cache) == (job.parts, job.target, job.cache)
    assert result.threads == 1


def test_a_damaged_job_is_refused(tmp_path):
    jobs.write(tmp_path, job_of())
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CorruptExecutable):
        jobs.read(tmp_path)


def test_a_program_that_has_become_another_one_is_refused(tmp_path):
    job = job_of()
    job.parts["programs"]["step"] = "another one"
    jobs.write(tmp_path, job)
    with pytest.raises(SerializationError, match="'step' was read as another one"):
        jobs.read(tmp_path)


def test_a_process_that_sees_another_machine_refuses(tmp_path):
    job = job_of()
    job.parts["target"]["torch"] = "1.0"
    jobs.write(tmp_path, job)
    with pytest.raises(ForeignExecutable, match=r"another machine: torch: 1\.0 there"):
        jobs.read(tmp_path)


def test_operators_of_the_user_are_named():
    @torch.library.custom_op("abele_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    twice.register_fake(torch.empty_like)
    module = torch.nn.Identity()
    module.forward = lambda x: torch.ops.abele_tests.twice(x)
    programs = captured(module, [torch.ones(2)], StepConfig(training=False)).programs
    assert users_operator(programs[0]) == "abele_tests.twice.default"
    assert users_operator(job_of().programs[0]) is None


# -- the result ----------------------------------------------------------------------------


def test_the_executable_goes_into_the_cache(done, tmp_path):
    job = job_of(tmp_path / "cache")
    result = done(tmp_path, job)
    assert result.folder == str(tmp_path / "cache")
    assert stored(result.folder, job).key == executable.key_of(job.parts)


def test_without_a_cache_it_goes_into_the_folder_of_the_job(done, tmp_path):
    job = job_of()
    result = done(tmp_path, job)
    assert result.folder == str(tmp_path)
    assert stored(tmp_path, job) is not None


def test_what_another_process_has_stored_is_not_compiled_again(done, tmp_path):
    job = job_of(tmp_path / "cache")
    assert done(tmp_path, job).seconds > 0
    assert done(tmp_path, job) == Result(folder=job.cache)


def test_a_cache_that_cannot_be_written_costs_a_warning(done, tmp_path):
    (tmp_path / "cache").write_text("no folder")
    job = job_of(tmp_path / "cache")
    result = done(tmp_path, job)
    assert result.folder == str(tmp_path)
    assert "could not be cached" in result.warnings[0]


def test_temporary_files_lie_in_the_folder_of_the_job(done, tmp_path):
    done(tmp_path, job_of())
    assert tempfile.gettempdir() == os.environ["TMPDIR"] == str(tmp_path)


def test_an_error_is_told(done, tmp_path, monkeypatch):
    monkeypatch.setattr(type(REFERENCE), "cannot_compile", lambda *_: "it is full")
    result = done(tmp_path, job_of())
    assert result.problem == "Target 'reference' cannot compile: it is full (TargetError)"


def test_a_process_that_said_nothing_has_no_result(tmp_path):
    assert jobs.read_result(tmp_path) is None


# -- the process ---------------------------------------------------------------------------


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Starts processes; their folders lie under ``tmp_path / "temporary"``."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    begun = []

    def start(job):
        begun.append(FromWorker(job, Running(), None, lambda text: None))
        return begun[-1]

    yield start
    for each in begun:
        each.close()
    assert not list(folder.glob("abele-*-*")), "a folder was left behind"


def test_programs_are_there_when_the_process_has_ended(begin, tmp_path):
    (tmp_path / "cache").write_text("no folder")
    later = begin(job_of(tmp_path / "cache"))
    assert later.look() is None
    with pytest.warns(CacheWarning, match="could not be cached"):
        made = later.wait()
    assert isinstance(made, Executable)
    assert later.look() is made
    assert not alive(later.process)


def test_a_killed_process_is_a_failure(begin):
    later = begin(job_of())
    os.kill(later.process, signal.SIGKILL)
    assert later.wait() == Failure("the process that compiled was ended by SIGKILL")


def test_a_closed_one_ends_its_process(begin):
    later = begin(job_of())
    later.close()
    assert not alive(later.process)
    assert later.look() == Failure("the model was closed while its programs were compiled")


def test_a_forked_process_neither_waits_nor_ends_it(begin):
    later = begin(job_of())
    child = os.fork()
    if child == 0:
        later._end()
        os._exit(0 if later.look() is None and isinstance(later.wait(), Failure) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert alive(later.process)


def test_a_process_ends_with_the_one_that_started_it(tmp_path):
    """Killed, while a forked child keeps the lifeline open."""
    program = textwrap.dedent("""
        import os, sys, time
        sys.path[:0] = sys.argv[1:3]
        from test_worker import job_of
        from abele.compile.later import Running
        from abele.compile.worker_process import FromWorker
        later = FromWorker(job_of(), Running(), None, print)
        child = os.fork()
        if child == 0:
            time.sleep(120)
            os._exit(0)
        os.kill(later.process, 19)  # stopped, so that it cannot be done before
        print(later.process, child, flush=True)
        time.sleep(120)
    """)
    places = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    command = [python(), "-c", program, *places]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        process, child = map(int, parent.stdout.readline().split())
        parent.kill()
        parent.wait()
        try:
            os.kill(process, signal.SIGCONT)
            assert eventually(lambda: not alive(process))
        finally:
            os.kill(child, signal.SIGKILL)
    assert len(list(tmp_path.glob("abele-*"))) == 1  # the next process to come deletes it
