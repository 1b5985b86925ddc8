"""Hooks registered in torch, which has public functions to add and remove them, none to list them.

These names are private, like all of this folder; ``tests/unit/test_torch_hooks.py`` tests them.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch.nn.modules import module as _modules
from torch.optim import optimizer as _optimizers  # type: ignore[reportAttributeAccessIssue]

Hooks = MutableMapping[int, Callable]


def of_gradient(tensor: torch.Tensor) -> list[Callable]:
    """Return what ``register_hook`` of a leaf has added."""
    return list((tensor._backward_hooks or {}).values())


def after_accumulation(tensor: torch.Tensor) -> list[Callable]:
    """Return what ``register_post_accumulate_grad_hook`` has added."""
    hooks: Any = tensor._post_accumulate_grad_hooks  # type: ignore[reportAttributeAccessIssue]
    return list((hooks or {}).values())


def of_backward(module: torch.nn.Module) -> tuple[Hooks, Hooks]:
    """Return what runs before and after the backward of a module, to be read and exchanged."""
    return module._backward_pre_hooks, module._backward_hooks


def of_every_backward() -> list[Callable]:
    """Return what runs around the backward of every module there is."""
    hooks = (_modules._global_backward_pre_hooks, _modules._global_backward_hooks)
    return [hook for each in hooks for hook in each.values()]


def around_step(optimizer: torch.optim.Optimizer) -> list[Callable]:
    """Return what runs before and after the steps of an optimizer, or of every optimizer."""
    untyped: Any = optimizer
    hooks = (
        untyped._optimizer_step_pre_hooks,
        untyped._optimizer_step_post_hooks,
        _optimizers._global_optimizer_pre_hooks,
        _optimizers._global_optimizer_post_hooks,
    )
    return [hook for each in hooks for hook in each.values()]


def writes(tensor: torch.Tensor) -> int:
    """Return how often a tensor has been written in place."""
    return tensor._version
