"""Facts about objects of torch: hooks, writes, transforms, and workers of data loaders.

Torch has public functions to add and remove hooks, none to list them.
``tests/unit/_torch/test_facts.py`` tests these private names.
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


def is_transformed(tensor: torch.Tensor) -> bool:
    """Return whether ``torch.func`` or a forward derivative follows a tensor."""
    functions: Any = getattr(torch._C, "_functorch")  # noqa: B009 - its stubs do not have it
    forward_ad: Any = torch.autograd.forward_ad
    if functions.is_functorch_wrapped_tensor(tensor):
        return True
    return forward_ad.unpack_dual(tensor).tangent is not None


def has_lost_worker(batches: Any) -> bool:
    """Return whether a worker process of a loader's iterator has ended.

    Torch keeps the iterator of persistent workers and asks them for the next epoch, also those that
    were killed; every later epoch then fails.

    Args:
        batches: an iterator of torch's loader with ``num_workers`` of 1 or more.
    """
    return any(not worker.is_alive() for worker in batches._workers)
