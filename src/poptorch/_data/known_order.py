"""The indices of an epoch as tensors, where its sampler is known to draw all of them at once.

Torch's batch sampler makes lists of Python's numbers, which become tensors again to index with.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from poptorch._data.partition import PartitionSampler

_AT_ONCE = 64  # batches: a long epoch need not wait until the last of them is divided off


class TensorBatches:
    """Indices of torch's batch sampler, drawn in its order, as int64 tensors.

    Args:
        sampler: one that ``knows`` says is known.
    """

    def __init__(self, sampler: BatchSampler):
        self._sampler = sampler

    def __iter__(self) -> Iterator[torch.Tensor]:
        rows: Any = self._sampler.sampler
        order = _ORDERS[type(rows)](rows)
        size, count = self._sampler.batch_size, len(order)
        if self._sampler.drop_last:
            count -= count % size
        for first in range(0, count, _AT_ONCE * size):
            yield from order[first : min(count, first + _AT_ONCE * size)].split(size)

    def __len__(self) -> int:
        return len(self._sampler)


def knows(sampler: Any) -> bool:
    """Return whether later epochs' indices may be drawn early without a visible difference."""
    if type(sampler) is not BatchSampler:
        return False
    rows: Any = sampler.sampler
    if type(rows) is not RandomSampler:
        return type(rows) in _ORDERS
    # A generator of the program's is drawn from once more when the epoch ends.
    whole = not rows.replacement and rows.num_samples == len(rows.data_source)
    return whole and rows.generator is None


def _shuffled(sampler: RandomSampler) -> torch.Tensor:
    seed = int(torch.empty((), dtype=torch.int64).random_().item())
    return torch.randperm(len(sampler.data_source), generator=torch.Generator().manual_seed(seed))


_ORDERS: dict[type, Callable[[Any], torch.Tensor]] = {
    RandomSampler: _shuffled,
    SequentialSampler: lambda sampler: torch.arange(len(sampler.data_source), device="cpu"),
    PartitionSampler: lambda sampler: sampler.order(),
}
