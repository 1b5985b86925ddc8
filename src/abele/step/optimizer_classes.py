"""The classes of ``torch.optim`` that are update rules, and what they are called with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Kind:
    """How a class, and what derives from it, maps to an update rule.

    Attributes:
        base: the class.
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
#: Names in an update rule of arguments that are pairs.
PAIRS: Mapping[str, tuple[str, str]] = {
    "betas": ("beta1", "beta2"),
    "etas": ("etaminus", "etaplus"),
    "step_sizes": ("step_size_min", "step_size_max"),
}
#: Why no update rule can be what a class does.
REFUSED: Mapping[type, str] = {
    torch.optim.LBFGS: "its step calls a closure for loss and gradients as often as their values "
    "ask for, and a program computes them once per update",
    torch.optim.SparseAdam: "it updates the rows that a sparse gradient has, and the gradients of "
    "a program are dense",
}


def names() -> str:
    """The classes of ``torch.optim`` that are update rules, as words."""
    *listed, last = (kind.base.__name__ for kind in KINDS)
    return f"{', '.join(listed)} or {last}"


def why_not(optimizer: object) -> str | None:
    """Why no update rule can be what an optimizer does; None where nobody knows.

    Args:
        optimizer: of no class in ``KINDS``.
    """
    reasons = (reason for kind, reason in REFUSED.items() if isinstance(optimizer, kind))
    return next(reasons, None)
