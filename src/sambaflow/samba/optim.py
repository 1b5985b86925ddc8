"""Optimizers: torch's own, with SambaFlow's constructor and gradient clipping.

``session.compile`` makes the update part of the program. ``step`` works too, on the host, and then
computes what torch's class computes. Parameters are those of torch's classes; ``max_grad_norm``
clips the global norm of all gradients.
"""

import math
import numbers
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["SGD", "Adam", "AdamW"]


class _Clipping(torch.optim.Optimizer):
    """Mixin of optimizers that clips the global L2 norm of all gradients before the update.

    Attributes:
        max_grad_norm: the largest norm; None leaves gradients alone.
    """

    max_grad_norm: float | None = None

    def step(self, closure: Callable | None = None) -> Any:
        """Update the parameters on the host from their ``grad``."""
        if self.max_grad_norm is None:
            return super().step(closure)  # type: ignore[arg-type]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        params = [p for group in self.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(params, self.max_grad_norm)
        super().step()
        return loss


class SGD(_Clipping, torch.optim.SGD):
    """Stochastic gradient descent with momentum.

    ``hyperparam_dict`` may replace values at each run. Keep ``momentum`` above zero if a run is
    to change it.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
    ):
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay)
        self.max_grad_norm = _positive(max_grad_norm)


class Adam(_Clipping, torch.optim.Adam):
    """Adam optimizer (arXiv 1412.6980)."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
    ):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self.max_grad_norm = _positive(max_grad_norm)


class AdamW(_Clipping, torch.optim.AdamW):
    """Adam optimizer with decoupled weight decay (arXiv 1711.05101)."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        max_grad_norm: float | None = None,
    ):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self.max_grad_norm = _positive(max_grad_norm)


def _positive(norm: float | None) -> float | None:
    number = isinstance(norm, numbers.Real)
    if norm is not None and not (number and norm > 0):
        raise ValueError(f"max_grad_norm has to be above 0, found {norm}. None does not clip.")
    return None if norm is None or math.isinf(norm) else float(norm)
