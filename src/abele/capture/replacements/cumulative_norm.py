"""Batch norms that average all batches so far: ``momentum=None``.

Torch makes a number of their count of batches. Here its place is taken by a number that carries the
count as a tensor, from the module's call to ``batch_norm``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

_NORMS = (
    torch.nn.BatchNorm1d,
    torch.nn.BatchNorm2d,
    torch.nn.BatchNorm3d,
    torch.nn.SyncBatchNorm,
)


class Cumulative(float):
    """A momentum of ``1 / batches``, which is not known yet."""

    batches: torch.Tensor


@contextlib.contextmanager
def carrying_counts() -> Generator[None]:
    """While open, ``batch_norm`` gets a ``Cumulative`` from modules with ``momentum=None``."""
    here = threading.get_ident()

    def enter(module: torch.nn.Module, args: Any) -> None:
        if threading.get_ident() == here and isinstance(module, _NORMS):
            counted = module.track_running_stats and module.num_batches_tracked is not None
            if module.training and counted and module.momentum is None:
                share: Any = Cumulative()
                share.batches = module.num_batches_tracked
                module.momentum = share

    def leave(module: Any, args: Any, result: Any) -> None:
        ours = isinstance(module, _NORMS) and isinstance(module.momentum, Cumulative)
        if ours and threading.get_ident() == here:
            module.momentum = None

    handles = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """Compute ``torch.nn.functional.batch_norm``, whose momentum may be a ``Cumulative``.

    Results are those of torch to the bit. Averages are too, but for the rounding of this batch's
    statistics, of which torch's kernel keeps more digits until they are averaged.
    """
    if not isinstance(momentum, Cumulative) or running_mean is None or running_var is None:
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    mean, var = (each.new_zeros(each.shape) for each in (running_mean, running_var))
    result = F.batch_norm(input, mean, var, weight, bias, training, 1.0, eps)
    share = 1.0 / momentum.batches.double()
    with torch.no_grad():
        for average, latest in ((running_mean, mean), (running_var, var)):
            average.copy_(share * latest.double() + (1.0 - share) * average.double())
    return result
