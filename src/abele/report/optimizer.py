"""Records the hyperparameters of a run's optimizer, and their changes."""

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
    """A parameter group of a recorded optimizer.

    Attributes:
        parameters: number of tensors.
        values: hyperparameters before the first call: ``lr``, ``momentum``, ``beta1``, ...
    """

    parameters: int
    values: dict[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """A change of optimizer hyperparameters between two calls.

    Attributes:
        calls: number of calls before it.
        values: the new values by name: ``group0.lr``, ``loss_scaling``.
    """

    calls: int
    values: dict[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The recorded optimizer of a run, with its hyperparameters and their changes.

    Attributes:
        name: name of its class, such as ``torch.optim.SGD``, or else of its update rule.
        groups: parameter groups, with their values before the first call.
        values: values of no group before the first call: ``loss_scaling`` and ``max_grad_norm``
            if they have an effect.
        changes: changes by the program between calls, in order.
        left_out: number of omitted changes before the last one.
    """

    name: str
    groups: tuple[ParameterGroup, ...]
    values: dict[str, float] = dataclasses.field(default_factory=dict[str, float])
    changes: tuple[Change, ...] = ()
    left_out: int = 0

    def begins_with(self) -> dict[str, float]:
        """Return all hyperparameters before the first call, as ``group0.lr``."""
        of_groups = {
            f"group{index}.{name}": value
            for index, group in enumerate(self.groups)
            for name, value in group.values.items()
        }
        return of_groups | self.values

    def latest(self) -> dict[str, float]:
        """Return all hyperparameters after the last recorded change."""
        values = self.begins_with()
        for each in self.changes:
            values |= each.values
        return values

    def known_calls(self) -> float:
        """Return the number of calls with known hyperparameters; infinity if all are known."""
        return self.changes[KEPT - 1].calls if self.left_out else math.inf

    def history(self, name: str) -> Iterator[tuple[int, float]]:
        """Yield the values of a hyperparameter, each with the number of calls before it."""
        begin = self.begins_with()
        if name in begin:
            yield 0, begin[name]
        for each in self.changes:
            if name in each.values:
                yield each.calls, each.values[name]


def optimizer_of(rule: UpdateRule, name: str, restored: Mapping[str, float]) -> Optimizer:
    """Return the record of an optimizer before the first call.

    Args:
        rule: the update rule.
        name: name of the optimizer's class.
        restored: values from a saved state by name, which take precedence.
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
    """Return the record of an optimizer with a change of hyperparameters added.

    Args:
        before: the record without the change.
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
