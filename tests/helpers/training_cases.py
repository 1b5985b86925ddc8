"""Trainings whose result must not depend on how replicas are spread over instances.

As a program, ``training_cases.py FOLDER CASE ...`` trains cases as one of several instances and
keeps what it found in FOLDER; the tests train the same cases in their own process.
"""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

import popdist
import popdist.poptorch
import poptorch

REPLICAS = 4
ROWS = 3  # of a micro-batch


class Dense(nn.Module):
    """Two layers; the middle is whatever a case wants to test."""

    def __init__(self, middle: nn.Module):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 6), middle, nn.Linear(6, 3)

    def forward(self, x, target):
        scores = self.last(self.middle(self.first(x)))
        return scores, F.mse_loss(scores.float(), target.float())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One training."""

    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    settings: Callable[[Any], Any] = lambda options: options
    middle: Callable[[], nn.Module] = nn.Tanh
    steps: int = 5
    accumulation: int = 1
    iterations: int = 1
    half: bool = False
    change: Callable[[Any, int], None] = lambda optimizer, step: None
    tolerance: float = 1e-6


def _sgd(**settings):
    return lambda model: poptorch.optim.SGD(
        model.parameters(), **{"lr": 0.05, "momentum": 0.9, "use_combined_accum": True} | settings
    )


def _adam(kind=poptorch.optim.AdamW, **settings):
    return lambda model: kind(model.parameters(), lr=0.01, **settings)


def _mean(strategy):
    kind = poptorch.MeanReductionStrategy

    def settle(options):
        options.Training.setMeanAccumulationAndReplicationReductionStrategy(getattr(kind, strategy))

    return settle


def _sum(options):
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)


def _automatic(options):
    options._Popart.set("automaticLossScalingSettings.enabled", True)
    options._Popart.set("automaticLossScalingSettings.updatePeriod", 3)


def _stochastic(options):
    options.Precision.enableStochasticRounding(True)


def _decay(optimizer, step):
    for group in optimizer.param_groups:
        group["lr"] = 0.05 / (1 + step)


CASES = {
    "sgd": Case(optimizer=_sgd(), change=_decay, steps=20),
    "plain torch sgd, sum": Case(
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.002), settings=_sum, accumulation=2
    ),
    "adam, clipping, loss scaling": Case(
        optimizer=_adam(max_grad_norm=0.05, loss_scaling=128.0), accumulation=2, tolerance=2e-5
    ),
    "lamb, running mean": Case(
        optimizer=_adam(poptorch.optim.LAMB),
        settings=_mean("Running"),
        accumulation=3,
        tolerance=2e-5,
    ),
    "batch norm, dropout, mean by loss": Case(
        optimizer=_sgd(),
        settings=_mean("PostAndLoss"),
        middle=lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Dropout()),
        accumulation=2,
        iterations=2,
        tolerance=1e-5,
    ),
    "half, running mean": Case(
        optimizer=_sgd(accum_type=torch.float16),
        settings=_mean("Running"),
        half=True,
        accumulation=2,
        tolerance=4e-3,
    ),
    "half, automatic scaling": Case(
        optimizer=_sgd(loss_scaling=2.0**18), settings=_automatic, half=True, tolerance=2e-3
    ),
    "half, stochastic rounding": Case(
        optimizer=_sgd(), settings=_stochastic, half=True, tolerance=4e-3
    ),
}


def batch(case: Case, step: int, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of one call for ``count`` replicas from ``first``, of those of all replicas."""
    generator = torch.Generator().manual_seed(step)
    outer = case.iterations * case.accumulation
    x = torch.randn(outer, REPLICAS, ROWS, 4, generator=generator)
    y = torch.randn(outer, REPLICAS, ROWS, 3, generator=generator)
    if case.half:
        x, y = x.half(), y.half()
    own = slice(first, first + count)
    return x[:, own].flatten(0, 2).contiguous(), y[:, own].flatten(0, 2).contiguous()


def train(case: Case, options: poptorch.Options, first: int, count: int) -> dict[str, Any]:
    """Trains one case with a share of all replicas; what is worth comparing, by name."""
    torch.manual_seed(7)
    model = Dense(case.middle())
    if case.half:
        model.half()
    options.showCompilationProgressBar(False).randomSeed(11).deviceIterations(case.iterations)
    options.Training.gradientAccumulation(case.accumulation)
    case.settings(options)
    optimizer = case.optimizer(model)
    wrapped = poptorch.trainingModel(model, options, optimizer)
    for step in range(case.steps):
        case.change(optimizer, step)
        wrapped.setOptimizer(optimizer)
        wrapped(*batch(case, step, first, count))
    session = wrapped._executable.session
    state = {
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
        "optimizer": {n: v.clone() for n, v in session.read_optimizer_state().items()},
        "hyper": {name: value.clone() for name, value in session.hyper.items()},
        "counters": {name: value.clone() for name, value in session.counters.items()},
        "buffers": [{n: v.clone() for n, v in buffers.items()} for buffers in session.buffers],
        "sums": {name: value.clone() for name, value in session.read_accumulators().items()},
        "exchanges": dataclasses.asdict(wrapped.exchanges),
        "updates": case.steps * case.iterations,
    }
    wrapped.destroy()
    return state


def main() -> None:
    """Trains as one instance."""
    folder, *names = sys.argv[1:]
    torch.set_num_threads(1)
    popdist.init()
    index, local = popdist.getInstanceIndex(), popdist.getNumLocalReplicas()
    output = {
        name: train(CASES[name], popdist.poptorch.Options(), index * local, local)
        for name in names or CASES
    }
    torch.save(output, Path(folder) / f"{index}.pt")


if __name__ == "__main__":
    main()
