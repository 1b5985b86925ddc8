"""Values of a run's optimizer, and their changes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # records are read without torch
    from abele.step.update_rules import UpdateRule

#: So many changes are kept one by one, and the latest.
KEPT = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Parameters that are updated with the same numbers.

    Attributes:
        parameters: number of tensors.
        values: before the first call, by name: ``lr``, ``momentum``, ``beta1``, ...
    """

    parameters: int
    values: dict[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """Values of an optimizer that changed between two calls.

    Attributes:
        calls: number of calls before it.
        values: those that change, by name: ``group0.lr``, ``loss_scaling``.
    """

    calls: int
    values: dict[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The optimizer of a run.

    Attributes:
        name: of its class, such as ``torch.optim.SGD``; of its rule if no object was there.
        groups: with their values before the first call.
        values: that belong to no group, before the first call: ``loss_scaling`` and
            ``max_grad_norm`` where they have an effect.
        changes: what was set between calls, in order; not what a device changes by itself.
        left_out: number of changes left out before the last one.
    """

    name: str
    groups: tuple[ParameterGroup, ...]
    values: dict[str, float] = dataclasses.field(default_factory=dict[str, float])
    changes: tuple[Change, ...] = ()
    left_out: int = 0

    def begins_with(self) -> dict[str, float]:
        """Return all values before the first call, by the names that changes have."""
        of_groups = {
            f"group{index}.{name}": value
            for index, group in enumerate(self.groups)
            for name, value in group.values.items()
        }
        return of_groups | self.values

    def latest(self) -> dict[str, float]:
        """Return all values after the last change."""
        values = self.begins_with()
        for each in self.changes:
            values |= each.values
        return values

    def known_calls(self) -> float:
        """Return up to which call all values are known; infinity if no change was left out."""
        return self.changes[KEPT - 1].calls if self.left_out else math.inf

    def history(self, name: str) -> Iterator[tuple[int, float]]:
        """Return the values of one name, each with the number of calls before it."""
        begin = self.begins_with()
        if name in begin:
            yield 0, begin[name]
        for each in self.changes:
            if name in each.values:
                yield each.calls, each.values[name]


def optimizer_of(rule: UpdateRule, name: str, restored: Mapping[str, float]) -> Optimizer:
    """Return the record of an optimizer before the first call.

    Args:
        rule: its update rule.
        name: name of its class.
        restored: values from a saved state, which take precedence, by name.
    """
    groups = tuple(
        ParameterGroup(
            parameters=len(group.params),
            values={
                key: float(restored.get(f"group{index}.{key}", value))
                for key, value in group.values.items()
            },
        )
        for index, group in enumerate(rule.groups)
    )
    return Optimizer(name=name, groups=groups, values=_of_all(rule, restored))


def _of_all(rule: UpdateRule, restored: Mapping[str, float]) -> dict[str, float]:
    values: dict[str, float] = {}
    if rule.loss_scaling_variable or rule.loss_scaling != 1:
        values["loss_scaling"] = float(restored.get("loss_scaling", rule.loss_scaling))
    if math.isfinite(rule.max_grad_norm):
        values["max_grad_norm"] = float(rule.max_grad_norm)
    return values


def changed(before: Optimizer, now: Optimizer, calls: int) -> Optimizer:
    """Return the record of an optimizer after values were set.

    Args:
        before: the record before.
        now: a record that begins with the new values.
        calls: number of calls so far.
    """
    if not calls:
        return now
    known = before.latest()
    values = {name: value for name, value in now.begins_with().items() if known.get(name) != value}
    if not values:
        return before
    changes, left_out = list(before.changes), before.left_out
    if changes and changes[-1].calls == calls:  # no call was made with these
        values = changes.pop().values | values
    if len(changes) > KEPT:  # the one after these is the latest, whose names this one takes over
        values, left_out = changes.pop().values | values, left_out + 1
    changes.append(Change(calls=calls, values=values))
    return dataclasses.replace(before, changes=tuple(changes), left_out=left_out)
