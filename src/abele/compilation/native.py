"""Program of the process that runs native compilers, and that ends with its parent process.

It is run by its path and imports only the standard library, so it starts in a few hundredths of a
second. A process that loads torch takes seconds of processor time from the steps.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

COMMANDS, RESULTS = "commands.json", "results.json"
# Keys of both files: kernels compiled once per machine, and the code of programs.
ONCE, PROGRAMS = "once", "programs"
# Seconds until all processors may compile kernels; before, steps keep one processor.
ALL_AFTER_S = "all_after_s"
_RESULT = "{result}"  # in a command that makes a file: the path of that file
_SET_DEATH_SIGNAL = 1  # of prctl(2)


def main(folder: str, parent: str) -> None:
    """Run the compile commands in a folder for a parent process, and write the results.

    Each result has the command's exit status, its output and its processor time in seconds. Of what
    is made once per machine, only the first failure counts, and ends it all. The file appears
    complete or not at all.
    """
    step_back(_runnable())
    end_with(int(parent))
    os.environ["TMPDIR"] = folder  # where compilers keep files that nobody else may delete
    path = Path(folder)
    commands = json.loads((path / COMMANDS).read_text(encoding="utf-8"))
    failure = _made(commands[ONCE], path, commands[ALL_AFTER_S])
    programs = [] if failure is not None else [_result_of(each) for each in commands[PROGRAMS]]
    results = {ONCE: failure, PROGRAMS: programs}
    partial = path / f"{RESULTS}.partial"
    partial.write_text(json.dumps(results), encoding="utf-8")
    os.replace(partial, path / RESULTS)


def step_back(runnable: int) -> None:
    """Lower this process's priority, so that training steps get processors first.

    Threads that wait for each other lose most where one of them cannot go on at once. Linux lets
    them if the compiler is idle work, and hardly if it only has the lowest priority. Where others
    keep the machine busy, its priority stays: beside four busy processes on two processors, 3 s of
    compiling took 12 s like that, 32 s with a niceness of 1, and idle work would never get on.

    Args:
        runnable: number of runnable threads of the machine, this one and the steps' included.
    """
    if runnable > (os.cpu_count() or 1) + 1:
        return
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)


def _runnable() -> int:
    """Return the number of runnable threads of the machine; 0 where the system is not Linux."""
    try:
        return int(Path("/proc/loadavg").read_text(encoding="utf-8").split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return 0


def _made(
    stages: list[list[tuple[list[str], str]]], folder: Path, all_after_s: float = 0.0
) -> dict[str, Any] | None:
    """Run the compile commands of each stage, several in parallel; return the first failure.

    With two compilers on two processors, steps take a quarter longer than with one. So one
    processor is left to the steps until these pause for long.

    Returns:
        The first failure, if there is one.
    """
    if not any(stages):
        return None
    from concurrent.futures import ThreadPoolExecutor  # takes a while, and is seldom needed

    processors = _processors()
    turns = threading.Semaphore(max(1, processors - 1))
    more = threading.Timer(all_after_s, turns.release)
    more.daemon = True

    def one(making: tuple[list[str], str]) -> dict[str, Any]:
        with turns:
            return _made_one(*making, folder)

    more.start()
    try:
        with ThreadPoolExecutor(processors) as pool:
            for stage in stages:
                for result in pool.map(one, stage):
                    if result["code"] != 0:
                        pool.shutdown(wait=False, cancel_futures=True)
                        return result
    finally:
        more.cancel()
    return None


def _processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _made_one(command: list[str], path: str, folder: Path) -> dict[str, Any]:
    """Compile a file atomically unless it exists already."""
    if os.path.isfile(path):
        return {"code": 0}
    made = folder / os.path.basename(path)
    result = _result_of([str(made) if part == _RESULT else part for part in command])
    if result["code"] == 0 and not made.is_file():
        return {**result, "code": 1}
    if result["code"] == 0:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        partial = f"{path}.{os.getpid()}.partial"  # beside it: folders may lie on several disks
        shutil.copyfile(made, partial)
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    return result


def _result_of(command: list[str]) -> dict[str, Any]:
    began = _children_s()
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="backslashreplace", check=False
        )
    except OSError as error:
        return {"code": 127, "log": f"{command[0]}: {error.strerror}", "cpu_s": 0.0}
    log = f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return {"code": done.returncode, "log": log, "cpu_s": _children_s() - began}


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def end_with(parent: int) -> None:
    """End this process and the compilers it has started as soon as its parent has ended.

    The other end of standard input is closed then. A fork of ``parent`` may keep it open, so this
    also requests a signal from Linux, which is sent even if only the starting thread has ended.
    """

    def end(*_: object) -> None:
        if os.getppid() != parent:
            os.killpg(0, signal.SIGKILL)

    def watch(lifeline: int) -> None:
        while os.read(lifeline, 1):
            pass
        os.killpg(0, signal.SIGKILL)

    lifeline, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    threading.Thread(target=watch, args=(lifeline,), daemon=True).start()
    signal.signal(signal.SIGUSR1, end)
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, int(signal.SIGUSR1), 0, 0, 0)
    end()


if __name__ == "__main__":
    main(*sys.argv[1:])
