"""A program of several instances whose steps are interpreted until each has compiled programs.

``instances_starting.py FOLDER WHAT`` keeps what an instance found in FOLDER. The processes that
compile copy a text for the interpreter; with ``ABELE_TARGET=cpu`` they really compile. WHAT is

late     instance 1 has a cache of its own, and its process is stopped until instance 0 has voted
         for the compiled programs
killed   the same, but the process is killed
plain    nothing happens
"""

import functools
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
from abele.compilation import tiers
from abele.compilation.compiler_process import FromCompiler
from abele.program import Program
from abele.targets import Compiled, get_target
from abele.targets.base import Source
from abele.targets.reference import Interpreter
from helpers.wrapping import rows, scorer, sgd


def _pretend_to_compile() -> None:
    """Have the interpreter pass for a compiler, and for the target that abele would choose."""
    reference: Any = get_target("reference")
    reference.cacheable = True
    for lowering in reference.lowerings:
        lowering.compiles, lowering.load = True, _load
        lowering.source = lambda program: Source(
            text="the text",
            command=lambda source, result: ["cp", source, result],
            loaded=functools.partial(_load, program),
        )
    module: Any = importlib.import_module("abele.compilation.build")
    module.choose_target = lambda: (reference, False)


def _load(program: Program, payload: bytes) -> Compiled:
    return Compiled(Interpreter().compile(program).run, payload)


def _compilers() -> list[FromCompiler]:
    """Return a list that each compiler is added to when it is asked for."""
    asked: list[FromCompiler] = []
    begin = tiers.FromCompiler

    def begun(*arguments: Any) -> FromCompiler:
        asked.append(begin(*arguments))
        return asked[-1]

    tiers.FromCompiler = begun  # type: ignore[reportAttributeAccessIssue]
    return asked


def _started(compiler: FromCompiler) -> int:
    """Return the number of a compiler's process, started now."""
    compiler.look()
    return compiler.process


def main() -> None:
    """Trains as one instance until something has been decided, and two updates more."""
    folder, what = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    popdist.init()
    index = popdist.getInstanceIndex()
    if os.environ["ABELE_TARGET"] == "reference":
        _pretend_to_compile()
    compilers, model = _compilers(), scorer()
    options = popdist.poptorch.Options().showCompilationProgressBar(False)
    own = f"cache of {index}" if what in ("late", "killed") else "cache"
    options.enableExecutableCaching(str(folder / own))
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
            sign = {"late": signal.SIGSTOP, "killed": signal.SIGKILL}.get(what)
            if updates == 1 and index == 1 and compilers and sign is not None:
                os.killpg(_started(compilers[0]), sign)
            session = wrapped._executable.session
            if what == "late" and index == 1 and resumed is None and session.exchange.votes._sum:
                os.killpg(compilers[0].process, signal.SIGCONT)
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
        "compilers": len(compilers),
    }
    (folder / f"{index}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
