"""The subset of `horovod.torch` that PopTorch programs call, between instances of `popdist`.

Arguments and results are host tensors; nothing is differentiated. A single instance gets its own
values back. Wrappers exchange gradients, not these functions.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import distributed

from popdist import _environment, _instances
from popdist._environment import Error

_ready = False


class ReduceOp(enum.Enum):
    """A reduction over all instances: average, sum, minimum, maximum or product."""

    Average = "average"
    Sum = "sum"
    Min = "min"
    Max = "max"
    Product = "product"


Average, Sum, Min = ReduceOp.Average, ReduceOp.Sum, ReduceOp.Min
Max, Product = ReduceOp.Max, ReduceOp.Product
_OPERATIONS = {
    Average: distributed.ReduceOp.SUM,
    Sum: distributed.ReduceOp.SUM,
    Min: distributed.ReduceOp.MIN,
    Max: distributed.ReduceOp.MAX,
    Product: distributed.ReduceOp.PRODUCT,
}


def init() -> None:
    """Connect the instances; see ``popdist.init``."""
    global _ready
    _instances.init()
    _ready = True


def shutdown() -> None:
    """Mark Horovod as shut down; the instances' process group stays, and wrappers still use it."""
    global _ready
    _ready = False


def is_initialized() -> bool:
    """Return whether ``init`` or ``popdist.init`` was called."""
    return _ready or distributed.is_initialized()


def rank() -> int:
    """Return the global index of this instance."""
    _check()
    return _environment.getInstanceIndex()


def size() -> int:
    """Return the number of instances."""
    _check()
    return _environment.getNumInstances()


def local_rank() -> int:
    """Return the index of this instance on its host, from 0."""
    _check()
    return _environment.getLocalInstanceIndex()


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    *,
    op: ReduceOp | None = None,
) -> torch.Tensor:
    """Reduce a tensor over all instances.

    Half precision is accumulated in float32 and rounded once; averages of integers round towards 0.

    Args:
        tensor: of the same shape and type on all instances.
        average: of earlier releases: True for Average, False for Sum.
        name: ignored: instances call these functions in the same order.
        op: Average if neither is given.

    Returns:
        A new tensor of that shape and type.

    Raises:
        ValueError: both `average` and `op` are given, or ``init`` was not called.
        popdist.Error: `op` is no operation of this module.
    """
    del name
    _check()
    if average is not None and op is not None:
        raise ValueError("allreduce takes `op` or `average`, not both: op=hvd.Average says it all.")
    if op is None:
        op = Sum if average is False else Average
    if op not in _OPERATIONS:
        raise Error(f"allreduce knows {', '.join(ReduceOp.__members__)}, not op={op!r}.")
    value = tensor.detach()
    wide = value.to(torch.float32) if value.dtype in (torch.half, torch.bfloat16) else value.clone()
    if size() > 1:
        wide = wide.contiguous()
        distributed.all_reduce(wide, op=_OPERATIONS[op])
    if op is Average:
        rounding = None if wide.is_floating_point() or wide.is_complex() else "trunc"
        wide = torch.div(wide, size(), rounding_mode=rounding)
    return wide.to(value.dtype)


def allreduce_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Reduce a tensor over all instances in place; see ``allreduce``."""
    with torch.no_grad():
        return tensor.copy_(allreduce(tensor, *args, **kwargs))


def grouped_allreduce(
    tensors: Sequence[torch.Tensor], *args: Any, **kwargs: Any
) -> list[torch.Tensor]:
    """Reduce each of several tensors over all instances; see ``allreduce``."""
    return [allreduce(tensor, *args, **kwargs) for tensor in tensors]


def allgather(tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
    """Concatenate the tensors of all instances along dimension 0; a scalar counts as one row."""
    del name
    rows = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()
    return torch.cat(allgather_object(rows))


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Gather a pickled object of every instance, in rank order."""
    del name
    _check()
    if size() == 1:
        return [obj]
    gathered: list[Any] = [None] * size()
    distributed.all_gather_object(gathered, obj)
    return gathered


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """Broadcast a tensor of instance ``root_rank`` into a new tensor; shapes must be equal."""
    del name
    _check_root(root_rank)
    value = tensor.detach().clone(memory_format=torch.contiguous_format)
    if size() > 1:
        distributed.broadcast(value, src=root_rank)
    return value


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """Broadcast a tensor of one instance in place; see ``broadcast``."""
    with torch.no_grad():
        return tensor.copy_(broadcast(tensor, root_rank, name))


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Broadcast a pickled object of one instance."""
    del name
    _check_root(root_rank)
    if size() == 1:
        return obj
    box = [obj]
    distributed.broadcast_object_list(box, src=root_rank)
    return box[0]


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]], root_rank: int
) -> None:
    """Broadcast a state dict or named parameters of one instance in place."""
    named = params.items() if isinstance(params, Mapping) else params
    for _, value in named:
        if isinstance(value, torch.Tensor):
            broadcast_(value, root_rank)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int) -> None:
    """Broadcast the optimizer state of one instance."""
    _check_root(root_rank)
    mine = rank() == root_rank
    state = broadcast_object(optimizer.state_dict() if mine else None, root_rank)
    if not mine:
        optimizer.load_state_dict(state)


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"horovod.torch has no {name!r} here: Horovod is not installed, and popdist stands in with "
        "allreduce, allgather, broadcast and what goes with them. Wrappers add up gradients "
        "between instances by themselves, so that DistributedOptimizer is not needed."
    )


def _check() -> None:
    if not is_initialized() and _environment.getNumInstances() > 1:
        raise ValueError("Horovod has not been initialized; use hvd.init().")


def _check_root(root: int) -> None:
    if not 0 <= root < size():
        raise Error(f"root_rank={root} is no instance: there are {size()}, counted from 0.")
