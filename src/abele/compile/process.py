"""Another process that compiles: starting it, leaving it processor time, ending it.

Its folder is named after this process, so that one that is left by a killed process is deleted by
the next.
"""

from __future__ import annotations

import abc
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from pathlib import Path

from abele.compile import shares
from abele.compile.executable import Executable
from abele.compile.later import Announce, Failure, Later, Running
from abele.errors import CompilerError
from abele.storage import temporary

_LOOK_EVERY_S = 0.05
# The shortest pause for the other process, and the longest, in seconds.
_PIECE_S, _LONGEST_S = 0.01, 5.0
_LOG, _LOG_BYTES = "worker.log", 2000


class FromProcess(Later):
    """Programs that another process compiles, with the compilers that it starts.

    Args:
        running: see ``Later``.
        at: see ``Later``.
        announce: see ``Later``.
    """

    def __init__(self, running: Running, at: int | None, announce: Announce):
        self.running, self.at, self.announce = running, at, announce
        self._owner, self._look_at = os.getpid(), 0.0
        self._computed_s, self._started = 0.0, 0.0
        self._left_s = 0.0  # of this process's time for the other one, ahead of its share
        self._process: subprocess.Popen[bytes] | None = None
        self._outcome: Executable | Failure | None = None
        self._end = lambda: None

    @abc.abstractmethod
    def _command(self, folder: Path) -> list[str]:
        """Writes what the process needs into its folder; returns how it is started."""

    @abc.abstractmethod
    def _read(self, folder: Path) -> Executable | Failure | None:
        """What the process has left in its folder; None if it did not come to its end."""

    def _begin(self) -> None:
        """Starts the process.

        Raises:
            OSError: it cannot be started, or no temporary file be written.
        """
        temporary.sweep()
        folder = Path(tempfile.mkdtemp(prefix=temporary.prefix()))
        began = time.thread_time()
        try:
            process = _started(self._command(folder), folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._left_s = time.thread_time() - began
        self._folder, self._process, self._computed_s = folder, process, time.thread_time()
        self._started = time.monotonic()
        self._end = weakref.finalize(self, _end, process, folder, self._owner)

    @property
    def process(self) -> int:
        """Number of the process, which leads the group of the compilers it starts."""
        assert self._process is not None
        return self._process.pid

    def look(self) -> Executable | Failure | None:
        """What has become of them; looks twenty times a second, and not in a forked process."""
        if self._outcome is None:
            now = time.monotonic()
            if now < self._look_at or os.getpid() != self._owner or self._process is None:
                return None
            self._look_at = now + _LOOK_EVERY_S
            if self._process.poll() is None:
                self._leave_it_a_share(self._process)
                return None
            self._outcome = self._collected(self._process)
        return self._outcome

    def _leave_it_a_share(self, process: subprocess.Popen[bytes]) -> None:
        """Pauses, so that the cores are the other one's; not where this one has slept anyway.

        What it took to write the programs counts as part of that: steps had to wait for it.
        """
        running, computed = self.running, time.thread_time() - self._computed_s
        passed_s = time.monotonic() - self._started
        share = shares.share(passed_s, running.processor_s, once=running.once)
        pause = computed * share / (1 - share)
        if pause < _PIECE_S:
            return
        due, self._left_s = max(0.0, pause - self._left_s), max(0.0, self._left_s - pause)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(due, _LONGEST_S))
        self._computed_s = time.thread_time()

    def wait(self) -> Executable | Failure:
        """The same, once the process has ended."""
        if self._outcome is None:
            if os.getpid() != self._owner:
                return Failure("a forked process does not wait for the compiler of another")
            assert self._process is not None
            self._process.wait()
            self._outcome = self._collected(self._process)
        return self._outcome

    def close(self) -> None:
        """Ends the process."""
        self._end()
        if self._outcome is None:
            self._outcome = Failure("the model was closed while its programs were compiled")

    def _collected(self, process: subprocess.Popen[bytes]) -> Executable | Failure:
        try:
            outcome = self._read(self._folder) or self._ended(process.returncode)
        except Exception as error:  # noqa: BLE001 - whatever it is, steps go on as they are
            outcome = failure_of(error)
        self._end()  # not where the user has interrupted this: the next look reads it again
        return outcome

    def _ended(self, code: int) -> Failure:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"returned {code}"
        said = ""
        with contextlib.suppress(OSError):
            said = (self._folder / _LOG).read_text(encoding="utf-8", errors="replace")[-_LOG_BYTES:]
        return Failure(f"the process that compiled {how}", said)


def failure_of(error: Exception) -> Failure:
    """What an error of compiled programs means for those who wait for them."""
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
