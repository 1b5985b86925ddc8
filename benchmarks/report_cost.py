"""What the report of a run costs its steps: calls with the recorder attached and without, in turns.

    python benchmarks/report_cost.py             the introduction model and a transformer
    python benchmarks/report_cost.py --record

One wrapper under ``enableProfiling`` makes all calls, so both kinds run the same code on the same
memory. In every second window its recorder is detached from the session; windows of a pair follow
each other, in changing order. Before, the first calls are made, which have a journal line each.
Only the thread that writes the journal every half second runs in both.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import torch
from models import encoder, pictures

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "examples")]

import poptorch  # noqa: E402 - after the path above, so that a checkout needs no installation
from abele.report.journal import SINGLE  # noqa: E402
from garment_model import ClassificationModel  # noqa: E402

MODELS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[], Any]]] = {
    "introduction": (ClassificationModel, lambda: pictures.batch(16)),
    "transformer": (encoder.Transformer, lambda: encoder.batch(8)),
}
MOST = 0.02  # of a step, as the documentation says


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    harness.add_arguments(parser)
    parser.add_argument("--only", choices=MODELS, help="one model instead of all")
    parser.add_argument("--window", type=float, default=0.1, help="seconds (default 0.1)")
    parser.set_defaults(windows=100)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {"environment": harness.environment(), "models": {}}
    worst = 0.0
    for name in [options.only] if options.only else MODELS:
        with tempfile.TemporaryDirectory() as folder:
            result["models"][name] = made = measure(name, folder, options.windows, options.window)
        worst = max(worst, made["cost"])
        print(
            f"{name:14s} a call takes {1e6 * made['bare_s']:.0f} us, recorded "
            f"{1e6 * made['recorded_s']:.0f} us; the median of {options.windows} pairs is "
            f"{100 * made['cost']:+.2f} %"
        )
    if options.record:
        print(f"record: {harness.write_record('report_cost', result).relative_to(ROOT)}")
    return int(worst > MOST)


def measure(name: str, folder: str, windows: int, window_s: float) -> dict[str, Any]:
    """Return seconds of calls of one model, recorded and not, and their ratio.

    Args:
        name: of the model.
        folder: for the report.
        windows: how many pairs.
        window_s: length of a window.
    """
    make, batch = MODELS[name]
    torch.manual_seed(0)
    model, inputs = make().train(), batch()
    options = poptorch.Options().showCompilationProgressBar(False)
    options.enableProfiling(folder)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    wrapped = poptorch.trainingModel(model, options, optimizer)
    for _ in range(SINGLE + 1):
        wrapped(*inputs)
    session = wrapped._wrapped.get_compiled().session
    (recorder,) = wrapped._compiling.recording.observers
    steps = harness.calibrate(lambda: wrapped(*inputs), window_s, warm=0)
    pairs: list[dict[str, float]] = []
    for index in range(windows):
        pair: dict[str, float] = {}
        for recorded in (index % 2 == 0, index % 2 == 1):
            if not recorded:
                session.remove_observer(recorder)
            pair["recorded" if recorded else "bare"] = _seconds(wrapped, inputs, steps)
            if not recorded:
                session.add_observer(recorder)
        pairs.append(pair)
    return _summary(pairs, steps)


def _seconds(call: Callable[..., Any], inputs: Any, steps: int) -> float:
    """Seconds of a call, on average of a window."""
    began = time.perf_counter()
    for _ in range(steps):
        call(*inputs)
    return (time.perf_counter() - began) / steps


def _summary(pairs: list[dict[str, float]], steps: int) -> dict[str, Any]:
    ratios = [pair["recorded"] / pair["bare"] for pair in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {
        "bare_s": statistics.median(pair["bare"] for pair in pairs),
        "recorded_s": statistics.median(pair["recorded"] for pair in pairs),
        "cost": round(middle - 1, 5),
        "quartiles": [round(low - 1, 5), round(high - 1, 5)],
        "calls_per_window": steps,
        "pairs_us": [
            [round(1e6 * pair["bare"], 2), round(1e6 * pair["recorded"], 2)] for pair in pairs
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
