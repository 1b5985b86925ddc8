"""Reading a data set in memory batch by batch instead of item by item, with the same bits.

Compared with single items whenever an epoch begins; where anything differs or is not known, items
are fetched one by one.
"""

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch.utils.data import Dataset, default_collate

from abele import _torch
from poptorch._data import in_memory
from poptorch._data.in_memory import Indices
from poptorch._data.transforms import UnknownError

_FIRST, _AT_RANDOM = 2, 6  # items that are compared

#: What computing a batch of known parts can come to; single items say it in their own words.
_FAILURES = (UnknownError, RuntimeError, TypeError, ValueError, IndexError, AttributeError)


class WholeBatches(Dataset):
    """A data set of which torch's loader asks for whole batches; its collate function is ``whole``.

    Args:
        dataset: map-style, one that ``why_single`` has no objection to.
    """

    def __init__(self, dataset: Any):
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        return self._dataset[index]

    def __getitems__(self, indices: Indices) -> Any:
        """Return the batch of some items; the program may have changed the data set meanwhile."""
        try:
            return in_memory.batch(self._dataset, indices)
        except _FAILURES:
            return _from_items(self._dataset, in_memory.numbers(indices))


class Shared:
    """An epoch of a sampler: all who iterate over it take from one iterator.

    Args:
        sampler: of indices.
    """

    def __init__(self, sampler: Any):
        self._sampler, self._indices = sampler, iter(sampler)

    def __iter__(self) -> Iterator[Any]:
        return self._indices

    def __len__(self) -> int:
        return len(self._sampler)


class Fetched:
    """Torch's iterator over whole batches, with less between an index and its rows.

    Torch tells its profiler of each batch, which takes as long as fetching one that is small. Here
    torch's iterator does the work only while somebody profiles.

    Args:
        usual: torch's iterator over ``batches``.
        batches: what is fetched.
        indices: where ``usual`` takes its indices, too.
    """

    def __init__(self, usual: Any, batches: WholeBatches, indices: Shared):
        self._usual, self._fetch, self._indices = usual, batches.__getitems__, iter(indices)

    def __iter__(self) -> "Fetched":
        return self

    def __next__(self) -> Any:
        if _torch.is_profiling():
            return next(self._usual)
        return self._fetch(next(self._indices))

    def __len__(self) -> int:
        return len(self._usual)


def whole(batch: Any) -> Any:
    """Return what ``WholeBatches`` made: nothing is left to collate."""
    return batch


def why_single(dataset: Any, collate: Callable[[list], Any]) -> str | None:
    """Return why items have to be fetched one by one; None if whole batches have the same bits.

    Reads a few items. Neither torch's random numbers nor Python's are touched.

    Args:
        dataset: map-style.
        collate: the loader's collate function.
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
