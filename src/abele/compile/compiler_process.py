"""Programs that this process writes and another process compiles.

The other process (``native``) runs the C++ compiler and loads no torch, which would take as much of
a processor as compiling. Of processes that step together with one cache, one has its compiler run
and the others load the executable from the cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import filelock

from abele import frames, garbage, passes
from abele.compile import estimates, native, shares
from abele.compile.cache import ExecutableCache
from abele.compile.compiling import compile_programs, lowered_by, needed_once
from abele.compile.executable import Executable, key_of, lowerings_of
from abele.compile.later import Announce, Failure, Running
from abele.compile.measuring import Way
from abele.compile.process import FromProcess, failure_of
from abele.errors import CompilerError
from abele.kernels.build import ADVICE
from abele.program import Program
from abele.targets import Target
from abele.targets.base import Written


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Programs to be compiled.

    Attributes:
        programs: before the passes of lowerings.
        parts: of the executable's key.
        target: the target that they are compiled for.
        cache: where the executable goes; None to keep it in this process.
        shared: processes that step together have the same job; with a cache one of them compiles.
    """

    programs: tuple[Program, ...]
    parts: Mapping[str, Any]
    target: Target
    cache: ExecutableCache | None
    shared: bool = False


class FromCompiler(FromProcess):
    """Programs that another process compiles.

    They are written after the first step, which does not wait for that, unless it is said when they
    have to be there. Where a process that steps with this one compiles them for the same cache,
    this one loads its executable instead.

    Args:
        job: what is compiled.
        running: see ``Later``.
        at: see ``Later``.
        announce: see ``Later``.
    """

    def __init__(self, job: Job, running: Running, at: int | None, announce: Announce):
        super().__init__(running, at, announce)
        self._job, self._first = job, at is None
        self._files: list[_File] = []
        # Not for processes that step alone: one that pauses would keep the others waiting.
        shared = job.cache if job.shared else None
        self._lock = None if shared is None else shared.lock(key_of(job.parts))
        if at is not None:
            self._write()

    def look(self) -> Executable | Failure | None:
        """What has become of them; the second look has them written."""
        if self._first:
            self._first = False
            return None
        self._write()
        return super().look()

    def wait(self) -> Executable | Failure:
        """Return the programs once the compiler, or another process's compiler, has ended."""
        self._write(block=True)
        return super().wait()

    def close(self) -> None:
        """End the compiler; another process may compile instead."""
        super().close()
        self._release()

    def _write(self, *, block: bool = False) -> None:
        """Write the programs and start the compiler, once, unless another process does so.

        Args:
            block: wait for that process.
        """
        self._first = False
        if self._process is not None or self._outcome is not None or os.getpid() != self._owner:
            return
        try:
            if self._has_turn(block=block) and self._outcome is None:
                self._began = time.monotonic()
                self._begin()
        except Exception as error:  # noqa: BLE001 - whatever it is, steps go on as they are
            self._outcome = failure_of(error)
        if self._outcome is not None:
            self._release()

    def _has_turn(self, *, block: bool) -> bool:
        """Return whether no other process compiles the programs; take what one has stored."""
        cache, job = self._job.cache, self._job
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
        """Let another process compile what this one has not."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._lock.release(force=True)

    def _collected(self, process: subprocess.Popen[bytes]) -> Executable | Failure:
        outcome = super()._collected(process)
        self._release()
        return outcome

    @frames.with_room
    def _command(self, folder: Path) -> list[str]:
        job, files = self._job, list[_File]()
        with garbage.uncollected(), passes.one_after_the_other():
            for program in job.programs:
                names = lowerings_of(job.parts, program.name)
                for name in (each for each in names if job.target.lowering(each).compiles):
                    lowered = lowered_by(job.target, program, name)
                    written = job.target.lowering(name).written(lowered)
                    files.append(_File(folder, len(files), name, lowered, written))
        needed = needed_once(job.target, job.programs, job.parts)
        commands = {
            native.ONCE: job.target.preparing(needed),
            native.ALL_AFTER_S: self._all_after_s(),
            native.PROGRAMS: [each.command() for each in files],
        }
        (folder / native.COMMANDS).write_text(json.dumps(commands), encoding="utf-8")
        self._files = files  # all of this folder, also where the user has interrupted it once
        # Isolated, and without packages: it is the standard library's alone.
        return [sys.executable, "-I", "-S", native.__file__]

    def _all_after_s(self) -> float:
        """When what is made once per machine may have all processors, in seconds."""
        running = self.running
        if running.processor_s is None:
            return 0.0
        return shares.long_s(running.processor_s, once=running.once)

    def _read(self, folder: Path) -> Executable | Failure | None:
        try:
            results = json.loads((folder / native.RESULTS).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        job = self._job
        self.running.compile_s = time.monotonic() - self._began
        failed = results[native.ONCE]
        if failed is not None:
            problem = f"abele's kernels could not be compiled. {ADVICE}"
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


class _File:
    """A program that was written in one way.

    Args:
        folder: where the file goes.
        number: of the file.
        lowering: name of the one that wrote it.
        program: after the passes of that one.
        written: what it wrote.
    """

    def __init__(
        self, folder: Path, number: int, lowering: str, program: Program, written: Written
    ):
        self.key = program.name, lowering
        self.program, self.lowering, self._written = program, lowering, written
        self._source, self._code = folder / f"{number}.cpp", folder / f"{number}.so"

    def command(self) -> list[str]:
        """Writes the file; returns what compiles it."""
        self._source.write_text(self._written.text, encoding="utf-8", errors="backslashreplace")
        return self._written.command(str(self._source), str(self._code))

    def way(self, result: dict[str, Any]) -> Way:
        """The program with the code that the compiler made.

        Raises:
            CompilerError: it made none.
        """
        if result["code"] != 0 or not self._code.is_file():
            what = "failed" if result["code"] else "made no file"
            raise CompilerError(
                f"Program {self.program.name!r} could not be compiled: the C++ compiler {what}. "
                f"{ADVICE}",
                log=result["log"],
            )
        compiled = self._written.loaded(self._code.read_bytes())
        return Way(name=self.lowering, program=self.program, compiled=compiled)
