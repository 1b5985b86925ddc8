"""Hooks registered in torch, which has public functions to add and remove them, none to list them.

These names are private, like all of this folder; ``tests/unit/_torch/test_torch_hooks.py`` tests
them.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import importlib
from collections.abc import Callable, MutableMapping
from typing import Any

import torch

_modules: Any = importlib.import_module("torch.nn.modules.module")
_optimizers: Any = importlib.import_module("torch.optim.optimizer")

Hooks = MutableMapping[int, Callable[..., Any]]


def of_gradient(tensor: torch.Tensor) -> list[Callable[..., Any]]:
    """Return what ``register_hook`` of a leaf has added."""
    untyped: Any = tensor
    hooks: Hooks = untyped._backward_hooks or {}
    return list(hooks.values())


def after_accumulation(tensor: torch.Tensor) -> list[Callable[..., Any]]:
    """Return what ``register_post_accumulate_grad_hook`` has added."""
    untyped: Any = tensor
    hooks: Hooks = untyped._post_accumulate_grad_hooks or {}
    return list(hooks.values())


def of_backward(module: torch.nn.Module) -> tuple[Hooks, Hooks]:
    """Return what runs before and after the backward of a module, to be read and exchanged."""
    untyped: Any = module
    return untyped._backward_pre_hooks, untyped._backward_hooks


def of_every_backward() -> list[Callable[..., Any]]:
    """Return what runs around the backward of every module there is."""
    hooks = (_modules._global_backward_pre_hooks, _modules._global_backward_hooks)
    return [hook for each in hooks for hook in each.values()]


def around_step(optimizer: torch.optim.Optimizer) -> list[Callable[..., Any]]:
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
