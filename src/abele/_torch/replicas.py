"""The exchange of ``DistributedDataParallel``, for values that were computed elsewhere.

Torch's own code makes every collective call, so that a process whose values are computed by a
program meets processes whose values torch computes.
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

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
            "find_unused_parameters=True (leave it out where each step uses all parameters)",
            own.find_unused_parameters,
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
        own.reducer.prepare_for_backward([])
        _touch(params)
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
    try:
        for param in params:
            param.grad = None
        _touch(params)
    finally:
        own.reducer._update_process_group(own.process_group)
        for param, grad in zip(params, before, strict=True):
            param.grad = grad
    return True


def _touch(params: Sequence[torch.Tensor]) -> None:
    """Run the hooks of gradients, and add nothing to these."""
    function: Any = _Touching
    with torch.enable_grad():
        done = function.apply(*params)
    done.backward()


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
