"""The result of comparing a port with its original program, formatted as text."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Sequence

from abele.port.check.process import Update


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepPair:
    """A training step of the original script and the corresponding step of its port.

    Attributes:
        step: number of the step, from 1.
        original: the update of the original; it has several losses if it accumulates gradients.
        port: the update of the port; it has no loss if the call returns only that of a later step.
        differing: parameters and buffers that differ after the step, by the original's names.
        model: name of the model; empty if both scripts train only one.
    """

    step: int
    original: Update
    port: Update
    differing: tuple[str, ...] = ()
    model: str = ""

    @property
    def same_loss(self) -> bool | None:
        """True if the losses of both scripts are equal bit for bit; None if unknown."""
        if not self.port.losses or not self.original.losses:
            return None
        return same_losses(self.original.losses, self.port.losses)

    @property
    def same_batch(self) -> bool:
        """True if both scripts are known to have passed equal inputs to their model."""
        mine, other = self.original, self.port
        known = bool(mine.inputs) and other.alone and len(mine.losses) == 1
        return known and {*mine.inputs} <= {*other.inputs}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """The first divergence of a port from its original script.

    Attributes:
        step: the first step that differs; 0 if the models differ before their first update.
        kind: ``parameter``, ``buffer``, ``loss``, or ``steps`` if one script makes fewer.
        name: name of the tensor in the original; empty for a loss.
        far: norm of the difference relative to that of the original's tensor, if known.
        lines: the user's lines in the original and in the port, empty where unknown.
        meaning: a hint for debugging.
        model: name of the model; empty if both scripts train only one.
    """

    step: int
    kind: str
    name: str
    far: float | None
    lines: tuple[str, str]
    meaning: str
    model: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """The result of comparing a port with its original script.

    Attributes:
        steps: the compared training steps that both scripts ran.
        difference: the first divergence; None if everything is equal, bit for bit.
        compared: number of tensors that were compared, without the loss.
        notes: sentences about changes and omissions.
        back: the port is the one in plain PyTorch, and is called ``original`` here.
    """

    steps: tuple[StepPair, ...]
    difference: Difference | None
    compared: int
    notes: tuple[str, ...] = ()
    back: bool = False

    @property
    def equal(self) -> bool:
        """True if all losses, parameters and buffers of both scripts are equal bit for bit."""
        return self.difference is None

    @property
    def status(self) -> int:
        """Exit status of the comparison command: 0 equal, 1 different."""
        return int(not self.equal)

    def __str__(self) -> str:
        """Format the comparison: a table row per training step, the verdict, and notes."""
        parts = [_table(self.steps), _verdict(self)]
        text = "\n".join([*parts, *(f"Note: {note}." for note in self.notes)])
        return "\n".join(map(_turned, text.splitlines())) if self.back else text


def _turned(line: str) -> str:
    """Swap ``original`` and ``port`` in a line of text; in an indented one only in its label."""
    if line.startswith(("The port differs", "The port is equal")):
        return line
    other = {"original": "port", "port": "original"}
    count = 1 if line.startswith("  ") else 0
    return re.sub(r"\b(original|port)\b", lambda match: other[match[0]], line, count=count)


def same_losses(original: Sequence[float], port: Sequence[float]) -> bool:
    """Return whether the losses of an original script and its port are equal bit for bit.

    An original that accumulates gradients may have divided losses by the number of micro-batches.

    Args:
        original: losses of one update.
        port: all losses of one update, or the last one.
    """
    parts = len(original)
    compared = original[-len(port) :]
    if len(compared) != len(port):
        return False
    return any(
        all(_same(factor * mine, other) for mine, other in zip(compared, port, strict=True))
        for factor in {1, parts}
    )


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


# -- meanings ----------------------------------------------------------------------------------

#: A loss that is a whole number of times the other is probably summed, not averaged.
_WHOLE = 1e-4

OTHER_START = (
    "The models differ before the first update. Random numbers are drawn in another order, or "
    "other weights are loaded: call torch.manual_seed at the same place, right before the model "
    "is made."
)
OTHER_UPDATE = (
    "Loss and weights before it are the same, the update is not: compare the optimizer's class and "
    "settings, zero_grad, clipping, accumulation and schedulers, and what is detached."
)
OTHER_ROUNDING = (
    "The update differs in last bits: sums may be added up in another order (memory_format), or a "
    "number may be rounded to float32 that Python has as float64 (ABP314). If neither is there, "
    "compare the optimizer's settings, clipping and schedulers."
)
OTHER_BUFFER = (
    "Parameters are the same, what forward writes is not: compare train() and eval(), and how "
    "often forward runs."
)


def meaning_of_loss(pair: StepPair) -> str:
    """Return a possible explanation for different losses from equal weights."""
    mine, other = pair.original.losses[-1], pair.port.losses[-1]
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


# -- text ------------------------------------------------------------------------------------------

_FIRST, _LAST = 12, 3


def _table(steps: Sequence[StepPair]) -> str:
    """Format a table of training steps; of many, only the first and last."""
    rows = [("step", "original", "port", "loss", "batch", "tensors", "model"), *map(_row, steps)]
    if len(steps) > _FIRST + _LAST + 1:
        rows[_FIRST + 1 : -_LAST] = [("...", *[""] * 6)]
    if not any(pair.model for pair in steps):
        rows = [row[:-1] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{c:>{w}}" for c, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines)


def _row(pair: StepPair) -> tuple[str, ...]:
    differ = len(pair.differing)
    return (
        str(pair.step),
        _numbers(pair.original.losses),
        _numbers(pair.port.losses),
        {True: "equal", False: "differs", None: ""}[pair.same_loss],
        "same" if pair.same_batch else "",
        f"{differ} differ" if differ else "equal",
        pair.model,
    )


def _numbers(losses: Sequence[float]) -> str:
    """Format the last loss of an update with all digits of float32, and the number of losses."""
    if not losses:
        return "-"
    more = f" (of {len(losses)})" if len(losses) > 1 else ""
    return f"{losses[-1]:.9g}{more}"


def _verdict(comparison: Comparison) -> str:
    """Format the verdict: first divergence of port and original, and a hint for debugging."""
    first = comparison.difference
    if first is None:
        count = len(comparison.steps)
        steps = "1 step" if count == 1 else f"{count} steps"
        return (
            f"The port is equal to its original for {steps}: losses and {comparison.compared} "
            f"tensors{_of_models(comparison)}, bit for bit."
        )
    lines = [f"The port differs from its original, first in {_place(first)}."]
    for name, line in zip(("original", "port"), first.lines, strict=True):
        if line:
            lines.append(f"  {name + ':':10}{line}")
    return "\n".join([*lines, first.meaning])


def _of_models(comparison: Comparison) -> str:
    """Format the number of training steps of each model; empty for a single model."""
    counts = Counter(pair.model for pair in comparison.steps)
    if len(counts) < 2:
        return ""
    *each, last = (f"{name} ({count})" for name, count in counts.items())
    return f" of {', '.join(each)} and {last}"


def _place(first: Difference) -> str:
    if first.kind == "steps":
        return f"step {first.step}, which they do not both make"
    far = "" if first.far is None else f", by {first.far:.1e} of it"
    owner = f" of {first.model}" if first.model else ""
    if first.kind == "loss":
        return f"the loss of step {first.step}{owner and ','}{owner}{far}"
    when = f"after step {first.step}"
    if not first.step:
        when = "before its first step" if owner else "before the first step"
    return f"{first.kind} {first.name!r}{owner} {when}{far}"
