"""Reading an in-memory data set batch by batch instead of item by item, with the same bits.

Compared with single items whenever an epoch begins; where anything differs or is not known, items
are fetched one by one. Indices of an epoch are tensors where its sampler is known to draw them all
in one call: torch's batch sampler makes lists, which become tensors again to index with.
"""

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, cast

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, default_collate

from poptorch._data import in_memory
from poptorch._data.in_memory import UnknownError
from poptorch._data.samplers import PartitionSampler

_FIRST, _AT_RANDOM = 2, 6  # items that are compared
_AT_ONCE = 64  # batches: a long epoch need not wait until the last of them is divided off

#: Errors of reading a whole batch; reading its items one by one then raises the data set's own.
_FAILURES = (UnknownError, RuntimeError, TypeError, ValueError, IndexError, AttributeError)


class WholeBatches:
    """An epoch of an in-memory data set; indices are lists, or tensors without negatives."""

    def __init__(self, dataset: Any, indices: Any, *, pinned: bool):
        self._dataset, self._sampler, self._pinned = dataset, indices, pinned
        self._indices = iter(indices)

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._sampler)

    def __next__(self) -> Any:
        indices = next(self._indices)
        try:
            batch = in_memory.batch(self._dataset, indices)
        except _FAILURES:  # the program may have changed the data set meanwhile
            batch = _from_items(self._dataset, in_memory.numbers(indices))
        return _pinned(batch) if self._pinned else batch


def _pinned(batch: Any) -> Any:
    if isinstance(batch, list):
        return [_pinned(each) for each in batch]
    return batch.pin_memory() if isinstance(batch, torch.Tensor) else batch


def why_single(dataset: Any, collate: Callable[[list], Any]) -> str | None:
    """Return why a data set's items must be fetched one by one; None if batches have the same bits.

    Reads a few items. Neither torch's random numbers nor Python's are touched.
    """
    if collate is not default_collate:
        return "the loader has a collate function of its own"
    try:
        count = len(dataset)
        some = _compared(count)
        batch = in_memory.batch(dataset, some)
    except _FAILURES as problem:
        name = type(dataset).__name__
        return str(problem) if isinstance(problem, UnknownError) else f"{name} is not known"
    try:
        same = _equal(batch, _from_items(dataset, some))
    except Exception:  # noqa: BLE001 - the loop will meet it where it belongs
        same = False
    return None if same else f"{type(dataset).__name__} gives other bits item by item"


@functools.lru_cache(maxsize=16)
def _compared(count: int) -> tuple[int, ...]:
    # Not for secrets: which items are compared does not matter.
    at_random = random.Random(0).sample(range(count), min(_AT_RANDOM, count))
    return (*range(min(_FIRST, count)), *at_random)


def _from_items(dataset: Any, indices: Sequence[Any]) -> Any:
    several = getattr(dataset, "__getitems__", None)
    if callable(several):
        return default_collate(cast("list[Any]", several(indices)))
    return default_collate([dataset[index] for index in indices])


def _equal(some: Any, others: Any) -> bool:
    """Return whether two batches are equal in types, shapes, layout and every bit."""
    if type(some) is not type(others):
        return False
    if isinstance(some, list):
        return len(some) == len(others) and all(map(_equal, some, others))
    return (
        isinstance(some, torch.Tensor)
        and (some.dtype, some.shape, some.stride(), some.device)
        == (others.dtype, others.shape, others.stride(), others.device)
        and torch.equal(_bits(some), _bits(others))
    )


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(-1).view(torch.uint8)


# -- order of an epoch ----------------------------------------------------------------------------


class TensorBatches:
    """The batches of indices that torch's batch sampler would draw, as int64 tensors.

    Args:
        sampler: one of which ``draws_at_once`` is true.
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


def draws_at_once(sampler: Any) -> bool:
    """Return whether all indices of an epoch may be drawn early without a visible difference."""
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
