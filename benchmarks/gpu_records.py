"""What benchmarks of single operators on a GPU share: options, refusal without one, the record."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from benchmarks import harness
from benchmarks.table import ways


def run(name: str, doc: str, answers: Callable[[], Iterable[tuple[str, Any, str]]]) -> int:
    """Measure and print; keeps the result where ``--out`` says.

    Args:
        name: of what is measured; the record is NAME.json.
        doc: of the benchmark.
        answers: yields a key, what belongs to it, and a text for people.

    Returns:
        Exit status: 3 without a GPU.
    """
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--out", type=Path, help=f"folder of {name}.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"gpu_{name}: torch finds no GPU here; nothing was measured.", file=sys.stderr)
        return 3
    ways.plain_float32()
    result: dict[str, Any] = {"environment": harness.environment(), name: {}}
    for key, answer, text in answers():
        result[name][key] = answer
        print(text, flush=True)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0
