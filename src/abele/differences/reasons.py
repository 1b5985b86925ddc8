"""What may make losses differ where nothing does that records say of two runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from abele.differences.losses import Losses
from abele.differences.program_texts import slots
from abele.program import Role
from abele.report.record import Run


def of(losses: Losses, run: Run) -> Iterator[str]:
    """Yield what may be why, in sentences.

    Args:
        losses: they part somewhere.
        run: one of the two; what is asked of it is the same in both.
    """
    assert losses.first is not None
    random = _random(run)
    if losses.before:
        yield (
            f"Up to update {losses.before} losses are the same, so what the runs began with is "
            "most likely the same: weights, the first batch and random numbers."
        )
    else:
        yield (
            "The first losses that both have differ, so what the runs began with may differ: "
            "weights (made from a seed, or read from a file) or the first batches."
        )
    hyper = [name for name, kind in _slots(run).items() if f" {Role.HYPER}" in kind]
    # The first update's loss is there before it. Records of today have these values.
    if hyper and run.optimizer is None and losses.first.update > 1:
        yield f"Records do not have the values of {', '.join(hyper)}, which programs are given."
    yield "Records do not have the data: samples, their order, or what is done to them on the host."
    if random:
        yield f"Programs draw random numbers ({', '.join(random)}). {_seed(run)}"
    else:
        yield f"Programs draw no random numbers. {_seed(run)}"
    if run.machine.threads > 1:
        yield (
            f"With {run.machine.threads} threads, libraries may add in another order each time. "
            "Compare two runs with one thread to rule that out."
        )


def _seed(run: Run) -> str:
    seeds = [each for each in run.options if "seed" in each.name.lower()]
    if seeds:
        return f"{seeds[0].name} is {seeds[0].value} in both."
    return "No option has set a seed, and records do not have seeds that are set otherwise."


def _slots(run: Run) -> dict[str, str]:
    return {name: kind for each in run.programs for name, kind in slots(each).items()}


def _random(run: Run) -> list[str]:
    """Operators of a run's programs that draw random numbers."""
    names = dict.fromkeys(each.name for program in run.programs for each in program.operators)
    return [name for name in names if _draws(name)]


def _draws(name: str) -> bool:
    operator: Any = torch.ops
    for part in name.split("."):
        operator = getattr(operator, part, None)
    return torch.Tag.nondeterministic_seeded in getattr(operator, "tags", ())


def next_command(runs: tuple[Run, Run]) -> Iterator[str]:
    """Yield how to learn at which operation two ways to run the same programs part."""
    ways = [_ways(each) for each in runs]
    if ways[0] != ways[1] and all(len(each) == 1 for each in ways):
        (one,), (other,) = ways
        yield f"abele diff SCRIPT {one} {other} says at which operation these part."


def _ways(run: Run) -> set[str]:
    """The settings of ``abele diff`` that a run's programs were run in."""
    target = run.build.target if run.build is not None else "reference"
    if target == "reference":
        return {target}
    return {f"{target}:{each.lowering}" for each in run.programs}
