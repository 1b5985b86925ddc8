"""How far estimates of memory are from what processes take, for several models and settings.

python benchmarks/fit.py                                 all of them, many minutes
python benchmarks/fit.py --models mlp gpt --ways interpreted --record
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from pathlib import Path
from typing import Any

import fit_measure
import harness
import torch

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=fit_measure.MODELS, metavar="MODEL")
    parser.add_argument("--ways", nargs="+", choices=fit_measure.WAYS, default=fit_measure.WAYS)
    parser.add_argument("--optimizers", nargs="+", default=("sgd", "adam"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--record", action="store_true", help="keep the result under records/")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cells: list[dict[str, Any]] = []
    asked = (options.models or fit_measure.MODELS, options.ways, options.optimizers)
    for cell in itertools.product(*asked):
        script = str(ROOT / "benchmarks" / "fit_measure.py")
        facts = harness.in_new_process(script, *cell, "--threads", str(options.threads))
        cells.append(facts)
        print(f"{' '.join(cell):32s} {_line(facts)}", flush=True)
    result = {"environment": harness.environment(), "errors": errors(cells), "cells": cells}
    print(result["errors"])
    if options.record:
        print(f"record: {harness.write_record('fit', result).relative_to(ROOT)}")
    return 0


def _line(facts: dict[str, Any]) -> str:
    steady, mib = facts["steady"], 2**20
    return (
        f"{facts['measured'] / mib:6.0f} MiB measured, {steady['expected'] / mib:6.0f} expected "
        f"({_error(facts):+.0%}), {steady['low'] / mib:.0f} to {steady['high'] / mib:.0f}"
    )


def _error(facts: dict[str, Any]) -> float:
    return facts["steady"]["expected"] / facts["measured"] - 1


def errors(cells: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By way: relative errors of what was expected, and the share of intervals that hold."""
    result: dict[str, dict[str, float]] = {}
    for way in dict.fromkeys(cell["way"] for cell in cells):
        those = [cell for cell in cells if cell["way"] == way]
        far = [abs(_error(cell)) for cell in those]
        inside = [c["steady"]["low"] <= c["measured"] <= c["steady"]["high"] for c in those]
        result[way] = {
            "median": round(statistics.median(far), 3),
            "worst": round(max(far), 3),
            "inside": round(statistics.mean(inside), 3),
        }
    return result


if __name__ == "__main__":
    sys.exit(main())
