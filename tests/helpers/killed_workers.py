"""Kills a process that compiles, or the one that wants it, at a moment of its work.

``killed_workers.py CACHE TEMPORARY`` goes through ``MOMENTS`` for either victim and prints as JSON
what was left. Processes are forked, so that torch is loaded once; the compiler that the process
starts is a ``sleep``, and its programs are interpreted.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from abele import ExecutableCache, StepConfig, get_target
from abele.compile import executable, jobs, process, worker
from abele.compile.jobs import Job
from abele.compile.later import Running
from abele.compile.worker_process import FromWorker
from abele.storage import temporary
from helpers.models import MODELS
from helpers.runs import captured, rule_for

#: Moments by name: what the process that compiles calls then.
MOMENTS = {
    "before it reads": ("abele.compile.jobs", "read"),
    "holding the lock": ("abele.compile.worker", "_compiled"),
    "compiling": ("abele.compile.worker", "compile_programs"),
    "writing the executable": ("os", "fsync"),
    "before it is whole": ("os", "replace"),
    "before it says so": ("abele.compile.jobs", "write_result"),
    "saying so": ("abele.storage.atomic", "replacing"),
}
_WAIT_S = 20.0


def job_of(cache: Path) -> Job:
    """A job whose programs are to be interpreted."""
    module, config, target = MODELS["dense"].fresh(), StepConfig(), get_target("reference")
    programs = captured(module, MODELS["dense"].batch(), config, rule_for(module)).programs
    lowerings = {program.name: "interpreter" for program in programs}
    parts = executable.key_parts(programs, config, target, lowerings)
    return Job(programs=programs, parts=parts, target=target, cache=str(cache), threads=1)


class Forked:
    """As much of ``subprocess.Popen`` as ``FromWorker`` uses, for a function in a fork."""

    def __init__(self, function: Callable[[], None]):
        end, self._lifeline = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)
            os.close(self._lifeline)
            os.dup2(end, 0)
            with contextlib.suppress(BaseException):
                function()
            os._exit(0)
        os.close(end)
        self.stdin = os.fdopen(self._lifeline, "wb")

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def _at(moment: str, action: Callable[[], None]) -> None:
    """Has an action take place at a moment; a "compiler" runs from the first on."""
    module, name = MOMENTS[moment]
    holder: Any = importlib.import_module(module)
    plain = getattr(holder, name)

    def then(*given: Any, **named: Any) -> Any:
        action()
        return plain(*given, **named)

    setattr(holder, name, then)


def _kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    time.sleep(0.3)  # of the worker's, in which its parent's death has to reach it


def _wanting(cache: Path, moment: str, victim: str, told: int) -> None:
    """The process that wants compiled programs."""
    me = os.getpid()

    def work(folder: Path) -> None:
        compiler = subprocess.Popen(["sleep", "1000"])
        os.write(told, f"{os.getpid()} {compiler.pid} {folder}\n".encode())
        _at(moment, lambda: _kill(me if victim == "parent" else os.getpid()))
        worker.main(str(folder), str(me))

    patched: Any = process
    patched._started = lambda command, folder: Forked(lambda: work(folder))
    later = FromWorker(job_of(cache), Running(), None, lambda text: None)
    outcome = later.wait()
    os.write(told, f"{getattr(outcome, 'problem', 'compiled')}\n".encode())


def killed(cache: Path, moment: str, victim: str) -> dict[str, Any]:
    """What is left of one kill."""
    reading, told = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.close(reading)
        _wanting(cache, moment, victim, told)
        os._exit(0)
    os.close(told)
    os.waitpid(parent, 0)
    with os.fdopen(reading) as lines:  # ends when the last process has ended that could write
        said = lines.read().splitlines()
    process, compiler, folder = said[0].split(" ", 2)
    left = [name for name in (process, compiler) if not _gone(int(name))]
    job = job_of(cache)
    files = sorted(cache.glob("*.abele"))
    for path in files:
        executable.load(path, job.programs, job.parts, job.target)
    temporary.sweep()
    return {
        "orphans": left,
        "outcome": said[1:],
        "folder": os.path.exists(folder),
        "files": len(files),
        "next": _next(cache, job),
    }


def _gone(process: int) -> bool:
    """Waits until a process is gone; a zombie is, its new parent has yet to notice."""
    until = time.monotonic() + _WAIT_S
    while temporary.started(process) is not None:
        if time.monotonic() > until:
            os.kill(process, signal.SIGKILL)
            return False
        time.sleep(0.01)
    return True


def _next(cache: Path, job: Job) -> str:
    """What the next process finds that wants the same."""
    child = os.fork()
    if child == 0:
        folder = Path(tempfile.mkdtemp(prefix=temporary.prefix()))
        jobs.write(folder, job)
        worker.do(folder)
        result = jobs.read_result(folder)
        made = ExecutableCache(cache).load(job.programs, job.parts, job.target)
        os._exit(0 if result is not None and not result.problem and made is not None else 1)
    return "works" if os.waitpid(child, 0)[1] == 0 else "fails"


def main() -> None:
    """Kills at every moment, each in a cache of its own."""
    base, folder = Path(sys.argv[1]), sys.argv[2]
    tempfile.tempdir = folder
    results = {
        f"{victim} {moment}": killed(base / f"{victim} {moment}", moment, victim)
        for moment in MOMENTS
        for victim in ("worker", "parent")
    }
    temporary.sweep()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
