"""Which lowering is the fastest for each model of the table, and does abele choose it?

    python benchmarks/lowerings.py [--rows mlp,gpt] [--cache FOLDER] [--compile] [--record]

Every lowering is forced in turn by ``ABELE_LOWERING`` and runs the same training step beside plain
PyTorch; what abele chooses by its own measurement is read from its build record. ``--compile``
only fills the cache, so that measuring compiles nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "src")]  # not this folder, which has a cosmictagger.py
os.environ["ABELE_START"] = "wait"

import torch  # noqa: E402 - after the paths above
from benchmarks import harness  # noqa: E402
from benchmarks.table import rows as table  # noqa: E402
from benchmarks.table import ways  # noqa: E402

import poptorch  # noqa: E402

VARIABLE = "ABELE_LOWERING"
FORCED = "interpreter,op_by_op,emitted"  # Inductor takes minutes to compile
USUAL = "introduction-16,resnet18,transformer,gpt,lstm,unet,mlp"


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    harness.add_arguments(parser)
    parser.add_argument("--rows", default=USUAL, help=f"with commas between (default {USUAL})")
    parser.add_argument("--cache", help="folder of executables (default: none are kept)")
    parser.add_argument("--into", type=Path, help="add the rows to this record")
    parser.add_argument("--compile", action="store_true", help="compile, measure nothing")
    parser.add_argument("--forced", default=FORCED, help=f"lowerings (default {FORCED})")
    parser.add_argument("--window", type=float, default=0.25, help="seconds (default 0.25)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.cache:
        os.environ["POPTORCH_CACHE_DIR"] = options.cache
    before = json.loads(options.into.read_text()) if options.into else {"rows": {}}
    for name in options.rows.split(","):
        result = measured(table.ROWS[name], options)
        print(name, result["chosen"], result.get("ratios", ""), flush=True)
        before["rows"][name] = result
    if options.into:
        options.into.write_text(json.dumps(before, indent=1) + "\n")
    elif options.record:
        before["environment"] = harness.environment()
        print(f"kept as {harness.write_record('lowerings', before)}")
    return 0


def measured(row: table.Row, options: argparse.Namespace) -> dict[str, Any]:
    """Rates of all lowerings of a row and of plain PyTorch, and what was chosen."""
    steps = {"eager": ways.prepare(row, table.EAGER)}
    for name in options.forced.split(","):
        with contextlib.suppress(poptorch.Error):  # some cannot run every program
            steps[name] = _step(row, name)[0]
    steps["chosen"], chosen = _step(row, None)
    result: dict[str, Any] = {"title": row.title, "chosen": chosen}
    if not options.compile:
        windows = harness.steps_per_second(steps, windows=options.windows, window_s=options.window)
        result["ratios"] = harness.ratios(windows, "eager")
        result["steps_per_second"] = windows
    return result | {"environment": harness.environment()}


def _step(row: table.Row, lowering: str | None) -> tuple[ways.Step, dict[str, str]]:
    """Return a training step that has run once, and its lowerings."""
    os.environ.pop(VARIABLE, None)
    if lowering is not None:
        os.environ[VARIABLE] = lowering
    models: list[Any] = []
    make = poptorch.trainingModel

    def kept(*given: Any, **named: Any) -> Any:
        models.append(make(*given, **named))
        return models[-1]

    poptorch.trainingModel = kept
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            step = ways.prepare(row, table.ABELE)
            step()
    finally:
        poptorch.trainingModel = make
    record = models[-1].build_record
    return step, {each: f"{by.name} ({by.reason})" for each, by in record.lowerings.items()}


if __name__ == "__main__":
    sys.exit(main())
