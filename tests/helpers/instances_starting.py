"""A program of several instances whose steps are interpreted until each has compiled programs.

``instances_starting.py FOLDER WHAT`` keeps what an instance found in FOLDER. The processes that
compile are forked from this program, which has loaded torch. They "compile" for the interpreter,
which needs no compiler; with ``ABELE_TARGET=cpu`` they really do. WHAT is

late     instance 1's process is stopped until instance 0 has voted for the compiled programs
killed   instance 1's process is killed
plain    nothing happens
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import popdist
import popdist.poptorch
import poptorch
from abele.compile import process, tiers, worker
from abele.compile.worker_process import FromWorker
from abele.targets import get_target
from helpers.killed_workers import Forked
from helpers.wrapping import rows, scorer, sgd


def _pretend_to_compile() -> None:
    """Has the interpreter pass for a compiler, and for the target that abele would choose."""
    reference: Any = get_target("reference")
    reference.cacheable = True
    for lowering in reference.lowerings:
        lowering.compiles = True
    module: Any = importlib.import_module("abele.compile.build")
    module.choose_target = lambda: (reference, False)


def _have_forks_compile() -> None:
    """Forks the process that will compile now, while this one has no other threads."""
    parent, (reading, writing) = str(os.getpid()), os.pipe()

    def work() -> None:
        os.close(writing)
        with os.fdopen(reading) as told:
            folder = told.read()
        if folder:  # else nobody wanted it
            os.nice(19)
            worker.main(folder, parent)

    forked, plain = Forked(work), process._started
    os.close(reading)

    def started(command: list[str], folder: Path) -> Any:
        if worker.__name__ not in "".join(command):
            return plain(command, folder)
        with os.fdopen(writing, "w") as told:
            told.write(str(folder))
        return forked

    patched: Any = process
    patched._started = started


def _workers() -> list[FromWorker]:
    """The processes that compile, in the order in which they are started."""
    started = []
    begin = tiers.FromWorker

    def begun(*arguments: Any) -> FromWorker:
        started.append(begin(*arguments))
        return started[-1]

    tiers.FromWorker = begun  # type: ignore[reportAttributeAccessIssue]
    return started


def main() -> None:
    """Trains as one instance until something has been decided, and two updates more."""
    folder, what = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    _have_forks_compile()
    popdist.init()
    index = popdist.getInstanceIndex()
    if os.environ["ABELE_TARGET"] == "reference":
        _pretend_to_compile()
    workers, model = _workers(), scorer()
    options = popdist.poptorch.Options().showCompilationProgressBar(False)
    options.enableExecutableCaching(str(folder / "cache"))
    wrapped = poptorch.trainingModel(model, options, sgd(model))
    updates = after = 0
    resumed: int | None = None
    said: list[str] = []
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        while after < 2:
            wrapped(*rows(4, 10 * updates + index))
            updates += 1
            running = wrapped.build_record.running
            if updates == 1 and index == 1 and workers:
                sign = {"late": signal.SIGSTOP, "killed": signal.SIGKILL}.get(what)
                if sign is not None:
                    os.kill(workers[0].process, sign)
            session = wrapped._executable.session
            if what == "late" and index == 1 and resumed is None and session.exchange.votes._sum:
                os.killpg(workers[0].process, signal.SIGCONT)
                resumed = updates
            decided = not running.interpreted or running.problem is not None
            # Alike in all instances: what is decided is decided everywhere.
            after += decided
            time.sleep(0.05)  # the processes that compile need the cores
        said = [str(each.message) for each in shown if "take over" in str(each.message)]
    results = {
        "since": running.since,
        "resumed": resumed,
        "sentence": running.sentence(),
        "check": running.check,
        "compile_s": running.compile_s,
        "weight": wrapped.model.fc.weight.tolist(),
        "warnings": said,
        "processes": len(workers),
    }
    (folder / f"{index}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
