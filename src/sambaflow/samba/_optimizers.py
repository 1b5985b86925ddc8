"""Conversion of optimizers to a program's update rule, and its run-time values."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from abele.capture import gradient_hooks
from abele.step import optimizers as torch_optimizers
from abele.step.optimizers import PAIRS, Kind
from abele.step.update_rules import Group, UpdateRule
from sambaflow.errors import UsageError
from sambaflow.samba._arguments import check

# What may change at each run.
RUNTIME = ("lr", "momentum", "weight_decay")


def as_list(optimizers: Any) -> list[torch.optim.Optimizer]:
    """Return the optimizers as a list, from None, one optimizer or several."""
    if optimizers is None:
        return []
    listed = list(optimizers) if isinstance(optimizers, list | tuple) else [optimizers]
    for each in listed:
        if not isinstance(each, torch.optim.Optimizer):
            raise UsageError(
                f"Expected optimizers of samba.optim or torch.optim, found {type(each).__name__}."
            )
    return listed


def to_rule(
    optimizers: Sequence[torch.optim.Optimizer], names: Mapping[int, str]
) -> UpdateRule | None:
    """Return the update rule of all parameter groups; None without optimizers.

    Parameters have their names by ``id``.
    """
    if not optimizers:
        return None
    hooks = filter(None, map(gradient_hooks.refused_around_step, optimizers))
    for refused in hooks:
        raise UsageError(refused)
    kinds = {_kind(each).rule: _kind(each) for each in optimizers}
    norms = {getattr(each, "max_grad_norm", None) for each in optimizers}
    if len(kinds) > 1 or len(norms) > 1:
        raise UsageError(
            f"Several optimizers have to be of one class and one max_grad_norm, found "
            f"{', '.join(type(o).__name__ for o in optimizers)} with {norms}. Use parameter groups."
        )
    (kind,) = kinds.values()
    groups = [_group(o, group, kind, names) for o in optimizers for group in o.param_groups]
    param_names = [name for group in groups for name in group.params]
    twice = sorted({name for name in param_names if param_names.count(name) > 1})
    if twice:
        raise UsageError(
            f"Two optimizers hold the same parameters: {', '.join(twice[:8])}. Give each to one."
        )
    norm = norms.pop()
    return UpdateRule(
        kind=kind.rule, groups=tuple(groups), max_grad_norm=math.inf if norm is None else norm
    )


def _kind(optimizer: torch.optim.Optimizer) -> Kind:
    kind = torch_optimizers.kind_of(optimizer)
    if kind is not None:
        return kind
    reason = torch_optimizers.why_not(optimizer)
    because = f": {reason}" if reason else ""
    raise UsageError(
        f"Optimizer {type(optimizer).__name__} cannot be compiled{because}. Use SGD, Adam or AdamW "
        f"of samba.optim, or torch's {torch_optimizers.names()}."
    )


def _group(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], kind: Kind, names: Mapping[int, str]
) -> Group:
    refused = torch_optimizers.refused(group)
    if group.get("dampening"):
        refused = "dampening", "A program dampens the first step too, and torch does not."
    if refused is not None:
        option, reason = refused
        raise UsageError(f"{option}={group[option]!r} cannot be compiled. {reason} Leave it unset.")
    values: dict[str, float] = {"tf_variant": False} if kind.rule == "rmsprop" else {}
    for name in kind.numbers:
        if name in PAIRS:
            values |= zip(PAIRS[name], map(float, group[name]), strict=True)
        else:
            values[name] = float(group[name])
    values |= torch_optimizers.switches(optimizer, kind.rule, group)
    variable = {name for name in RUNTIME if name in values}
    if values.get("momentum") == 0:
        # Without momentum there is no buffer, and a buffer cannot appear later.
        variable.discard("momentum")
    params = tuple(names[id(p)] for p in group["params"] if id(p) in names)
    return Group(params=params, values=values, variable=frozenset(variable))


def hyper_values(rule: UpdateRule, wanted: Mapping[str, Any]) -> dict[str, float]:
    """Return run-time hyperparameters by slot, from one value or one per parameter group."""
    needed = 'a dictionary of numbers by name, such as {"lr": 0.1}'
    check("hyperparam_dict", wanted, Mapping, needed)
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
        numbers = [_number(name, item) for item in several]
        for index, (group, number) in enumerate(zip(rule.groups, numbers, strict=True)):
            if name in group.variable:
                values[f"group{index}.{name}"] = number
            elif number != group.values[name]:
                raise UsageError(
                    f"{name}={number} was asked for at run time, but the program was compiled "
                    f"without {name}. Construct the optimizer with {name} above 0 and compile."
                )
    return values


def _number(name: str, value: Any) -> float:
    """Convert a run-time hyperparameter to a float, also from a tensor of one element."""
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise UsageError(
            f"hyperparam_dict has {name}={value!r}, needed is a finite number from 0 on. Pass one "
            "number, or one per parameter group."
        )
    return number


def present_values(optimizers: Sequence[torch.optim.Optimizer], rule: UpdateRule) -> dict:
    """Return the optimizers' current hyperparameters by slot, for the rule's slots."""
    groups = [group for each in optimizers for group in each.param_groups]
    return {
        f"group{index}.{name}": float(group[name])
        for index, (compiled, group) in enumerate(zip(rule.groups, groups, strict=True))
        for name in compiled.variable
    }
