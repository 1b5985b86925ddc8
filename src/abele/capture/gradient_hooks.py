"""The user's gradient hooks: a hook that returns a gradient is traced into backward.

A program computes gradients without Python. A hook that returns a gradient is traced like forward;
one that only looks would run once, while the model is captured, on tensors without values, so it is
refused. So are hooks on what a program does not have: ``grad`` of a parameter, a backward of
the whole model that starts from its results, a step of an optimizer object.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from abele._torch import contexts as _torch_hooks
from abele.errors import CaptureError

_INSTEAD = "Remove it, or compute in forward or in a hook on the parameter's gradient instead."


Hook = Callable[..., Any]
_Function = TypeVar("_Function", bound=Hook)


def internal(hook: _Function) -> _Function:
    """Mark a gradient hook as this project's own, which only observes the host."""
    hook._is_internal = True  # type: ignore[reportFunctionMemberAccess]
    return hook


def check(module: torch.nn.Module, params: Mapping[str, torch.Tensor]) -> None:
    """Raise CaptureError, with hook and line, for gradient hooks that no program can run."""
    for name, param in params.items():
        for hook in filter(_is_users, _torch_hooks.after_accumulation(param)):
            raise CaptureError(
                f"{described(hook)} waits for the gradient of parameter {name} to be accumulated. "
                f"A program keeps its gradients on the device and has no grad. {_INSTEAD}"
            )
    of_model = [hook for each in _torch_hooks.of_backward(module) for hook in each.values()]
    for hook in of_model:
        raise CaptureError(
            f"{described(hook)} waits for the backward of the whole model. A program starts its "
            f"backward at the loss inside forward, not at the model's results. {_INSTEAD}"
        )
    for hook in _torch_hooks.of_every_backward():
        raise CaptureError(f"{described(hook)} waits for the backward of every module. {_INSTEAD}")


def refused_around_step(optimizer: torch.optim.Optimizer) -> str | None:
    """Explain why a hook around an optimizer's steps is refused; None if there is none."""
    for hook in filter(_is_users, _torch_hooks.around_step(optimizer)):
        return (
            f"{described(hook)} waits for a step of optimizer {type(optimizer).__name__}. The "
            "update is part of the program, and step() never runs. Remove the hook; after a "
            "call of the model the update has happened."
        )
    return None


def _is_users(hook: Hook) -> bool:
    module = getattr(hook, "__module__", None) or ""
    return not (getattr(hook, "_is_internal", False) or module.startswith("torch."))


def register(
    leaf: torch.Tensor, original: torch.Tensor, name: str, scale: float | torch.Tensor
) -> None:
    """Register the hooks of a parameter on its traced tensor.

    Args:
        leaf: the traced tensor with the gradient.
        original: the user's parameter.
        name: of the parameter.
        scale: the loss scale; hooks see the unscaled gradient.
    """
    untyped: Any = leaf
    for hook in _torch_hooks.of_gradient(original):
        untyped.register_hook(_checked(hook, f"parameter {name}", scale))


def on_parameters(params: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Yield a description of each hook of the user's on a parameter's gradient."""
    for name, param in params.items():
        for hook in filter(_is_users, _torch_hooks.of_gradient(param)):
            yield f"{described(hook)} is on parameter {name}"


@contextlib.contextmanager
def checked_modules(modules: Mapping[str, torch.nn.Module]) -> Generator[None]:
    """Raise CaptureError for backward hooks that return nothing, in a ``with`` block."""
    changed: list[tuple[_torch_hooks.Hooks, dict[int, Hook]]] = []
    for name, module in modules.items():
        for hooks in _torch_hooks.of_backward(module):
            changed.append((hooks, dict(hooks)))
            for key, hook in hooks.items():
                hooks[key] = _returning(hook, f"the backward of module {name}")
    try:
        yield
    finally:
        for hooks, before in changed:
            hooks.update(before)


def described(hook: Hook) -> str:
    """Format a gradient hook with its source line, as in ``Hook clip (trainer.py:12)``."""
    function = inspect.unwrap(getattr(hook, "__func__", hook))
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(hook).__name__)
    where = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
    return f"Hook {name}{where}"


def _nothing_returned(hook: Hook, what: str) -> CaptureError:
    return CaptureError(
        f"{described(hook)} on {what} returns nothing. A program computes gradients without "
        "Python, so a hook that looks at them would run once, without values. Return the gradient "
        "to go on with, or remove the hook and have the gradient returned as an anchored tensor."
    )


def _checked(hook: Hook, what: str, scale: float | torch.Tensor) -> Hook:
    def run(gradient: torch.Tensor) -> torch.Tensor:
        factor = scale.to(gradient.dtype) if isinstance(scale, torch.Tensor) else scale
        scaled = isinstance(scale, torch.Tensor) or scale != 1.0
        unscaled = gradient / factor if scaled else gradient
        writes = _torch_hooks.writes(unscaled)
        result = hook(unscaled)
        if result is None:
            if _torch_hooks.writes(unscaled) == writes:
                raise _nothing_returned(hook, what)
            result = unscaled  # changed in place
        return result * factor if scaled else result

    return run


def _returning(hook: Hook, what: str) -> Hook:
    def run(*arguments: Sequence[Any]) -> Any:
        result = hook(*arguments)
        if result is None:
            raise _nothing_returned(hook, what)
        return result

    return run
