"""What weights are updated with: the optimizer's class, the values of its groups, and changes."""

from __future__ import annotations

from abele.report import words
from abele.report.optimizer import Optimizer
from abele.report.page.markup import Content, Html, long_table, section, table, tag
from abele.report.record import Run

_MOST = 12  # rows of a table at first


def optimizer(run: Run) -> Html | None:
    """The section; nothing for a run that does not train, or of an older file."""
    if run.optimizer is None:
        return None
    known = run.optimizer
    parts: list[Content] = [tag("p", tag("code", known.name)), _groups(known)]
    if known.values:
        rows: list[list[Content]] = [
            [name, words.setting(value)] for name, value in known.values.items()
        ]
        parts.append(table(("of all", "value"), rows, numbers=(1,)))
    if known.changes:
        parts += [tag("p", _counted(known)), _changes(known)]
    return section("Optimizer", parts, name="optimizer")


def _groups(known: Optimizer) -> Html:
    names = list(dict.fromkeys(name for group in known.groups for name in group.values))
    rows: list[list[Content]] = [
        [
            str(index),
            f"{group.parameters:,}",
            *(words.setting(group.values[name]) if name in group.values else "" for name in names),
        ]
        for index, group in enumerate(known.groups)
    ]
    heads = ("group", "tensors", *names)
    return long_table(heads, rows, numbers=tuple(range(1, len(heads))), most=_MOST)


def _counted(known: Optimizer) -> str:
    """How often values were set, and where that led to."""
    said = words.count(len(known.changes) + known.left_out, "change")
    last = known.changes[-1]
    latest = ", ".join(f"{name} {words.setting(value)}" for name, value in last.values.items())
    left = f" {known.left_out:,} before the last are not kept." if known.left_out else ""
    return f"{said}, the last before call {last.calls + 1:,}: {latest}.{left}"


def _changes(known: Optimizer) -> Html:
    rows: list[list[Content]] = [
        [
            f"{each.calls + 1:,}",
            ", ".join(f"{name} {words.setting(value)}" for name, value in each.values.items()),
        ]
        for each in known.changes
    ]
    return long_table(("from call", "values"), rows, numbers=(0,), most=_MOST)
