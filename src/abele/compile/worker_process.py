"""Starting the process that compiles, and asking what has become of it.

It is a program of its own and no fork: threads and locks of this process stay here. Its folder is
named after this process, so that one that is left by a killed process is deleted by the next.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path

from abele.compile import jobs
from abele.compile.cache import CacheWarning, ExecutableCache
from abele.compile.executable import Executable
from abele.compile.jobs import Job
from abele.compile.later import Announce, Failure, Later, Running
from abele.storage import temporary
from abele.warn import warn_user

_LOOK_EVERY_S = 0.05
_LOADING_S = 2.0  # processor time that the other process takes until it begins
# Of the time in which this process computes, so much is left to the other one, in pieces of at
# least so many seconds: between threads that wait for each other all the time another process gets
# next to nothing, or else holds all of them up at each of their meetings.
_SHARE, _SHARE_OF_ONE_CORE, _PIECE_S = 0.15, 0.3, 0.01
_LOG, _LOG_BYTES = "worker.log", 2000
# Python's own search path is passed on: the package need not be installed.
_PROGRAM = """
import json, os, sys
os.nice(19)  # before torch is loaded, which takes longer than compiling a small program
sys.path[:] = json.loads(sys.argv[1])
from abele.compile.worker import main
main(*sys.argv[2:])
"""


def wall_s(cpu_s: float) -> float:
    """How long another process compiles beside steps, in seconds.

    Args:
        cpu_s: processor time that compiling takes.
    """
    return (_LOADING_S + cpu_s) / _share()


def _share() -> float:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return _SHARE if cores is None or cores > 1 else _SHARE_OF_ONE_CORE


class FromWorker(Later):
    """Programs that another process compiles.

    Args:
        job: what it compiles.
        running: see ``Later``.
        at: see ``Later``.
        announce: see ``Later``.

    Raises:
        SerializationError: a program that cannot be stored; names the operation.
        OSError: the process cannot be started, or no temporary file be written.
    """

    def __init__(self, job: Job, running: Running, at: int | None, announce: Announce):
        self.running, self.at, self.announce = running, at, announce
        temporary.sweep()
        self._folder = Path(tempfile.mkdtemp(prefix=temporary.prefix()))
        try:
            jobs.write(self._folder, job)
            self._process = _started(self._folder)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._job, self._owner, self._look_at = job, os.getpid(), 0.0
        self._share, self._computed_s = _share(), time.thread_time()
        self._outcome: Executable | Failure | None = None
        self._end = weakref.finalize(self, _end, self._process, self._folder, self._owner)

    @property
    def process(self) -> int:
        """Number of the process, which leads the group of the compilers it starts."""
        return self._process.pid

    def look(self) -> Executable | Failure | None:
        """What has become of them; looks twenty times a second, and not in a forked process."""
        if self._outcome is None:
            now = time.monotonic()
            if now < self._look_at or os.getpid() != self._owner:
                return None
            self._look_at = now + _LOOK_EVERY_S
            if self._process.poll() is None:
                self._leave_it_a_share()
                return None
            self._outcome = self._collected()
        return self._outcome

    def _leave_it_a_share(self) -> None:
        """Sleeps, so that the cores are the other one's; not where this one has slept anyway."""
        computed = time.thread_time() - self._computed_s
        pause = computed * self._share / (1 - self._share)
        if pause >= _PIECE_S:
            time.sleep(min(pause, 1.0))
            self._computed_s = time.thread_time()

    def wait(self) -> Executable | Failure:
        """The same, once the process has ended."""
        if self._outcome is None:
            if os.getpid() != self._owner:
                return Failure("a forked process does not wait for the compiler of another")
            self._process.wait()
            self._outcome = self._collected()
        return self._outcome

    def close(self) -> None:
        """Ends the process."""
        self._end()
        if self._outcome is None:
            self._outcome = Failure("the model was closed while its programs were compiled")

    def _collected(self) -> Executable | Failure:
        try:
            return self._read()
        finally:
            self._end()

    def _read(self) -> Executable | Failure:
        result, job = jobs.read_result(self._folder), self._job
        if result is None:
            code = self._process.returncode
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"returned {code}"
            return Failure(f"the process that compiled {how}", self._said())
        for text in result.warnings:
            warn_user(text, CacheWarning)
        if result.folder is None:
            return Failure(result.problem or "no reason was given", result.log)
        self.running.compile_s = result.seconds
        made = ExecutableCache(result.folder).load(job.programs, job.parts, job.target)
        if made is None:
            return Failure(f"the executable in {result.folder} could not be read")
        return made

    def _said(self) -> str:
        with contextlib.suppress(OSError):
            return (self._folder / _LOG).read_text(errors="replace")[-_LOG_BYTES:]
        return ""


def _started(folder: Path) -> subprocess.Popen[bytes]:
    path = json.dumps([os.path.abspath(each) for each in sys.path])
    with open(folder / _LOG, "wb") as log:
        return subprocess.Popen(
            # Isolated: neither the caller's folder nor its variables for Python decide what it is.
            [sys.executable, "-I", "-c", _PROGRAM, path, str(folder), str(os.getpid())],
            stdin=subprocess.PIPE,  # closed when this process ends, however it ends
            stdout=log,
            stderr=log,
            process_group=0,  # interrupts of a terminal are for this process
        )


def _end(process: subprocess.Popen[bytes], folder: Path, owner: int) -> None:
    """Ends a worker with its compilers and deletes its folder."""
    if os.getpid() != owner:
        return  # a forked process, which has nothing to end
    if process.poll() is None or process.returncode < 0:  # its compilers may outlive it
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    shutil.rmtree(folder, ignore_errors=True)
