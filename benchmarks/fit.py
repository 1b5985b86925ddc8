"""How far estimates of memory and time are from what processes take: 12 models, 6 settings, 3 ways.

python benchmarks/fit.py                                 all of them, an hour
python benchmarks/fit.py --models mlp gpt --ways interpreted --record
python benchmarks/fit.py --kept FILE                     goes on where FILE ends

Each cell is a process of its own, forked from one that has loaded torch; see ``fit_measure.py``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import statistics
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import fit_measure
import harness
import torch

from abele import arena
from abele.targets.cpu.compiler import compiler

ROOT = Path(__file__).resolve().parent.parent
_TIMEOUT_S = 600


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=fit_measure.MODELS, metavar="MODEL")
    parser.add_argument("--settings", nargs="+", choices=fit_measure.SETTINGS, metavar="SETTING")
    parser.add_argument("--ways", nargs="+", choices=fit_measure.WAYS, default=fit_measure.WAYS)
    parser.add_argument(
        "--kept", type=Path, help="cells, a line each; those in it are not repeated"
    )
    parser.add_argument("--record", action="store_true", help="keep the result under records/")
    options = parser.parse_args()
    torch.set_num_threads(1)
    arena.made(compiler() or "g++")
    cells = _kept(options.kept)
    asked = itertools.product(
        options.ways,
        options.settings or fit_measure.SETTINGS,
        options.models or fit_measure.MODELS,
    )
    for way, setting, model in asked:
        if any((c["way"], c["setting"], c["model"]) == (way, setting, model) for c in cells):
            continue
        facts = cell(model, way, setting)
        cells.append(facts)
        print(f"{way:11s} {setting:24s} {model:13s} {_line(facts)}", flush=True)
        if options.kept is not None:
            with options.kept.open("a") as file:
                file.write(json.dumps(facts) + "\n")
    result = {"environment": harness.environment(), "errors": errors(cells), "cells": cells}
    print(json.dumps(result["errors"], indent=1))
    if options.record:
        print(f"record: {harness.write_record('fit', result).relative_to(ROOT)}")
    return 0


def _kept(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def cell(model: str, way: str, setting: str) -> dict[str, Any]:
    """One cell; again without the limit if the kernel refused memory, so that there is a number."""
    facts = _in_process(model, way, setting, limited=True)
    if "refused" in facts:
        again = _in_process(model, way, setting, limited=False)
        facts = again if "refused" in again else {**again, **facts, "limited": True}
    return {"model": model, "way": way, "setting": setting, **facts}


def _in_process(model: str, way: str, setting: str, *, limited: bool) -> dict[str, Any]:
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    child = fork.Process(target=_child, args=(there, model, way, setting, limited))
    child.start()
    there.close()
    try:
        return here.recv() if here.poll(_TIMEOUT_S) else {"refused": "it took too long"}
    except EOFError:
        return {"refused": "the process was killed"}
    finally:
        child.kill()
        child.join()


def _child(pipe: Connection, model: str, way: str, setting: str, limited: bool) -> None:
    try:
        facts = fit_measure.measured(model, way, setting, limited=limited)
    except Exception as error:  # noqa: BLE001 - whatever torch makes of memory that it does not get
        facts = {"refused": f"{type(error).__name__}: {error}"[:300]}
    pipe.send(facts)


def _line(facts: dict[str, Any]) -> str:
    refused = f" refused: {facts['refused'][:60]}" if "refused" in facts else ""
    if "measured" not in facts:
        return refused
    estimate, mib = facts["estimate"], 2**20
    return (
        f"{facts['measured'] / mib:6.1f} MiB, {estimate['expected'] / mib:6.1f} expected "
        f"({_error(facts):+.1%}, {estimate['low'] / mib:.0f} to {estimate['high'] / mib:.0f}); "
        f"step {facts['step_s'] * 1000:.0f} ms, {facts['seconds']['expected'] * 1000:.0f} expected"
        f"{refused}"
    )


def _error(facts: dict[str, Any]) -> float:
    return facts["estimate"]["expected"] / facts["measured"] - 1


def errors(cells: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By way: relative errors of what was expected, and how good its intervals are."""
    result: dict[str, dict[str, float]] = {}
    for way in dict.fromkeys(each["way"] for each in cells):
        those = [each for each in cells if each["way"] == way]
        limited = [each for each in those if each.get("limited")]
        those = [each for each in those if "measured" in each]
        if not those:
            continue
        far = [abs(_error(each)) for each in those]
        result[way] = {
            "cells": len(those),
            "median": round(statistics.median(far), 4),
            "worst": round(max(far), 4),
            "inside": round(statistics.mean(map(_inside, those)), 3),
            "width": round(max(map(_width, those)), 3),
            "limited": len(limited),
            "refused": sum("refused" in each for each in limited),
            "time, median": round(statistics.median(map(_time_error, those)), 3),
        }
    return result


def _inside(facts: dict[str, Any]) -> bool:
    # A process's memory is known to a page or so for each tensor.
    off = 0.005 * facts["measured"]
    return facts["estimate"]["low"] - off <= facts["measured"] <= facts["estimate"]["high"] + off


def _width(facts: dict[str, Any]) -> float:
    estimate = facts["estimate"]
    return (estimate["high"] - estimate["low"]) / facts["measured"]


def _time_error(facts: dict[str, Any]) -> float:
    return abs(facts["seconds"]["expected"] / facts["step_s"] - 1)


if __name__ == "__main__":
    sys.exit(main())
