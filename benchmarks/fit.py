"""How far estimates of memory are from what processes take: 12 models, 6 settings, 3 ways.

python benchmarks/fit.py --record                        216 cells; renews notes/fit.md
python benchmarks/fit.py --models mlp gpt --ways interpreted
python benchmarks/fit.py --cell mlp interpreted sgd      one, in this process

Each cell is a process of its own, forked from one that has loaded torch; see ``fit_measure.py``.
``--pieces FOLDER`` keeps a file for each, and what is there is not run again; ``--estimate``
estimates it anew, where nothing has changed but the estimate. ``--earlier RECORD`` takes the cells
that the folder has not from a record of before; each says of which commit it is.

A run that is cut off keeps its cells: the same command goes on. On two cores, two commands with the
same folder and different ``--models`` take half as long; 24 cells had the same memory within 1 %
then. The same command without ``--models`` reads what both have measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import fit_measure
import fit_page
import harness
import torch

from abele import arena
from abele.targets.cpu.compiler import compiler

ROOT = Path(__file__).resolve().parent.parent
_TIMEOUT_S = 240
Cell = tuple[str, str, str]  # setting, model, way


def main() -> int:
    """Measure and print; with --record also keep the result and renew the page."""
    options = _arguments()
    torch.set_num_threads(1)
    arena.made(compiler() or "g++")
    if options.cell:
        model, way, setting = options.cell
        print(json.dumps(cell(model, way, setting)))
        return 0
    asked = itertools.product(
        options.settings or fit_measure.SETTINGS,
        options.models or fit_measure.MODELS,
        options.ways or fit_measure.WAYS,
    )
    with tempfile.TemporaryDirectory() as folder:
        pieces = options.pieces or Path(folder)
        if options.earlier:
            cells = with_earlier(list(asked), pieces, options.earlier)
        else:
            cells = run(list(asked), pieces, anew=options.estimate)
    result = {
        "environment": harness.environment(),
        "errors": fit_page.errors(cells),
        "cells": cells,
    }
    print("\n".join(fit_page.lines(result)))
    if options.record:
        path = harness.write_record("fit", result)
        fit_page.renew(result, path.name)
        print(f"record: {path.relative_to(ROOT)}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=fit_measure.MODELS, metavar="MODEL")
    parser.add_argument("--settings", nargs="+", choices=fit_measure.SETTINGS, metavar="SETTING")
    parser.add_argument("--ways", nargs="+", choices=fit_measure.WAYS, metavar="WAY")
    parser.add_argument("--pieces", type=Path, help="a folder in which cells are kept")
    parser.add_argument("--estimate", action="store_true", help="cells in the folder anew")
    parser.add_argument("--earlier", type=Path, help="a record for cells the folder has not")
    parser.add_argument("--record", action="store_true", help="keep the result under records/")
    parser.add_argument("--cell", nargs=3, metavar=("MODEL", "WAY", "SETTING"), help="this alone")
    return parser.parse_args()


def run(asked: Sequence[Cell], folder: Path, *, anew: bool) -> list[dict[str, Any]]:
    """Return the requested cells, measured unless their file exists.

    Args:
        asked: setting, model and way of each.
        folder: has a file for each cell that is done.
        anew: estimates the cells that are there anew, and measures none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = _paths(asked, folder)
    missing = [each for each, path in paths.items() if path.exists() == anew]
    began = time.monotonic()
    for number, asked_for in enumerate(missing, 1):
        setting, model, way = asked_for
        path = paths[asked_for]
        facts = _estimated_anew(path) if anew else cell(model, way, setting)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(facts))
        part.rename(path)
        left = (time.monotonic() - began) / number * (len(missing) - number) / 60
        said = f"{way:11s} {setting:23s} {model:12s} {fit_page.line(facts)}"
        print(
            f"{number} of {len(missing)}, {left:.0f} min left: {said}", file=sys.stderr, flush=True
        )
    return [json.loads(path.read_text()) for path in paths.values() if path.exists()]


def with_earlier(asked: Sequence[Cell], folder: Path, record: Path) -> list[dict[str, Any]]:
    """Return the cells of a folder, completed from a record.

    Args:
        asked: setting, model and way of each.
        folder: has a file for each cell that is newer.
        record: of before.
    """
    before = json.loads(record.read_text())
    commit = before["environment"]["commit"]
    cells = {
        (each["setting"], each["model"], each["way"]): {"commit": commit, **each}
        for each in before["cells"]
    }
    for each, path in _paths(asked, folder).items():
        if path.exists():
            cells[each] = json.loads(path.read_text())
    return [cells[each] for each in asked if each in cells]


def _paths(asked: Sequence[Cell], folder: Path) -> dict[Cell, Path]:
    return {each: folder / f"{'--'.join(each)}.json".replace(" ", "-") for each in asked}


def _estimated_anew(path: Path) -> dict[str, Any]:
    """Return a cell with new estimates and its old measurements."""
    facts = json.loads(path.read_text())
    if "measured" not in facts:
        return facts
    cell_of = (facts["model"], facts["way"], facts["setting"])
    made = _in_process(fit_measure.estimated, *cell_of)
    return {**facts, **{key: made[key] for key in ("estimate", "fit_s")}}


def cell(model: str, way: str, setting: str) -> dict[str, Any]:
    """One cell; again without the limit if the kernel refused memory, so that there is a number."""
    facts = _in_process(fit_measure.measured, model, way, setting, True)
    if "refused" in facts:
        again = _in_process(fit_measure.measured, model, way, setting, False)
        facts = again if "refused" in again else {**again, **facts, "limited": True}
    commit = harness.environment()["commit"]
    return {"model": model, "way": way, "setting": setting, "commit": commit, **facts}


def _in_process(ask: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    child = fork.Process(target=_child, args=(there, ask, arguments))
    child.start()
    there.close()
    try:
        return here.recv() if here.poll(_TIMEOUT_S) else {"refused": "it took too long"}
    except EOFError:
        return {"refused": "the process was killed"}
    finally:
        child.kill()
        child.join()


def _child(
    pipe: Connection, ask: Callable[..., dict[str, Any]], arguments: tuple[Any, ...]
) -> None:
    try:
        facts = ask(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever torch makes of memory that it does not get
        facts = {"refused": f"{type(error).__name__}: {error}"[:300]}
    pipe.send(facts)


if __name__ == "__main__":
    sys.exit(main())
