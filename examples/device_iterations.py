"""Several steps in one call, and which results it returns: python examples/device_iterations.py.

A call has a cost of its own. With device iterations one call makes many updates; the output mode
says which of their results it returns. Times are measured on this machine.
"""

import argparse
import time

import torch

import poptorch

ROWS, STEPS = 4, 64
MODES = [("Final", None), ("All", None), ("Sum", None), ("EveryN", 4)]


class Regression(torch.nn.Module):
    """One dense layer; returns its loss and what it predicts."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 3)

    def forward(self, x, target):
        """Return the loss and its predictions."""
        predicted = self.layer(x)
        return torch.nn.functional.mse_loss(predicted, target), predicted


def run(iterations: int, mode: str, period: int | None) -> tuple[list[torch.Tensor], float]:
    """Make STEPS updates; the results of the last call and the milliseconds of one update."""
    options = poptorch.Options().deviceIterations(iterations).showCompilationProgressBar(False)
    options.outputMode(poptorch.OutputMode[mode], *([] if period is None else [period]))
    training = poptorch.trainingModel(Regression(), options)
    batch = (torch.randn(ROWS * iterations, 8), torch.randn(ROWS * iterations, 3))
    training.compile(*batch)
    results, started = [], time.perf_counter()
    for _ in range(STEPS // iterations):
        results = list(training(*batch))
    return results, (time.perf_counter() - started) * 1000 / STEPS


def main() -> None:
    print("steps per call | output mode | loss  | predictions | ms per step")
    for iterations in (1, 8, 64):
        for mode, period in MODES if iterations > 1 else MODES[:1]:
            (loss, predicted), milliseconds = run(iterations, mode, period)
            name = mode if period is None else f"{mode}({period})"
            print(
                f"{iterations:14} | {name:11} | {list(loss.shape)!s:5} | "
                f"{list(predicted.shape)!s:11} | {milliseconds:.3f}"
            )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
