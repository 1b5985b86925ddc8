"""From optimizer objects to the update rule of a program, and their state in both directions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from abele.update_rules import Group, UpdateRule
from sambaflow.errors import UsageError

_KINDS: tuple[tuple[type, str, dict[str, float]], ...] = (
    (torch.optim.SGD, "sgd", {"dampening": 0.0}),
    # AdamW before Adam: torch derives one from the other.
    (torch.optim.AdamW, "adam", {"decoupled": True}),
    (torch.optim.Adam, "adam", {"decoupled": False}),
    (torch.optim.RMSprop, "rmsprop", {"tf_variant": False}),
)
_NUMBERS = ("lr", "momentum", "weight_decay", "eps", "alpha")
# What may change at each run.
RUNTIME = ("lr", "momentum", "weight_decay")
_REFUSED = {"amsgrad": False, "maximize": False, "dampening": 0, "differentiable": False}


def as_list(optimizers: Any) -> list[torch.optim.Optimizer]:
    """None, one optimizer or several, as a list."""
    if optimizers is None:
        return []
    found = list(optimizers) if isinstance(optimizers, list | tuple) else [optimizers]
    for each in found:
        if not isinstance(each, torch.optim.Optimizer):
            raise UsageError(
                f"Expected optimizers of samba.optim or torch.optim, found {type(each).__name__}."
            )
    return found


def to_rule(
    optimizers: Sequence[torch.optim.Optimizer], names: Mapping[int, str]
) -> UpdateRule | None:
    """One rule with a group per parameter group; None without optimizers.

    Args:
        optimizers: all of one kind.
        names: of the model's parameters, by ``id``.

    Raises:
        UsageError: kinds that differ or do not exist here, an option that no program has, a
            parameter held twice.
    """
    if not optimizers:
        return None
    kinds = {_kind(each)[0]: _kind(each) for each in optimizers}
    norms = {getattr(each, "max_grad_norm", None) for each in optimizers}
    if len(kinds) > 1 or len(norms) > 1:
        raise UsageError(
            f"Several optimizers have to be of one class and one max_grad_norm, found "
            f"{', '.join(type(o).__name__ for o in optimizers)} with {norms}. Use parameter groups."
        )
    ((kind, constants),) = kinds.values()
    groups = [_group(group, kind, constants, names) for o in optimizers for group in o.param_groups]
    held = [name for group in groups for name in group.params]
    twice = sorted({name for name in held if held.count(name) > 1})
    if twice:
        raise UsageError(
            f"Two optimizers hold the same parameters: {', '.join(twice[:8])}. Give each to one."
        )
    norm = norms.pop()
    return UpdateRule(
        kind=kind, groups=tuple(groups), max_grad_norm=math.inf if norm is None else norm
    )


def _kind(optimizer: torch.optim.Optimizer) -> tuple[str, dict[str, float]]:
    for known, kind, constants in _KINDS:
        if isinstance(optimizer, known):
            return kind, constants
    raise UsageError(
        f"Optimizer {type(optimizer).__name__} cannot be compiled. Use SGD, Adam or AdamW of "
        "samba.optim, or torch's classes of these names and RMSprop."
    )


def _group(
    group: Mapping[str, Any], kind: str, constants: Mapping[str, float], names: Mapping[int, str]
) -> Group:
    for option, neutral in _REFUSED.items():
        if group.get(option, neutral) not in (neutral, None):
            raise UsageError(f"{option}={group[option]!r} cannot be compiled. Leave it unset.")
    values: dict[str, float] = dict(constants)
    values |= {name: float(group[name]) for name in _NUMBERS if name in group}
    if "betas" in group:
        values["beta1"], values["beta2"] = map(float, group["betas"])
    for switch in ("nesterov", "centered"):
        if switch in group:
            values[switch] = bool(group[switch])
    variable = {name for name in RUNTIME if name in values}
    if values.get("momentum") == 0:
        # Without momentum there is no buffer, and a buffer cannot appear later.
        variable.discard("momentum")
    params = tuple(names[id(p)] for p in group["params"] if id(p) in names)
    return Group(params=params, values=values, variable=frozenset(variable))


def hyper_values(rule: UpdateRule, wanted: Mapping[str, Any]) -> dict[str, float]:
    """Run-time values by slot.

    Args:
        rule: what was compiled.
        wanted: by name, as programs write them: a number for all parameter groups, or one number
            per group.

    Raises:
        UsageError: an unknown name, a wrong number of values, or momentum that was not compiled.
    """
    values = {}
    for name, value in wanted.items():
        if name not in RUNTIME or not any(name in group.values for group in rule.groups):
            known = [n for n in RUNTIME if any(n in group.values for group in rule.groups)]
            raise UsageError(
                f"hyperparam_dict has {name!r}, but a run can change {', '.join(known)} of this "
                "program. Remove it, or construct the optimizer with it."
            )
        several = list(value) if isinstance(value, list | tuple) else [value] * len(rule.groups)
        if len(several) != len(rule.groups):
            raise UsageError(
                f"hyperparam_dict has {len(several)} values of {name} for {len(rule.groups)} "
                "parameter groups. Pass one number, or one per group."
            )
        for index, (group, number) in enumerate(zip(rule.groups, several, strict=True)):
            if name in group.variable:
                values[f"group{index}.{name}"] = float(number)
            elif float(number) != group.values[name]:
                raise UsageError(
                    f"{name}={number} was asked for at run time, but the program was compiled "
                    f"without {name}. Construct the optimizer with {name} above 0 and compile."
                )
    return values


def present_values(optimizers: Sequence[torch.optim.Optimizer], rule: UpdateRule) -> dict:
    """Values of the optimizers' groups by slot, for the slots that a rule has."""
    groups = [group for each in optimizers for group in each.param_groups]
    return {
        f"group{index}.{name}": float(group[name])
        for index, (compiled, group) in enumerate(zip(rule.groups, groups, strict=True))
        for name in compiled.variable
    }


def _states(
    optimizers: Sequence[torch.optim.Optimizer], names: Mapping[int, str]
) -> Iterator[tuple[str, torch.Tensor, dict[str, Any]]]:
    """Name, parameter and state of everything the optimizers hold."""
    for each in optimizers:
        for group in each.param_groups:
            for param in group["params"]:
                if id(param) in names:
                    yield names[id(param)], param, each.state[param]


def host_state(
    optimizers: Sequence[torch.optim.Optimizer], names: Mapping[int, str]
) -> dict[str, torch.Tensor]:
    """The state that the optimizers have on the host, by slot; empty before the first step."""
    return {
        f"{name}.{key}": torch.as_tensor(value)
        for name, _, state in _states(optimizers, names)
        for key, value in state.items()
        if value is not None
    }


def to_host(
    optimizers: Sequence[torch.optim.Optimizer],
    names: Mapping[int, str],
    values: Mapping[str, torch.Tensor],
) -> None:
    """Writes a program's optimizer state into the objects, in the form that torch keeps it."""
    for name, param, state in _states(optimizers, names):
        prefix = f"{name}."
        for slot, value in values.items():
            if slot.startswith(prefix) and "." not in slot.removeprefix(prefix):
                key = slot.removeprefix(prefix)
                dtype = torch.float32 if key == "step" else param.dtype
                state[key] = value.detach().to(device="cpu", dtype=dtype, copy=True)
