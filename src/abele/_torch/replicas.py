"""The exchange of ``DistributedDataParallel``, for values that were computed elsewhere.

Torch's own code makes every collective call, so that a process whose values are computed by a
program meets processes whose values torch computes.
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from abele._torch import outside_the_trace

_DDP: Any = DistributedDataParallel
_UNTYPED: Any = torch._C
#: Attributes that its own forward and ``Join`` set, and that no result of a forward depends on.
CHANGING = frozenset(
    {
        *("require_forward_param_sync", "modules_buffers", "named_module_buffers"),
        *("_has_rebuilt_buckets", "_lazy_init_ran", "_join_config"),
        *("_divide_by_initial_world_size", "_authoritative_rank"),
    }
)


def refused(model: DistributedDataParallel) -> str | None:
    """Return which setting of a model its exchange alone cannot follow, or None."""
    kind: Any = type(model)
    own: Any = model
    settings = (
        ("a forward of its own", kind.forward is not _DDP.forward),
        ("static_graph=True", own.static_graph),
        (
            "find_unused_parameters=True and gradients that are views, or skipped",
            own.find_unused_parameters
            and (own.gradient_as_bucket_view or own.skip_all_reduce_unused_params),
        ),
        ("mixed_precision", own.mixed_precision is not None),
        ("delay_all_reduce_named_params", own._delay_all_reduce_params),
        ("the reducer in Python", own._use_python_reducer),
        ("a communication hook", hasattr(own, "buffer_hook") or own._comm_hooks),
        (
            "an optimizer inside backward",
            any(hasattr(param, "_in_backward_optimizers") for param in model.parameters()),
        ),
    )
    return next((name for name, is_set in settings if is_set), None)


def buffers_of(model: DistributedDataParallel) -> list[torch.Tensor]:
    """Return the buffers that the forward of a model may broadcast, in order."""
    own: Any = model
    if not own.broadcast_buffers:
        return []
    ignored = own.parameters_to_ignore
    return [buffer for name, buffer in own.module.named_buffers() if name not in ignored]


def exchanged_params(model: DistributedDataParallel) -> list[torch.Tensor]:
    """Return the parameters whose gradients a model exchanges, in the order of its buckets."""
    own: Any = model
    buckets = own.reducer._get_zeros_like_grad_buckets()
    return [param for bucket in buckets for param in bucket.parameters()]


def begin_forward(
    model: DistributedDataParallel, buffers: Sequence[torch.Tensor], *, grad: bool, sync: bool
) -> None:
    """Make the collective calls that begin a forward.

    Args:
        model: the model.
        buffers: values of ``buffers_of``; those of rank 0 are written into them, if it is time.
        grad: the forward is for a backward.
        sync: that backward exchanges gradients: the forward is not in ``no_sync``.
    """
    own: Any = model
    space = vars(model)  # not setattr: guards of programs watch it

    def broadcast(rank: int) -> None:
        own._default_broadcast_coalesced(buffers, authoritative_rank=rank)

    before = space["require_backward_grad_sync"]
    instead = {"_sync_module_buffers": broadcast, "_assign_modules_buffers": lambda: None}
    space |= {"require_backward_grad_sync": sync, **instead}
    try:
        with torch.set_grad_enabled(grad):
            own._pre_forward(None)
    finally:
        space["require_backward_grad_sync"] = before
        for name in instead:
            del space[name]
    space["require_forward_param_sync"] = grad and sync


def write(buffers: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Write values into buffers; a backward may still use what these had before."""
    untyped: Any = torch.autograd
    with torch.no_grad(), untyped._unsafe_preserve_version_counter(tuple(buffers)):
        for buffer, value in zip(buffers, values, strict=True):
            buffer.copy_(value)


