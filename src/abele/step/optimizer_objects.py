"""Conversion of the state of torch's optimizer objects, on the host, to and from program slots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from abele.step.further_rules import SCALARS
from abele.step.update_rules import RULES, Group, UpdateRule

# Entries that torch may keep for a parameter and the settings do not use, such as the buffer of a
# momentum that has become zero. They are not read, in torch as here.
_UNUSED = {
    "sgd": {"momentum_buffer"},
    "rmsprop": {"momentum_buffer", "grad_avg"},
    "adam": {"max_exp_avg_sq"},
}
# torch starts these anew where they are missing.
_MAY_BE_MISSING = frozenset({"momentum_buffer"})


def host_state(
    optimizers: Sequence[torch.optim.Optimizer], names: Mapping[int, str]
) -> dict[str, torch.Tensor]:
    """Return the state that optimizers have on the host, by slot; empty before their first step.

    Args:
        optimizers: of ``torch.optim``, or derived from its classes.
        names: of the model's parameters, by ``id``.
    """
    return {
        f"{name}.{key}": torch.as_tensor(value)
        for name, _, state in _states(optimizers, names)
        for key, value in state.items()
        if value is not None
    }


def has_stepped(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer has state of steps on the host, or that was loaded."""
    states = [state for state in optimizer.state.values() if state]
    # Adagrad has its sums from the constructor on.
    made = isinstance(optimizer, torch.optim.Adagrad) and not any(s["step"] for s in states)
    return bool(states) and not made


def initial_values(rule: UpdateRule, slots: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what state begins with.

    Args:
        rule: whose state it is.
        slots: tensors of the same shapes and element types, by slot.
    """
    begin = {
        f"{name}.{key}": value.item()
        for group in rule.groups
        for key, value in _initial(rule, group).items()
        for name in group.params
    }
    return {slot: torch.full_like(value, begin[slot]) for slot, value in slots.items()}


def to_host(
    optimizers: Sequence[torch.optim.Optimizer],
    names: Mapping[int, str],
    values: Mapping[str, torch.Tensor],
) -> None:
    """Write a program's optimizer state into the objects, in the form that torch keeps it.

    Args:
        optimizers: as for ``host_state``.
        names: likewise.
        values: by slot; parameters without any are left alone.
    """
    by_parameter: dict[str, dict[str, torch.Tensor]] = {}
    for slot, value in values.items():
        name, _, key = slot.rpartition(".")
        by_parameter.setdefault(name, {})[key] = value
    for optimizer in optimizers:
        for name, param in _parameters(optimizer, names):
            for key, value in by_parameter.get(name, {}).items():
                dtype = torch.float32 if key in SCALARS else param.dtype
                optimizer.state[param][key] = value.detach().to("cpu", dtype, copy=True)


def problem(
    optimizer: torch.optim.Optimizer, rule: UpdateRule, names: Mapping[int, str]
) -> str | None:
    """Return why a program cannot continue from an optimizer's state on the host; else None.

    Args:
        optimizer: with or without state.
        rule: what it has become.
        names: as for ``host_state``.
    """
    groups = {name: group for group in rule.groups for name in group.params}
    for name, param, state in _states([optimizer], names):
        keys = {key for key, value in state.items() if value is not None}
        required = set(_initial(rule, groups[name]))
        known = required | _UNUSED.get(rule.kind, set())
        shapes = {key: list(torch.as_tensor(state[key]).shape) for key in keys & known}
        param_shape = list(param.shape)
        unlike = sorted(k for k, s in shapes.items() if s != ([] if k in SCALARS else param_shape))
        if unknown := sorted(keys - known):
            return f"{name} has {', '.join(unknown)}, which this optimizer does not use"
        if missing := sorted(required - keys - _MAY_BE_MISSING):
            return f"{name} lacks {', '.join(missing)}"
        if unlike:
            return (
                f"{unlike[0]} of {name} has shape {shapes[unlike[0]]}, the parameter {param_shape}"
            )
    return None


def _initial(rule: UpdateRule, group: Group) -> dict[str, torch.Tensor]:
    """The state of a parameter with one element: every rule begins with one number in a tensor."""
    return RULES[rule.kind].initial(torch.zeros(()), group.values)


def _parameters(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str]
) -> Iterator[tuple[str, torch.Tensor]]:
    for group in optimizer.param_groups:
        for param in group["params"]:
            if id(param) in names:
                yield names[id(param)], param


def _states(
    optimizers: Sequence[torch.optim.Optimizer], names: Mapping[int, str]
) -> Iterator[tuple[str, torch.Tensor, dict[str, Any]]]:
    """Yield name, parameter and state of everything that has some."""
    for optimizer in optimizers:
        for name, param in _parameters(optimizer, names):
            state = optimizer.state.get(param)
            if state:
                yield name, param, state
