"""Programs that a process with torch of its own compiles (``worker``).

It is a program of its own and no fork: threads and locks of this process stay here.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from abele.compile import jobs
from abele.compile.cache import CacheWarning, ExecutableCache
from abele.compile.executable import Executable
from abele.compile.jobs import Job
from abele.compile.later import Announce, Failure, Running
from abele.compile.process import FromProcess
from abele.warn import warn_user

#: Processor time that the other process takes until it begins, in seconds.
LOADING_S = 2.0
# Python's own search path is passed on: the package need not be installed.
_PROGRAM = """
import json, os, sys
os.nice(19)  # before torch is loaded, which takes longer than compiling a small program
sys.path[:] = json.loads(sys.argv[1])
from abele.compile.worker import main
main(*sys.argv[2:])
"""


class FromWorker(FromProcess):
    """Programs that another process lowers and compiles.

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
        super().__init__(running, at, announce)
        self._job = job
        self._begin()

    def _command(self, folder: Path) -> list[str]:
        jobs.write(folder, self._job)
        path = json.dumps([os.path.abspath(each) for each in sys.path])
        # Isolated: neither the caller's folder nor its variables for Python decide what it is.
        return [sys.executable, "-I", "-c", _PROGRAM, path]

    def _read(self, folder: Path) -> Executable | Failure | None:
        result, job = jobs.read_result(folder), self._job
        if result is None:
            return None
        for text in result.warnings:
            warn_user(text, CacheWarning)
        if result.folder is None:
            return Failure(result.problem or "no reason was given", result.log)
        self.running.compile_s = result.seconds
        made = ExecutableCache(result.folder).load(job.programs, job.parts, job.target)
        return made or Failure(f"the executable in {result.folder} could not be read")