def averaged(
    model: DistributedDataParallel, params: Sequence[torch.Tensor], grads: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the averages of gradients over all processes, by the exchange of a backward.

    Args:
        model: the model, whose ``begin_forward`` was called.
        params: all of ``exchanged_params``.
        grads: the gradient of each.
    """
    own: Any = model
    if own._join_config.enable:  # only the reducer knows how many processes are left
        return _averaged_by_hooks(model, params, grads)
    given = dict(zip(map(id, params), grads, strict=True))
    found: dict[int, torch.Tensor] = {}
    share, exchanges = 1.0 / own.process_group.size(), list[Any]()
    for bucket in own.reducer._get_zeros_like_grad_buckets():
        keys, views = [id(param) for param in bucket.parameters()], bucket.gradients()
        for key, view in zip(keys, views, strict=True):
            torch.mul(given[key], share, out=view)
        exchanges.append(own.reducer._run_comm_hook(bucket))
        found |= zip(keys, views, strict=True)
    if own.find_unused_parameters:  # which all processes compare, behind their gradients
        used = torch.ones(len(params), dtype=torch.int32, device=params[0].device)
        exchanges.append(own.process_group.allreduce([used]))
        _used_maps[model].zero_()
    for each in exchanges:
        each.wait()
    return [found[id(param)] for param in params]


def _averaged_by_hooks(
    model: DistributedDataParallel, params: Sequence[torch.Tensor], grads: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    own: Any = model
    before = [param.grad for param in params]
    try:
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.detach().clone()
        _touch(own, params, prepare=True)
        own._check_reducer_finalized()
        found: list[Any] = [param.grad for param in params]
        # Buckets are written again by the next exchange.
        return [each.clone() for each in found] if own.gradient_as_bucket_view else found
    finally:
        for param, grad in zip(params, before, strict=True):
            param.grad = grad


def settle(model: DistributedDataParallel) -> bool:
    """Have hooks of gradients await no backward, by an exchange of this process with itself.

    They do after a forward without a backward, and would exchange what a trace computes.

    Returns:
        False if they may, and the model has exchanged nothing yet: its first exchange decides how
        processes divide gradients into buckets.

    Raises:
        RuntimeError: the latest backward left out parameters, as torch says at the next forward.
    """
    own: Any = model
    own._check_reducer_finalized()
    if not any(own.reducer.get_backward_stats()):
        return not own.require_forward_param_sync
    params = exchanged_params(model)
    before = [param.grad for param in params]
    kind: Any = _Alone
    alone = kind(0, 1)
    own.reducer._update_process_group(alone)
    finds = bool(own.find_unused_parameters)
    try:
        for param in params:
            param.grad = torch.zeros_like(param) if finds else None
        with _UsedMap(len(params)) if finds else contextlib.nullcontext() as seen:
            _touch(own, params, prepare=finds)
        if seen is not None:
            _used_maps[model] = seen.restored()
    finally:
        own.reducer._update_process_group(own.process_group)
        for param, grad in zip(params, before, strict=True):
            param.grad = grad
    return True


def _touch(own: Any, params: Sequence[torch.Tensor], *, prepare: bool) -> None:
    """Run the hooks of gradients, and add nothing to these."""
    function: Any = _Touching
    with torch.enable_grad():
        done = function.apply(*params)
    if prepare:
        own.reducer.prepare_for_backward([done] if own.find_unused_parameters else [])
    done.backward()


# What marks the parameters that a backward has used, of models that look for unused ones.
_used_maps = weakref.WeakKeyDictionary[DistributedDataParallel, torch.Tensor]()


class _UsedMap(TorchDispatchMode):
    """Finds the map of used parameters, which hooks of gradients write."""

    def __init__(self, count: int):
        super().__init__()
        self._count, self._found = count, list[tuple[torch.Tensor, torch.Tensor]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first: Any = args[0] if args else None
        is_map = isinstance(first, torch.Tensor) and first.dtype == torch.int32
        if is_map and not self._found and first.shape == (self._count,):
            self._found.append((first, first.clone()))
        return func(*args, **(kwargs or {}))

    def restored(self) -> torch.Tensor:
        """Return the map, with its marks from before."""
        ((found, before),) = self._found
        return found.copy_(before)


class Unmarked(TorchDispatchMode):
    """Leaves the maps of used parameters as they are while hooks of gradients run in a trace."""

    def __init__(self):
        super().__init__()
        self._element = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and any(args[0] is each for each in _used_maps.values()):
            with outside_the_trace():
                self._element: Any = func(*args)
            return self._element
        if self._element is not None and args and args[0] is self._element:
            return args[0]
        return func(*args, **(kwargs or {}))


class _Touching(torch.autograd.Function):
    """A function whose backward has no gradients."""

    @staticmethod
    def forward(ctx: Any, *params: torch.Tensor) -> torch.Tensor:
        ctx.count = len(params)
        return params[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None,) * ctx.count


_Group: Any = distributed.ProcessGroup


class _Alone(_Group):
    """A group that has this process only."""

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        future: Any = torch.futures.Future
        done = future()
        done.set_result(tensors)
        return _UNTYPED._distributed_c10d._create_work_from_future(done)
