"""Finds where an original and its port first differ, and names what to look at."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from abele.port.check.comparison import Difference, StepPair

#: A loss that is a whole number of times the other is probably summed, not averaged.
_WHOLE = 1e-4

_OTHER_START = (
    "The models differ before the first update. Random numbers are drawn in another order, or "
    "other weights are loaded: call torch.manual_seed at the same place, right before the model "
    "is made."
)
_OTHER_UPDATE = (
    "Loss and weights before it are the same, the update is not: compare the optimizer's class and "
    "settings, zero_grad, clipping, accumulation and schedulers, and what is detached."
)
_OTHER_BUFFER = (
    "Parameters are the same, what forward writes is not: compare train() and eval(), and how "
    "often forward runs."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ends:
    """Who ended before all steps were made.

    Attributes:
        steps: how many both made.
        original: the original ended by itself after that.
        port: the port did.
    """

    steps: int
    original: bool
    port: bool


def first_difference(
    at_start: Sequence[str],
    pairs: Sequence[StepPair],
    tensors: Mapping[str, Mapping[str, Any]],
    far: Mapping[str, float],
    ends: Ends,
) -> Difference | None:
    """Where they first part; None if they are equal.

    Args:
        at_start: tensors that differ before the first update.
        pairs: the steps that both made.
        tensors: kind and line of each tensor of the original.
        far: how far tensors are apart, where that was measured.
        ends: who made no further step.
    """

    def of_tensor(step: int, name: str, lines: tuple[str, str], meaning: str) -> Difference:
        facts = tensors[name]
        lines = (facts["line"] or lines[0], lines[1])
        return Difference(
            step=step, kind=facts["kind"], name=name, far=far.get(name), lines=lines,
            meaning=meaning,
        )  # fmt: skip

    if at_start:
        return of_tensor(0, at_start[0], ("", ""), _OTHER_START)
    for pair in pairs:
        if pair.same_loss is False:
            return _of_loss(pair)
        if pair.differing:
            first = pair.differing[0]
            is_buffer = tensors[first]["kind"] == "buffer"
            meaning = _OTHER_BUFFER if is_buffer else _OTHER_UPDATE
            return of_tensor(pair.step, first, pair.lines, meaning)
    return _of_steps(ends) if ends.original != ends.port else None


def _of_loss(pair: StepPair) -> Difference:
    mine, other = pair.original[-1], pair.port[-1]
    far = abs(other - mine) / (abs(mine) or 1.0)
    meaning = meaning_of_loss(pair)
    return Difference(
        step=pair.step, kind="loss", name="", far=far, lines=pair.lines, meaning=meaning
    )


def _of_steps(ends: Ends) -> Difference:
    shorter, longer = ("original", "port") if ends.original else ("port", "original")
    return Difference(
        step=ends.steps + 1,
        kind="steps",
        name="",
        far=None,
        lines=("", ""),
        meaning=f"The {shorter} ends after {ends.steps} steps, the {longer} goes on: compare "
        "drop_last, the batch size, and options that join batches.",
    )


def meaning_of_loss(pair: StepPair) -> str:
    """What another loss may come from, where the weights before it were the same."""
    mine, other = pair.original[-1], pair.port[-1]
    ratio = _ratio(mine, other)
    if ratio is not None:
        larger = "port's" if abs(other) > abs(mine) else "original's"
        return (
            f"The {larger} loss is {ratio} times the other: look for reduction='sum' on one side "
            "and 'mean' on the other, or for losses that are divided by the number of parts."
        )
    if pair.same_batch:
        return (
            "Weights and batch are the same: forward or the loss function differ, or dropout and "
            "batch norm run in another mode, or random numbers are drawn in another order."
        )
    return (
        "Weights are the same, inputs of the model are not known to be: compare the order of the "
        "data, shuffling, drop_last and the batch size; then forward and the loss function."
    )


def _ratio(mine: float, other: float) -> int | None:
    low, high = sorted((abs(mine), abs(other)))
    if not low or not math.isfinite(high):
        return None
    whole = round(high / low)
    return whole if whole > 1 and abs(high / low / whole - 1) < _WHOLE else None
