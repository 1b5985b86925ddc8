"""Context managers that change torch's behaviour, and queries of hooks and tensors."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
from collections.abc import Callable, Generator, Iterable, Mapping, MutableMapping
from typing import Any

import torch
from torch.utils import checkpoint
from torch.utils._device import DeviceContext

from abele._torch.replaced import replaced
from abele._torch.versions import optional
from abele.contexts import held

# -- parameters ------------------------------------------------------------------------------------


@contextlib.contextmanager
def counted_as_parameters(tensors: Iterable[torch.Tensor]) -> Generator[None]:
    """Have plain tensors count as ``torch.nn.Parameter`` instances in a ``with`` block.

    Turning them into parameters would create new tensors. ``Module.get_parameter`` and users'
    forwards test for the class.
    """
    marked = list(tensors)
    for tensor in marked:
        tensor._is_param = True  # type: ignore[attr-defined] - what Parameter's metaclass reads
    try:
        yield
    finally:
        for tensor in marked:
            del tensor._is_param  # type: ignore[attr-defined]


# -- activation checkpoints ------------------------------------------------------------------------


@optional
@contextlib.contextmanager
def recomputed_within(context: Callable[[], Any]) -> Generator[None]:
    """Have checkpoints of this thread recompute within a context, in a ``with`` block.

    Backward runs without the modes that were open in forward, and torch refuses to go on where the
    second computation saves other tensors than the first.

    Args:
        context: returns a context manager, once for each computation.
    """

    def generator(original: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        @functools.wraps(function)
        def again(*args: Any, **kwargs: Any) -> Any:
            with context():
                return function(*args, **kwargs)

        return original(again, *args, **kwargs)

    with replaced((checkpoint, _recomputing(), generator)):
        yield


def _recomputing() -> str:
    """Return the name of the function that checkpoints call; another one since torch 2.14."""
    name = "_checkpoint_without_reentrant_generator"
    return f"{name}_impl" if hasattr(checkpoint, f"{name}_impl") else name


# -- TorchScript functions -------------------------------------------------------------------------

# ``torch.jit.script`` returns objects of a class of C++ that calls operators past every mode of
# Python's, so that no public function can replace these operators.
_Function = Callable[..., Any]
_instead: contextvars.ContextVar[Mapping[str, _Function]] = contextvars.ContextVar("scripted")


def scripted_functions_replaced(
    instead: Mapping[str, _Function],
) -> contextlib.AbstractContextManager[None]:
    """Replace some TorchScript functions in a ``with`` block.

    Args:
        instead: by ``ScriptFunction.qualified_name``.
    """
    if instead:
        _watch_calls()
    return held(_instead, instead)


@functools.cache
def _watch_calls() -> None:
    """Intercept every TorchScript call from now on, as several threads may capture."""
    kind: Any = torch.jit.ScriptFunction
    usual = kind.__call__

    @functools.wraps(usual)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        function = _instead.get({}).get(self.qualified_name)
        return usual(self, *args, **kwargs) if function is None else function(*args, **kwargs)

    kind.__call__ = call


# -- oneDNN ----------------------------------------------------------------------------------------

# The public ``torch.backends.mkldnn.flags`` also touches settings for Intel GPUs and warns where
# there are none.
_outer: contextvars.ContextVar[bool] = contextvars.ContextVar("outer", default=True)


@contextlib.contextmanager
def without_onednn() -> Generator[None]:
    """Keep torch from choosing oneDNN-only operators in a ``with`` block."""
    with held(_outer, torch._C._get_mkldnn_enabled()), _onednn(enabled=False):
        yield


def with_outer_onednn() -> contextlib.AbstractContextManager[None]:
    """Undo ``without_onednn`` in an inner ``with`` block."""
    return _onednn(enabled=_outer.get())


@contextlib.contextmanager
def _onednn(*, enabled: bool) -> Generator[None]:
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextlib.contextmanager
def without_tf32() -> Generator[None]:
    """Let cuDNN compute in float32 where it would use TF32, whose ten bits hide errors.

    The public ``torch.backends.cudnn.allow_tf32`` refuses once ``torch.testing`` froze the flags.
    """
    cudnn: Any = torch.backends.cudnn
    used = cudnn.conv.fp32_precision == cudnn.rnn.fp32_precision == "tf32"
    try:
        if used:
            torch._C._set_cudnn_allow_tf32(False)
        yield
    finally:
        if used:
            torch._C._set_cudnn_allow_tf32(True)


_core: Any = torch._C
_forward_ad: Any = torch.autograd.forward_ad
_modules: Any = importlib.import_module("torch.nn.modules.module")
_optimizers: Any = importlib.import_module("torch.optim.optimizer")

Hooks = MutableMapping[int, Callable[..., Any]]


def of_gradient(tensor: torch.Tensor) -> list[Callable[..., Any]]:
    """Return the hooks that ``register_hook`` has added to a leaf tensor."""
    untyped: Any = tensor
    hooks: Hooks = untyped._backward_hooks or {}
    return list(hooks.values())


def after_accumulation(tensor: torch.Tensor) -> list[Callable[..., Any]]:
    """Return the hooks that ``register_post_accumulate_grad_hook`` has added to a tensor."""
    untyped: Any = tensor
    hooks: Hooks = untyped._post_accumulate_grad_hooks or {}
    return list(hooks.values())


def of_backward(module: torch.nn.Module) -> tuple[Hooks, Hooks]:
    """Return the mutable dictionaries of a module's backward pre-hooks and hooks."""
    untyped: Any = module
    return untyped._backward_pre_hooks, untyped._backward_hooks


