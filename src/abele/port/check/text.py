"""Writes a comparison as text: a row per step, what it means, and notes."""

from __future__ import annotations

from collections.abc import Sequence

from abele.port.check.comparison import Comparison, Difference, StepPair

_FIRST, _LAST = 12, 3


def text(comparison: Comparison) -> str:
    """The whole answer."""
    parts = [table(comparison.steps), verdict(comparison)]
    parts += [f"Note: {note}." for note in comparison.notes]
    return "\n".join(parts)


def table(steps: Sequence[StepPair]) -> str:
    """A row per step; of many equal ones the first and the last."""
    rows: list[tuple[str, ...]] = [("step", "original", "port", "loss", "batch", "tensors")]
    shown = list(steps)
    if len(shown) > _FIRST + _LAST + 1:
        shown = [*shown[:_FIRST], *shown[-_LAST:]]
    for pair in shown:
        if pair.step == steps[-1].step - _LAST + 1 and len(shown) < len(steps):
            rows.append(("...", "", "", "", "", ""))
        rows.append(_row(pair))
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
            "tensors, bit for bit."
        )
    lines = [f"The port differs from its original, first in {_place(first)}."]
    for name, line in zip(("original", "port"), first.lines, strict=True):
        if line:
            lines.append(f"  {name + ':':10}{line}")
    return "\n".join([*lines, first.meaning])


def _place(first: Difference) -> str:
    if first.kind == "steps":
        return f"step {first.step}, which only one of them makes"
    far = "" if first.far is None else f", by {first.far:.1e} of it"
    if first.kind == "loss":
        return f"the loss of step {first.step}{far}"
    when = "before the first step" if not first.step else f"after step {first.step}"
    return f"{first.kind} {first.name!r} {when}{far}"
