"""How the optimizers of two runs differ, and from which update on."""

from __future__ import annotations

import math
from collections.abc import Iterator

from abele.report import words
from abele.report.difference import Difference, of_numbers
from abele.report.journal import Journal
from abele.report.optimizer import Optimizer
from abele.report.record import Run

_KIND = "optimizer"


def of_optimizers(first: tuple[Run, Journal], second: tuple[Run, Journal]) -> list[Difference]:
    """Differences of class, groups and values, a rate before all others.

    Values are compared as far as both runs came. Nothing is said if a record does not have them.

    Args:
        first: a run.
        second: another one.
    """
    one, other = first[0].optimizer, second[0].optimizer
    if one is None or other is None:
        return []
    differing = [*_of_classes(one, other)]
    if len(one.groups) != len(other.groups):
        counts = (str(len(each.groups)) for each in (one, other))
        return [*differing, _said("groups of parameters", *counts)]
    updates = [_Updates(*files) for files in (first, second)]
    names = {**one.begins_with(), **one.latest(), **other.begins_with(), **other.latest()}
    for name in sorted(names, key=lambda each: not each.endswith(".lr")):
        differing += _of_value(_words(name, one), updates[0], updates[1], name)
    return differing


def _of_classes(one: Optimizer, other: Optimizer) -> Iterator[Difference]:
    if one.name != other.name:
        yield _said("class", one.name, other.name)
    for index, (a, b) in enumerate(zip(one.groups, other.groups, strict=False)):
        if a.parameters != b.parameters:
            yield _said(
                _words(f"group{index}.tensors", one), f"{a.parameters:,}", f"{b.parameters:,}"
            )


def _said(what: str, first: str, second: str) -> Difference:
    return Difference(kind=_KIND, what=what, first=first, second=second)


def _words(name: str, optimizer: Optimizer) -> str:
    """``lr of group 1``; without the group where there is only one."""
    group, _, value = name.rpartition(".")
    if len(optimizer.groups) < 2 or not group:
        return value
    return f"{value} of group {group.removeprefix('group')}"


class _Updates:
    """The values of a run by updates."""

    def __init__(self, run: Run, journal: Journal):
        self._optimizer, self._journal = run.optimizer, journal
        self._a_call = run.configuration.get("device_iterations", 1)

    def values(self, name: str) -> dict[int, float]:
        """By how many updates were made before it."""
        assert self._optimizer is not None
        return {calls * self._a_call: value for calls, value in self._optimizer.history(name)}

    def known(self) -> float:
        """So many updates were made of which every value is known."""
        assert self._optimizer is not None
        return min(self._journal.calls, self._optimizer.known_calls()) * self._a_call


def _of_value(what: str, one: _Updates, other: _Updates, name: str) -> Iterator[Difference]:
    """The first difference of one value, if there is any."""
    first, second = one.values(name), other.values(name)
    if not (0 in first and 0 in second):
        if first.get(0) != second.get(0):
            yield _said(what, *(str(each.get(0, "not there")) for each in (first, second)))
        return
    a = b = math.nan
    for made in sorted(first.keys() | second.keys()):
        a, b = first.get(made, a), second.get(made, b)
        if made and made >= min(one.known(), other.known()):
            return
        if a != b:
            since = f", from update {made + 1}" if made else ""
            say = words.setting if words.setting(a) != words.setting(b) else repr
            yield of_numbers(_KIND, f"{what}{since}", a, b, say)
            return
