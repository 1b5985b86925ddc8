"""Arithmetic of update rules: the same bits for a number that is a constant and one in a slot.

A constant is a Python float, a slot a 0-d float64 tensor. What is computed from such numbers alone
is float64 either way, as Python computes it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import torch

Number = float | torch.Tensor
State = Mapping[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Rule:
    """``initial`` makes the state of one parameter, ``update`` applies one gradient in place."""

    initial: Callable[[torch.Tensor, Mapping[str, float]], dict[str, torch.Tensor]]
    update: Callable[[torch.Tensor, torch.Tensor, State, Mapping[str, Number]], None]


def axpy(y: torch.Tensor, x: torch.Tensor, a: Number, sign: int = 1) -> torch.Tensor:
    """``y + sign*a*x`` rounded once, like ``torch.add(y, x, alpha=...)``, for both kinds of a."""
    if isinstance(a, torch.Tensor):
        return torch.addcmul(y, x, a.to(y.dtype), value=sign)
    return torch.add(y, x, alpha=sign * a)


def lerp(start: torch.Tensor, end: torch.Tensor, weight: Number) -> torch.Tensor:
    """``start + weight * (end - start)`` as ``torch.lerp`` computes it."""
    if isinstance(weight, torch.Tensor):
        weight = weight.to(start.dtype)
    return torch.lerp(start, end, weight)


def mean_of_squares(mean: torch.Tensor, value: torch.Tensor, decay: Number) -> torch.Tensor:
    """``decay * mean + (1 - decay) * value**2``."""
    return (mean * decay).addcmul(value * one_minus(decay), value)


def filled_where(mask: torch.Tensor, value: torch.Tensor, number: Number) -> torch.Tensor:
    """``value``, but ``number`` where ``mask`` is true."""
    if isinstance(number, torch.Tensor):
        return torch.where(mask, number.to(value.dtype), value)
    return value.masked_fill(mask, number)


def decayed(param: torch.Tensor, grad: torch.Tensor, h: Mapping[str, Number]) -> torch.Tensor:
    """A gradient with that of weight decay added; where ``decoupled``, decays ``param`` instead."""
    decay = h["weight_decay"]
    if is_zero(decay):
        return grad
    if not h.get("decoupled"):
        return axpy(grad, param, decay)
    param.copy_(param * (1 - h["lr"] * decay))
    return grad


def is_zero(value: Number) -> bool:
    """Whether a number is a constant zero, whose operations can be left out."""
    return not isinstance(value, torch.Tensor) and value == 0


def quotient(value: Number, divisor: Number) -> Number:
    """``value / divisor``; 0 where that is 0 / 0."""
    if isinstance(divisor, torch.Tensor):
        return value / torch.where(divisor == 0, 1.0, divisor)
    return value / divisor if divisor else value


def one_minus(value: Number) -> Number:
    """``1 - value``."""
    return 1 - value


def sqrt(value: Number) -> Number:
    """The square root."""
    return value.sqrt() if isinstance(value, torch.Tensor) else math.sqrt(value)


def count(param: torch.Tensor) -> torch.Tensor:
    """A fresh count of updates: 0-d, float64, zero."""
    # A program cannot read it, so it has to be a tensor.
    return torch.zeros((), dtype=torch.float64, device=param.device)


def counted(state: State) -> torch.Tensor:
    """Count this update in the state; its number, from 1, as 0-d float64."""
    state["step"].copy_(state["step"] + 1)
    return state["step"].double()  # torch's objects on the host count in float32


def moments_initial(param: torch.Tensor, values: Mapping[str, float]) -> dict[str, torch.Tensor]:
    """The state that ``moments`` needs."""
    return {
        "step": count(param),
        "exp_avg": torch.zeros_like(param),
        "exp_avg_sq": torch.zeros_like(param),
    }


def moments(grad: torch.Tensor, state: State, h: Mapping[str, Number]) -> torch.Tensor:
    """Add a gradient to the means of gradients and of their squares; the update's number."""
    first, second = state["exp_avg"], state["exp_avg_sq"]
    first.copy_(lerp(first, grad, one_minus(h["beta1"])))
    second.copy_(mean_of_squares(second, grad, h["beta2"]))
    return counted(state)
