"""Compilation of programs in another process, while this one runs steps.

The other process (``native``) runs the C++ compiler and loads no torch, which would take as much of
a processor as compiling. Of processes that step together with one cache, one has its compiler run
and the others load the executable from the cache. The other process's folder is named after this
process, so that a folder left by a killed process is deleted by the next one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import filelock

from abele import cpython, passes, processor
from abele.compilation import estimates, native
from abele.compilation.cache import ExecutableCache
from abele.compilation.compiling import (
    Lowered,
    Way,
    blamed,
    compile_programs,
    exchanges,
    lowered_by,
    needed_once,
)
from abele.compilation.executable import Announce, Executable, Failure, Later, Running, lowerings_of
from abele.compilation.keys import key_of
from abele.errors import CompilerError
from abele.kernels.build import advice
from abele.program import Program
from abele.storage import temporary
from abele.targets.base import Source

_LOOK_EVERY_S = 0.05
# The shortest and the longest pause for the compiler process, in seconds.
_PIECE_S, _LONGEST_S = 0.01, 5.0
_LOG, _LOG_BYTES = "worker.log", 2000
# The compiler processes of this process that may still run.
_compiling = list[subprocess.Popen[bytes]]()


def _leaves_no_processor() -> bool:
    """Return whether another compiler process would take the last processor of the steps."""
    _compiling[:] = [each for each in _compiling if each.poll() is None]
    return bool(_compiling) and len(_compiling) + 1 >= processor.cores()


class FromCompiler(Later):
    """Programs that are compiled by a background process.

    They are written after the first step, which does not wait for that, unless it is said when they
    have to be there. Where a process that steps with this one compiles them for the same cache,
    this one loads its executable instead.
    """

    def __init__(self, job: Lowered, running: Running, at: int | None, announce: Announce):
        self.running, self.at, self.announce = running, at, announce
        self._job, self._first = job, at is None
        self._files: list[_File] = []
        self._owner, self._look_at = os.getpid(), 0.0
        self._computed_s, self._started = 0.0, 0.0
        self._left_s = 0.0  # of this process's time for the other one, ahead of its share
        self._process: subprocess.Popen[bytes] | None = None
        self._outcome: Executable | Failure | None = None
        self._end = lambda: None
        # Not for processes that step alone: one that pauses would keep the others waiting.
        self._cache: ExecutableCache | None = None
        if isinstance(job.cache, ExecutableCache) and exchanges(job.config):
            self._cache = job.cache
        self._lock = None if self._cache is None else self._cache.lock(key_of(job.parts))
        if at is not None:
            self._write()

    @property
    def process(self) -> int:
        """ID of the compiling process and of its process group, which has its compilers."""
        assert self._process is not None
        return self._process.pid

    def look(self) -> Executable | Failure | None:
        """Return the compiled programs or their failure, None while they are compiled.

        The second call writes the programs. Looks at the process twenty times a second, and not in
        a forked process.
        """
        if self._first:
            self._first = False
            return None
        self._write()
        now = time.monotonic()
        if self._outcome is None and self._process is not None and now >= self._look_at:
            if os.getpid() != self._owner:
                return None
            self._look_at = now + _LOOK_EVERY_S
            if self._process.poll() is None:
                self._leave_it_a_share(self._process)
            else:
                self._outcome = self._collected(self._process)
        return self._outcome

    def wait(self) -> Executable | Failure:
        """Return the compiled programs once this or another process's compiler has ended."""
        self._write(block=True)
        if self._outcome is None:
            if os.getpid() != self._owner:
                return Failure("a forked process does not wait for the compiler of another")
            assert self._process is not None
            self._process.wait()
            self._outcome = self._collected(self._process)
        return self._outcome

    def close(self) -> None:
        """End the compiler process and let another process compile instead."""
        self._end()
        if self._outcome is None:
            self._outcome = Failure("the model was closed while its programs were compiled")
        self._release()

    # -- starting ------------------------------------------------------------------------------

    def _write(self, *, block: bool = False) -> None:
        """Write the programs' source and start the compiler, once per cache.

        A function of two shapes has two programs to compile, which take turns.

        Args:
            block: do so at once, and wait for a process that compiles for the same cache.
        """
        self._first = False
        if self._process is not None or self._outcome is not None or os.getpid() != self._owner:
            return
        if not block and _leaves_no_processor():
            return
        try:
            if self._has_turn(block=block) and self._outcome is None:
                self._began = time.monotonic()
                self._begin()
        except Exception as error:  # noqa: BLE001 - whatever it is, steps go on as they are
            self._outcome = _failure_of(error)
        if self._outcome is not None:
            self._release()

    def _has_turn(self, *, block: bool) -> bool:
        """Return whether this process has to compile; load an executable stored meanwhile."""
        cache, job = self._cache, self._job
        if cache is None or self._lock is None:
            return True
        try:
            self._lock.acquire(timeout=-1 if block else 0, poll_interval=0.1)
        except filelock.Timeout:
            return False
        except OSError:  # nowhere to lock: every process compiles for itself
            return True
        if cache.has(key_of(job.parts)):
            self._outcome = cache.load(job.programs, job.parts, job.target)
            self.running.compile_s = 0.0
        return True

    def _release(self) -> None:
        """Release the compile lock, so that another process may compile the programs."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._lock.release(force=True)

    def _begin(self) -> None:
        """Start the background compiler process.

        Raises:
            OSError: it cannot be started, or no temporary file be written.
        """
        folder = Path(temporary.made_folder())
        began = time.thread_time()
        try:
            process = _started(self._command(folder), folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._left_s = time.thread_time() - began
        _compiling.append(process)
        self._folder, self._process, self._computed_s = folder, process, time.thread_time()
        self._started = time.monotonic()
        self._end = weakref.finalize(self, _end, process, folder, self._owner)

    @cpython.with_room
    def _command(self, folder: Path) -> list[str]:
        """Write the programs into the compiler's folder; return the command that starts it."""
        job, files, running = self._job, list[_File](), self.running
        with cpython.uncollected(), passes.one_after_the_other():
            for program in job.programs:
                names = lowerings_of(job.parts, program.name)
                for name in (each for each in names if job.target.lowering(each).compiles):
                    with blamed(program, name):
                        lowered = lowered_by(job.target, program, name)
                        written = job.target.lowering(name).source(lowered)
                    files.append(_File(folder, len(files), name, lowered, written))
        needed, cpu_s = needed_once(job.target, job.programs, job.parts), running.processor_s
        commands = {
            native.ONCE: job.target.preparing(needed),
            # Until pauses are long, one processor is left to the steps.
            native.ALL_AFTER_S: (
                0.0 if cpu_s is None else estimates.long_s(cpu_s, once=running.once)
            ),
            native.PROGRAMS: [each.command() for each in files],
        }
        (folder / native.COMMANDS).write_text(json.dumps(commands), encoding="utf-8")
        self._files = files  # all of this folder, also where the user has interrupted it once
        # Isolated, and without packages: it is the standard library's alone.
        return [sys.executable, "-I", "-S", native.__file__]

    # -- waiting -------------------------------------------------------------------------------

    def _leave_it_a_share(self, process: subprocess.Popen[bytes]) -> None:
        """Pause the steps for the compiler's share of processor time.

        The time that writing the programs took counts as part of that: steps had to wait for it.
        """
        running, computed = self.running, time.thread_time() - self._computed_s
        passed_s = time.monotonic() - self._started
        share = estimates.share(passed_s, running.processor_s, once=running.once)
        pause = computed * share / (1 - share)
        if pause < _PIECE_S:
            return
        due, self._left_s = max(0.0, pause - self._left_s), max(0.0, self._left_s - pause)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(due, _LONGEST_S))
        self._computed_s = time.thread_time()

    def _collected(self, process: subprocess.Popen[bytes]) -> Executable | Failure:
        try:
            outcome = self._read(self._folder) or self._ended(process.returncode)
        except Exception as error:  # noqa: BLE001 - whatever it is, steps go on as they are
            outcome = _failure_of(error)
        self._end()  # not where the user has interrupted this: the next look reads it again
        self._release()
        return outcome

    def _read(self, folder: Path) -> Executable | None:
        """Load the code of the finished compiler process; None if it ended early."""
        try:
            results = json.loads((folder / native.RESULTS).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        job = self._job
        self.running.compile_s = time.monotonic() - self._began
        failed = results[native.ONCE]
        if failed is not None:
            problem = f"abele's kernels could not be compiled. {advice(failed['log'])}"
            raise CompilerError(problem, log=failed["log"])
        pairs = list(zip(self._files, results[native.PROGRAMS], strict=True))
        for file, result in pairs:
            if result["code"] == 0:
                machine = job.parts["target"]
                estimates.note(file.program, file.lowering, machine, result["cpu_s"])
        ready = {file.key: functools.partial(file.way, result) for file, result in pairs}
        made = compile_programs(job.target, job.programs, job.parts, ready=ready)
        if job.cache is not None:
            job.cache.store(made)
        return made

    def _ended(self, code: int) -> Failure:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"returned {code}"
        said = ""
        with contextlib.suppress(OSError):
            said = (self._folder / _LOG).read_text(encoding="utf-8", errors="replace")[-_LOG_BYTES:]
        return Failure(f"the process that compiled {how}", said)


def _failure_of(error: Exception) -> Failure:
    log = error.log if isinstance(error, CompilerError) else ""
    return Failure(f"{error} ({type(error).__name__})", log)


def _started(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with open(folder / _LOG, "wb") as log:
        return subprocess.Popen(
            [*command, str(folder), str(os.getpid())],
            stdin=subprocess.PIPE,  # closed when this process ends, however it ends
            stdout=log,
            stderr=log,
            process_group=0,  # interrupts of a terminal are for this process
        )


def _end(process: subprocess.Popen[bytes], folder: Path, owner: int) -> None:
    """End a compiler process with its compilers and delete its folder."""
    if os.getpid() != owner:
        return  # a forked process, which has nothing to end
    if process.poll() is None or process.returncode < 0:  # its compilers may outlive it
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    shutil.rmtree(folder, ignore_errors=True)


class _File:
    """The source file of a program, written by one lowering."""

    def __init__(self, folder: Path, number: int, lowering: str, program: Program, written: Source):
        self.key = program.name, lowering
        self.program, self.lowering, self._written = program, lowering, written
        self._source, self._code = folder / f"{number}.cpp", folder / f"{number}.so"

    def command(self) -> list[str]:
        """Write the source file; return the command that compiles it."""
        self._source.write_text(self._written.text, encoding="utf-8", errors="backslashreplace")
        return self._written.command(str(self._source), str(self._code))

    def way(self, result: dict[str, Any]) -> Way:
        """Return the program with its compiled code.

        Raises:
            CompilerError: the compiler failed.
        """
        if result["code"] != 0 or not self._code.is_file():
            problem = "failed" if result["code"] else "made no file"
            raise CompilerError(
                f"Program {self.program.name!r} could not be compiled: the C++ compiler {problem}. "
                f"{advice(result['log'])}",
                log=result["log"],
            )
        compiled = self._written.loaded(self._code.read_bytes())
        return Way(name=self.lowering, program=self.program, compiled=compiled)
