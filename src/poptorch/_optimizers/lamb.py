"""The arguments of LAMB, which torch.optim does not have."""

from collections.abc import Iterable
from typing import Any

import torch


class LAMB(torch.optim.Optimizer):
    """Base class in the form of torch's optimizers for LAMB (arXiv 1904.00962).

    Args:
        params: parameters or groups.
        arguments: those that are not to have their default value.
    """

    def __init__(self, params: Iterable, **arguments: Any):
        defaults = {
            "lr": 1e-3,
            "betas": (0.9, 0.999),
            "eps": 1e-8,
            "weight_decay": 1e-2,
            "max_weight_norm": 65500.0,
        }
        super().__init__(params, defaults | arguments)
