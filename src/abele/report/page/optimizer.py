"""Optimizer: its class, the values of its groups, and their changes."""

from __future__ import annotations

from abele.report import words
from abele.report.optimizer import Optimizer
from abele.report.page.markup import Content, Html, long_table, section, table, tag
from abele.report.record import Run

_MOST = 12  # rows of a table at first
#: Values as they are shown, by name and by how many calls were made before.
_Texts = dict[str, dict[int, str]]


def optimizer(run: Run) -> Html | None:
    """Return the section; None for inference and older files."""
    if run.optimizer is None:
        return None
    known = run.optimizer
    texts = _texts(known)
    parts: list[Content] = [tag("p", tag("code", known.name)), _groups(known, texts)]
    if known.values:
        rows: list[list[Content]] = [[name, texts[name][0]] for name in known.values]
        parts.append(table(("of all", "value"), rows, numbers=(1,)))
    if known.changes:
        parts += [tag("p", _counted(known, texts)), _changes(known, texts)]
    return section("Optimizer", parts, name="optimizer")


def _texts(known: Optimizer) -> _Texts:
    texts: _Texts = {}
    for name in {**known.begins_with(), **known.latest()}:
        history = list(known.history(name))
        values = words.settings([value for _, value in history])
        texts[name] = {calls: text for (calls, _), text in zip(history, values, strict=True)}
    return texts


def _groups(known: Optimizer, texts: _Texts) -> Html:
    names = list(dict.fromkeys(name for group in known.groups for name in group.values))
    rows: list[list[Content]] = [
        [
            str(index),
            f"{group.parameters:,}",
            *(texts[f"group{index}.{name}"][0] if name in group.values else "" for name in names),
        ]
        for index, group in enumerate(known.groups)
    ]
    heads = ("group", "tensors", *names)
    return long_table(heads, rows, numbers=tuple(range(1, len(heads))), most=_MOST)


def _counted(known: Optimizer, texts: _Texts) -> str:
    """Return the number of changes, and the value after the last."""
    said = words.count(len(known.changes) + known.left_out, "change")
    last = known.changes[-1]
    latest = ", ".join(f"{name} {texts[name][last.calls]}" for name in last.values)
    left = f" {known.left_out:,} before the last are not kept." if known.left_out else ""
    return f"{said}, the last before call {last.calls + 1:,}: {latest}.{left}"


def _changes(known: Optimizer, texts: _Texts) -> Html:
    rows: list[list[Content]] = [
        [
            f"{each.calls + 1:,}",
            ", ".join(f"{name} {texts[name][each.calls]}" for name in each.values),
        ]
        for each in known.changes
    ]
    return long_table(("from call", "values"), rows, numbers=(0,), most=_MOST)
