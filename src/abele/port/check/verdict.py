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
#: A difference of a tensor, as a part of it, that may be of rounding alone.
_SMALL = 1e-6
_OTHER_ROUNDING = (
    "The update differs in last bits: sums may be added up in another order (memory_format), or a "
    "number may be rounded to float32 that Python has as float64 (ABP314). If neither is there, "
    "compare the optimizer's settings, clipping and schedulers."
)
_OTHER_BUFFER = (
    "Parameters are the same, what forward writes is not: compare train() and eval(), and how "
    "often forward runs."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelPair:
    """A model that both train.

    Attributes:
        name: of it; empty if both train one only.
        tensors: kind and line of each tensor of the original.
        at_start: tensors that differ before the first update.
        far: how far tensors are apart, where that was measured.
    """

    name: str
    tensors: Mapping[str, Mapping[str, Any]]
    at_start: Sequence[str]
    far: Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ends:
    """Who ended before all steps were made.

    Attributes:
        steps: how many both made.
        original: the original ended by itself after that.
        port: the port did.
        turn: the first step that updates another model in the port, with the names of both; None
            if there is none.
    """

    steps: int
    original: bool
    port: bool
    turn: tuple[int, str, str] | None = None


def first_difference(
    models: Sequence[ModelPair], pairs: Sequence[StepPair], ends: Ends
) -> Difference | None:
    """Where they first part; None if they are equal.

    Args:
        models: that both train.
        pairs: the steps that both made.
        ends: who made no further step, or one of another model.
    """
    if not pairs and models and models[0].at_start:
        return _of_start(models[0])
    begun: set[int] = set()
    for pair in pairs:
        model = models[pair.model]
        if ends.turn is not None and ends.turn[0] <= pair.step:
            break
        if pair.model not in begun and model.at_start:
            return _of_start(model)
        begun.add(pair.model)
        if pair.same_loss is False:
            return _of_loss(pair, model)
        if pair.differing:
            first = pair.differing[0]
            is_buffer = model.tensors[first]["kind"] == "buffer"
            small = 0 < model.far.get(first, 1.0) < _SMALL
            meaning = _OTHER_BUFFER if is_buffer else _OTHER_ROUNDING if small else _OTHER_UPDATE
            return _of_tensor(model, pair.step, first, pair.lines, meaning)
    if ends.turn is not None:
        return _of_turn(*ends.turn)
    return _of_steps(ends) if ends.original != ends.port else None


def _of_start(model: ModelPair) -> Difference:
    return _of_tensor(model, 0, model.at_start[0], ("", ""), _OTHER_START)


def _of_tensor(
    model: ModelPair, step: int, name: str, lines: tuple[str, str], meaning: str
) -> Difference:
    facts = model.tensors[name]
    lines = (facts["line"] or lines[0], lines[1])
    return Difference(
        step=step, kind=facts["kind"], name=name, far=model.far.get(name), lines=lines,
        meaning=meaning, model=model.name,
    )  # fmt: skip


def _of_loss(pair: StepPair, model: ModelPair) -> Difference:
    mine, other = pair.original[-1], pair.port[-1]
    far = abs(other - mine) / (abs(mine) or 1.0)
    meaning = meaning_of_loss(pair)
    return Difference(
        step=pair.step, kind="loss", name="", far=far, lines=pair.lines, meaning=meaning,
        model=model.name,
    )  # fmt: skip


def _of_turn(step: int, original: str, port: str) -> Difference:
    return Difference(
        step=step,
        kind="steps",
        name="",
        far=None,
        lines=("", ""),
        meaning=f"It updates {original} in the original and {port} in the port: compare drop_last, "
        "the batch size, and the order in which the models are trained.",
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
