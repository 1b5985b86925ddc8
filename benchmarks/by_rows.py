"""Where is the update of a weight faster on rows of its gradient than after all of it?

    python benchmarks/by_rows.py [--threads 2] [--windows 10] [--record]

A step of one linear layer, or of rows of the table, as emitted code with and without loops on rows,
in turns. The bits are the same.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT / "benchmarks")
sys.path[1:1] = [str(ROOT), str(ROOT / "src")]

import harness  # noqa: E402 - after the paths above
import torch  # noqa: E402
from benchmarks.table import rows as table  # noqa: E402
from torch import nn  # noqa: E402

from abele import StepConfig, passes  # noqa: E402
from abele.capture import capture  # noqa: E402
from abele.program import Program, Role  # noqa: E402
from abele.step.update_rules import Group, UpdateRule  # noqa: E402
from abele.targets.cpu.emitted import lowering  # noqa: E402
from abele.targets.cpu.emitted.calls import products  # noqa: E402

# Rows and columns of the weight, and rows of the batch.
SIZES = ((512, 512, 64), (1024, 512, 64), (1024, 1024, 64), (1024, 1024, 256), (2048, 2048, 64))
# The least elements of a result; for these sizes, loops on rows are tried below the limit too.
TRIED, NEVER = 1 << 18, 1 << 60
ADAM = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8} | {"weight_decay": 0, "decoupled": 0}
OF_THE_TABLE = ("mlp", "lstm")


class Layer(nn.Module):
    """Linear layers of one size beside each other; together their state is in no cache."""

    def __init__(self, rows: int, columns: int):
        super().__init__()
        count = 1 + (1 << 22) // (rows * columns)
        self.layers = nn.ModuleList(nn.Linear(columns, rows, bias=False) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Batch [B, columns] -> loss."""
        results = [each(x).square().mean() for each in self.layers]
        return nn.functional.mse_loss(torch.stack(results).sum(), torch.zeros(()))


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    harness.add_arguments(parser)
    parser.add_argument("--window", type=float, default=0.05, help="seconds (default 0.05)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {"environment": harness.environment(), "rows": {}}
    for name, program, least in _programs():
        steps = {"after": _step(program, NEVER), "by rows": _step(program, least)}
        rates = harness.steps_per_second(steps, windows=options.windows, window_s=options.window)
        result["rows"][name] = {"ratios": harness.ratios(rates, "after"), "steps_per_second": rates}
        print(name, result["rows"][name]["ratios"], flush=True)
    if options.record:
        print(f"kept as {harness.write_record('by_rows', result)}")
    return 0


def _programs() -> Iterator[tuple[str, Program, int]]:
    for rows, columns, batch in SIZES:
        model = Layer(rows, columns)
        program = _program(model, [torch.randn(batch, columns)])
        yield f"{rows} x {columns}, batch {batch}", program, TRIED
    for name in OF_THE_TABLE:
        row = table.ROWS[name]
        module = row.load()
        assert row.model is not None
        program = _program(row.model(module), module.batch(row.batch))
        yield name, program, products._LEAST_BY_ROWS


def _program(model: nn.Module, batch: Any) -> Program:
    names = tuple(name for name, _ in model.named_parameters())
    rule = UpdateRule(kind="adam", groups=(Group(params=names, values=ADAM),))
    config = StepConfig(training=True)
    (program,) = capture(lambda given: [model(*given)], model, batch, config, rule).programs
    return passes.run_only(passes.run(program), lowering.Emitted.passes)


def _step(program: Program, least: int) -> Callable[[], Any]:
    """Return a step of emitted code with loops over rows of at least so many elements."""
    with mock.patch.object(products, "_LEAST_BY_ROWS", least):
        run = lowering.Emitted().compile(program).run
    inputs = [_input(slot) for slot in program.inputs]
    return lambda: run(list(inputs))


def _input(slot: Any) -> torch.Tensor:
    if slot.role is Role.INPUT or slot.dtype is not torch.float32:
        return torch.ones(slot.shape, dtype=slot.dtype)
    return torch.rand(slot.shape) / 100


if __name__ == "__main__":
    sys.exit(main())
