"""Several processes that train one model: who they are, and averaging their gradients."""

import os
from collections.abc import Iterable

import torch
import torch.distributed as dist

from sambaflow.errors import UsageError

_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
_RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")


def _running() -> bool:
    return dist.is_available() and dist.is_initialized()


def _number(names: tuple[str, ...], default: int) -> int:
    return next((int(os.environ[name]) for name in names if os.environ.get(name)), default)


def world_size() -> int:
    """Return the number of processes, from torch.distributed or the launcher."""
    return dist.get_world_size() if _running() else _number(_SIZES, 1)


def rank() -> int:
    """Return the rank of this process."""
    return dist.get_rank() if _running() else _number(_RANKS, 0)


def average(gradients: Iterable[torch.Tensor]) -> None:
    """Replace gradients by their mean over all processes.

    Raises:
        UsageError: there are several processes and nothing connects them.
    """
    size = world_size()
    if size == 1:
        return
    if not _running():
        raise UsageError(
            f"data_parallel was asked for with {size} processes, but torch.distributed is not "
            'initialized. Call torch.distributed.init_process_group("gloo") first.'
        )
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient.div_(size)
