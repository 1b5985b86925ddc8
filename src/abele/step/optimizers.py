"""Translation of ``torch.optim`` optimizers and their host state to update rules.

An argument is part of the computation, or it only changes the speed of torch's own loop, or setting
it is refused. A test reads torch's constructors and fails at an argument that has no row here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from abele.step.update_rules import RULES, SCALARS, UpdateRule


@dataclasses.dataclass(frozen=True)
class Kind:
    """An optimizer class, its update rule and its numeric arguments; covers derived classes.

    Attributes:
        rule: a key of ``update_rules.RULES``.
        numbers: arguments that are numbers, or pairs of numbers.
    """

    base: type
    rule: str
    numbers: tuple[str, ...]


_ADAM = ("lr", "betas", "eps", "weight_decay")
KINDS = (
    Kind(torch.optim.SGD, "sgd", ("lr", "momentum", "dampening", "weight_decay")),
    # AdamW before Adam: torch derives one from the other.
    Kind(torch.optim.AdamW, "adam", _ADAM),
    Kind(torch.optim.Adam, "adam", _ADAM),
    Kind(torch.optim.RMSprop, "rmsprop", ("lr", "alpha", "eps", "weight_decay", "momentum")),
    Kind(torch.optim.Adadelta, "adadelta", ("lr", "rho", "eps", "weight_decay")),
    Kind(
        torch.optim.Adagrad,
        "adagrad",
        ("lr", "lr_decay", "eps", "weight_decay", "initial_accumulator_value"),
    ),
    Kind(torch.optim.Adamax, "adamax", _ADAM),
    Kind(torch.optim.NAdam, "nadam", (*_ADAM, "momentum_decay")),
    Kind(torch.optim.RAdam, "radam", _ADAM),
    Kind(torch.optim.ASGD, "asgd", ("lr", "lambd", "alpha", "t0", "weight_decay")),
    Kind(torch.optim.Rprop, "rprop", ("lr", "etas", "step_sizes")),
)
#: Hyper-parameter names of an update rule for arguments that are pairs.
PAIRS: Mapping[str, tuple[str, str]] = {
    "betas": ("beta1", "beta2"),
    "etas": ("etaminus", "etaplus"),
    "step_sizes": ("step_size_min", "step_size_max"),
}
#: Reasons why optimizer classes have no update rule.
REFUSED: Mapping[type, str] = {
    torch.optim.LBFGS: "its step calls a closure for loss and gradients as often as their values "
    "ask for, and a program computes them once per update",
    torch.optim.SparseAdam: "it updates the rows that a sparse gradient has, and the gradients of "
    "a program are dense",
}


def kind_of(optimizer: object) -> Kind | None:
    """Return the row of an optimizer, of its own or of ``KINDS``; None for unknown classes."""
    kinds = (getattr(optimizer, "update_kind", None), *KINDS)
    return next((kind for kind in kinds if kind and isinstance(optimizer, kind.base)), None)


def names() -> str:
    """List the optimizer classes of ``torch.optim`` that have update rules, as text."""
    *listed, last = (kind.base.__name__ for kind in KINDS)
    return f"{', '.join(listed)} or {last}"


def why_not(optimizer: object) -> str | None:
    """Explain why no update rule can represent an optimizer; None for unknown classes."""
    reasons = (reason for kind, reason in REFUSED.items() if isinstance(optimizer, kind))
    return next(reasons, None)


#: Optimizer arguments that no program supports, and why.
REFUSED_ARGUMENTS: Mapping[str, str] = {
    "amsgrad": "No rule keeps the largest second moments.",
    "differentiable": "No gradient passes through an update.",
}

# Boolean hyper-parameters by update rule.
_SWITCHES = {"sgd": ("nesterov",), "rmsprop": ("centered",)}


def refused(group: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the first unsupported argument of a parameter group, and why; else None."""
    return next((item for item in REFUSED_ARGUMENTS.items() if group.get(item[0])), None)


def switches(optimizer: Any, rule: str, group: Mapping[str, Any]) -> dict[str, bool]:
    """Return the boolean arguments of a parameter group, as values of an update rule.

    Args:
        optimizer: the group is one of its groups.
        rule: a key of ``update_rules.RULES``.
        group: a dictionary of ``param_groups``.
    """
    values = {name: bool(group.get(name)) for name in (*_SWITCHES.get(rule, ()), "maximize")}
    if hasattr(optimizer, "bias_correction"):
        values["bias_correction"] = bool(optimizer.bias_correction)
    if rule in ("adam", "nadam", "radam"):
        default = isinstance(optimizer, torch.optim.AdamW)
        values["decoupled"] = bool(group.get("decoupled_weight_decay", default))
    return values


# Entries that torch may keep for a parameter and the settings do not use, such as the buffer of a
# momentum that has become zero. They are not read, in torch as here.
_UNUSED = {
    "sgd": {"momentum_buffer"},
    "rmsprop": {"momentum_buffer", "grad_avg"},
    "adam": {"max_exp_avg_sq"},
}
# State that torch creates anew if it is missing.
_MAY_BE_MISSING = frozenset({"momentum_buffer"})


def host_state(
    optimizers: Sequence[torch.optim.Optimizer], names: Mapping[int, str]
) -> dict[str, torch.Tensor]:
    """Return the state of optimizers on the host, by slot; empty before the first step.

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
    """Return whether an optimizer has state on the host, from steps or loaded."""
    states = [state for state in optimizer.state.values() if state]
    # Adagrad has its sums from the constructor on.
    made = isinstance(optimizer, torch.optim.Adagrad) and not any(s["step"] for s in states)
    return bool(states) and not made


def initial_values(rule: UpdateRule, slots: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the initial values of optimizer-state slots."""
    begin = {
        f"{name}.{key}": value
        for group in rule.groups
        for key, value in RULES[rule.kind].state(group.values).items()
        for name in group.params
    }
    return {slot: torch.full_like(value, begin[slot]) for slot, value in slots.items()}


def to_host(
    optimizers: Sequence[torch.optim.Optimizer],
    names: Mapping[int, str],
    values: Mapping[str, torch.Tensor],
) -> None:
    """Write a program's optimizer state to the ``torch.optim`` objects, in torch's form."""
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
    """Explain why a program cannot continue from an optimizer's state on the host; else None.

    Args:
        optimizer: with or without state.
        rule: what it has become.
        names: as for ``host_state``.
    """
    groups = {name: group for group in rule.groups for name in group.params}
    for name, param, state in _states([optimizer], names):
        keys = {key for key, value in state.items() if value is not None}
        required = set(RULES[rule.kind].state(groups[name].values))
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
    """Yield name, parameter and state of every parameter with optimizer state."""
    for optimizer in optimizers:
        for name, param in _parameters(optimizer, names):
            state = optimizer.state.get(param)
            if state:
                yield name, param, state
