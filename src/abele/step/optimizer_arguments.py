"""The treatment of each constructor argument of torch's optimizers: one table for all front-ends.

An argument is part of the computation, or it only changes the speed of torch's own loop, or setting
it is refused. A test reads torch's constructors and fails at an argument that has no row here.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import torch


class Treatment(enum.Enum):
    """What a program does with an argument."""

    HONOURED = "computed with"
    SPEED = "changes speed alone"
    REFUSED = "refused"


@dataclasses.dataclass(frozen=True)
class Argument:
    """One row.

    Attributes:
        treatment: what a program does with it.
        reason: why, where it is not simply computed with.
    """

    treatment: Treatment
    reason: str = ""


_HONOURED = Argument(Treatment.HONOURED)
_KERNELS = Argument(
    Treatment.SPEED,
    "It chooses the kernels of torch's own loop; a target chooses those of a program.",
)

#: By the name of the argument, of the classes in ``optimizer_classes.KINDS``.
ARGUMENTS: Mapping[str, Argument] = {
    "params": _HONOURED,
    "lr": _HONOURED,
    "momentum": _HONOURED,
    "dampening": _HONOURED,
    "weight_decay": _HONOURED,
    "nesterov": _HONOURED,
    "maximize": _HONOURED,
    "betas": _HONOURED,
    "eps": _HONOURED,
    "alpha": _HONOURED,
    "centered": _HONOURED,
    "decoupled_weight_decay": _HONOURED,
    "rho": _HONOURED,
    "lr_decay": _HONOURED,
    "initial_accumulator_value": _HONOURED,
    "momentum_decay": _HONOURED,
    "lambd": _HONOURED,
    "t0": _HONOURED,
    "etas": _HONOURED,
    "step_sizes": _HONOURED,
    "foreach": _KERNELS,
    "fused": _KERNELS,
    "capturable": Argument(
        Treatment.SPEED, "It lets CUDA graphs record torch's own loop; a program needs no leave."
    ),
    "amsgrad": Argument(Treatment.REFUSED, "No rule keeps the largest second moments."),
    "differentiable": Argument(Treatment.REFUSED, "No gradient passes through an update."),
}

# Switches of an update by the rule that has them.
_SWITCHES = {"sgd": ("nesterov",), "rmsprop": ("centered",)}


def refused(group: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the first argument of a group that no program can follow, and why; else None."""
    for name, row in ARGUMENTS.items():
        if row.treatment is Treatment.REFUSED and group.get(name):
            return name, row.reason
    return None


def switches(optimizer: Any, rule: str, group: Mapping[str, Any]) -> dict[str, bool]:
    """Return the arguments of a parameter group that are on or off, as values of an update rule.

    Args:
        optimizer: the group is one of its groups.
        rule: a key of ``update_rules.RULES``.
        group: a dictionary of ``param_groups``.
    """
    values = {name: bool(group.get(name)) for name in (*_SWITCHES.get(rule, ()), "maximize")}
    if rule in ("adam", "nadam", "radam"):
        default = isinstance(optimizer, torch.optim.AdamW)
        values["decoupled"] = bool(group.get("decoupled_weight_decay", default))
    return values
