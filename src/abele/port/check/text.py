"""Writes a comparison as text: a row per step, what it means, and notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from abele.port.check.comparison import Comparison, Difference, StepPair

_FIRST, _LAST = 12, 3


def text(comparison: Comparison) -> str:
    """The whole answer."""
    parts = [table(comparison.steps, comparison.models), verdict(comparison)]
    parts += [f"Note: {note}." for note in comparison.notes]
    return "\n".join(parts)


def table(steps: Sequence[StepPair], models: Sequence[str] = ()) -> str:
    """A row per step, with its model if there are several; of many the first and the last."""
    names = models if len(models) > 1 else ()
    rows: list[tuple[str, ...]] = [("step", "original", "port", "loss", "batch", "tensors")]
    if names:
        rows[0] += ("model",)
    shown = list(steps)
    if len(shown) > _FIRST + _LAST + 1:
        shown = [*shown[:_FIRST], *shown[-_LAST:]]
    for pair in shown:
        if pair.step == steps[-1].step - _LAST + 1 and len(shown) < len(steps):
            rows.append(("...", *[""] * (len(rows[0]) - 1)))
        rows.append((*_row(pair), *([names[pair.model]] if names else [])))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{c:>{w}}" for c, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines)


def _row(pair: StepPair) -> tuple[str, ...]:
    differ = len(pair.differing)
    return (
        str(pair.step),
        _numbers(pair.original),
        _numbers(pair.port),
        {True: "equal", False: "differs", None: ""}[pair.same_loss],
        {True: "same", False: "", None: ""}[pair.same_batch],
        f"{differ} differ" if differ else "equal",
    )


def _numbers(losses: Sequence[float]) -> str:
    """Losses with all digits of float32; of several the last."""
    if not losses:
        return "-"
    more = f" (of {len(losses)})" if len(losses) > 1 else ""
    return f"{losses[-1]:.9g}{more}"


def verdict(comparison: Comparison) -> str:
    """Whether they are equal, and if not, where they part and what to look at."""
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
    """How many steps each model has made, if there are several."""
    if len(comparison.models) < 2:
        return ""
    counts = Counter(pair.model for pair in comparison.steps)
    each = [f"{name} ({counts[number]})" for number, name in enumerate(comparison.models)]
    return f" of {', '.join(each[:-1])} and {each[-1]}"


def _place(first: Difference) -> str:
    if first.kind == "steps":
        return f"step {first.step}, which they do not both make"
    far = "" if first.far is None else f", by {first.far:.1e} of it"
    if first.kind == "loss":
        owner = f", of {first.model}" if first.model else ""
        return f"the loss of step {first.step}{owner}{far}"
    owner = f" of {first.model}" if first.model else ""
    when = f"after step {first.step}"
    if not first.step:
        when = "before its first step" if owner else "before the first step"
    return f"{first.kind} {first.name!r}{owner} {when}{far}"
