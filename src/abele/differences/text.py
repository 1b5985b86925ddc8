"""An answer as people read it: where they part, results, and the worst operations."""

from __future__ import annotations

import math
from collections.abc import Sequence

from abele.differences.answer import Answer, Result, Worst

_RESULTS = 12


def text(answer: Answer) -> str:
    """The whole answer."""
    parts = [_sentence(answer), results(answer)]
    if answer.worst:
        parts += ["", "Operations by themselves, given float64's operands:", worst(answer)]
    parts += [f"Note: {note}." for note in answer.notes]
    return "\n".join(parts)


def _sentence(answer: Answer) -> str:
    first, second = answer.names
    if not answer.parted:
        return f"{first} and {second} are equal but for rounding."
    if answer.blamed is None:
        return f"{first} and {second} part."
    return "\n".join(
        [f"{first} and {second} part at {place(answer.blamed.operation)}", _facts(answer)]
    )


def place(made: Worst) -> str:
    """An operation in words: operator, type, phase, module and line."""
    where = [made.phase and f"in {made.phase}", made.module and f"module {made.module}", made.line]
    return ", ".join([f"{made.operator} ({made.node}) {made.type}", *filter(None, where)])


def _facts(answer: Answer) -> str:
    assert answer.blamed is not None
    blamed, (first, second) = answer.blamed, answer.names
    one, two = blamed.operation.errors
    differ, count = blamed.elements
    return (
        f"  because of: {blamed.by}. {blamed.why}\n"
        f"  error against float64: {first} {_error(one)}, {second} {_error(two)}; "
        f"{differ} of {count} elements differ"
    )


def results(answer: Answer) -> str:
    """A row per result; the worst ones where there are many."""
    rows: list[tuple[str, ...]] = [("result", *answer.names, "")]
    ranked = sorted(answer.results, key=_rank)
    for each in ranked[:_RESULTS]:
        rows.append((each.name, *map(_error, each.errors), _remark(each)))
    lines = _aligned(rows)
    if len(ranked) > _RESULTS:
        lines.append(f"... and {len(ranked) - _RESULTS} with smaller errors")
    return "\n".join(lines)


def _rank(each: Result) -> tuple[bool, bool, float]:
    return not each.parted, each.only_rounding, -max(each.errors)


def _remark(each: Result) -> str:
    if each.parted:
        return "parts"
    return "only rounding" if each.only_rounding else ""


def worst(answer: Answer) -> str:
    """A row per operation."""
    rows: list[tuple[str, ...]] = [("operation", "type", *answer.names, "line")]
    rows += [_row(each) for each in answer.worst]
    return "\n".join(_aligned(rows))


def _row(made: Worst) -> tuple[str, ...]:
    alone = made.alone or made.errors
    return (made.operator, made.type, *map(_error, alone), made.line or made.module)


def _error(value: float) -> str:
    if math.isinf(value):
        return "not finite"
    return f"{value:.1e}" if value else "0"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