def of_every_backward() -> list[Callable[..., Any]]:
    """Return the global backward hooks of all modules."""
    hooks = (_modules._global_backward_pre_hooks, _modules._global_backward_hooks)
    return [hook for each in hooks for hook in each.values()]


def around_step(optimizer: torch.optim.Optimizer) -> list[Callable[..., Any]]:
    """Return the hooks before and after an optimizer's steps, global ones included."""
    untyped: Any = optimizer
    hooks = (
        untyped._optimizer_step_pre_hooks,
        untyped._optimizer_step_post_hooks,
        _optimizers._global_optimizer_pre_hooks,
        _optimizers._global_optimizer_post_hooks,
    )
    return [hook for each in hooks for hook in each.values()]


def writes(tensor: torch.Tensor) -> int:
    """Return the number of in-place writes to a tensor (its version)."""
    return tensor._version


def is_transformed(tensor: torch.Tensor) -> bool:
    """Return whether ``torch.func`` or forward-mode differentiation tracks a tensor."""
    if _core._functorch.is_functorch_wrapped_tensor(tensor):
        return True
    return _forward_ad.unpack_dual(tensor).tangent is not None


def is_observed() -> bool:
    """Return whether something of this thread sees or replaces each operator of torch.

    That is a mode of Python, a transform of ``torch.func``, forward-mode differentiation, a trace
    of TorchScript, hooks of saved tensors, or the detection of anomalies. The mode of a default
    device is none of these.
    """
    core = _core
    if core._len_torch_function_stack():
        modes = map(core._get_function_stack_at, range(core._len_torch_function_stack()))
        if not all(isinstance(mode, DeviceContext) for mode in modes):
            return True
    return (
        core.is_anomaly_enabled()
        or core._len_torch_dispatch_stack() > 0
        or core._functorch.peek_interpreter_stack() is not None
        or _forward_ad._current_level >= 0
        or core._autograd._top_saved_tensors_default_hooks(False) is not None
        or core._get_tracing_state() is not None
    )


def default_device() -> torch.device | None:
    """Return the device of ``torch.device`` blocks and ``torch.set_default_device``, if any."""
    count = _core._len_torch_function_stack()
    return getattr(_core._get_function_stack_at(count - 1), "device", None) if count else None


def has_lost_worker(batches: Any) -> bool:
    """Return whether a worker process of a data loader's iterator has ended.

    Torch reuses persistent workers for the next epoch, even if some were killed; every later epoch
    then fails.

    Args:
        batches: an iterator of torch's loader with ``num_workers`` of 1 or more.
    """
    return any(not worker.is_alive() for worker in batches._workers)
