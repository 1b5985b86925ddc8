"""Programs that this process writes, and a compiler beside it makes code of.

Where all that takes long is a native compiler, nothing else has to be another process: that one
(``native``) loads no torch, which would take as much of a processor as compiling.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from abele import frames, garbage, passes
from abele.compile import estimates, native, shares
from abele.compile.cache import ExecutableCache
from abele.compile.compiling import compile_programs, lowered_by, needed_once
from abele.compile.executable import Executable, lowerings_of
from abele.compile.jobs import Job
from abele.compile.later import Announce, Failure, Running
from abele.compile.measuring import Way
from abele.compile.process import FromProcess, failure_of
from abele.errors import CompilerError
from abele.kernels.build import ADVICE
from abele.program import Program
from abele.targets.base import Written


class FromCompiler(FromProcess):
    """Programs whose lowerings ``write`` them, so that another process has but to compile.

    They are written after the first step, which does not wait for that, unless it is said when they
    have to be there.

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
        """The same, once the compiler has ended."""
        self._write()
        return super().wait()

    def _write(self) -> None:
        """Writes the programs and starts the compiler, once."""
        self._first = False
        if self._process is not None or self._outcome is not None or os.getpid() != self._owner:
            return
        self._began = time.monotonic()
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 - whatever it is, steps go on as they are
            self._outcome = failure_of(error)

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
        (folder / native.COMMANDS).write_text(json.dumps(commands))
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
            results = json.loads((folder / native.RESULTS).read_text())
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
            ExecutableCache(job.cache).store(made)
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
        self._source.write_text(self._written.text)
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
