"""Division of a data set between processes, and concatenation of a sampler's micro-batches.

Every process computes the same permutation of an epoch from the same seed, and owns a contiguous
range of it. Micro-batches are collated one by one: a collate function may pad or count within one.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import Sampler

from poptorch._error import error
from poptorch._forward.structure import parser_for

_SEED_RANGE = 2**63


def owned_range(
    num_elements: int, combined_batch: int, process: int, num_processes: int, drop_last: bool
) -> tuple[int, int, int]:
    """Return the range of data set positions that one of several processes reads.

    Args:
        num_elements: Size of the data set.
        combined_batch: Rows that one process consumes per call.
        process: Number of the process, from 0.
        num_processes: Number of processes.
        drop_last: Every process gets equally many whole batches; otherwise every element is
            given out, and the first processes may get one more than the others.

    Returns:
        First position, number of positions, and number of elements at the end left unread.
    """
    if drop_last:
        count = num_elements // (combined_batch * num_processes) * combined_batch
        return process * count, count, num_elements - num_processes * count
    share, longer = divmod(num_elements, num_processes)
    return process * share + min(process, longer), share + (process < longer), 0


class PartitionSampler(Sampler[int]):
    """A sampler of the indices that one of several processes reads, reshuffled every epoch.

    Without a seed the data set stays in order. The arguments are those of `owned_range`.

    Attributes:
        epoch: The number of the next iterator. It alone decides on the order, so that processes
            which agree on it read disjoint elements.
    """

    def __init__(
        self,
        num_elements: int,
        combined_batch: int,
        process: int,
        num_processes: int,
        drop_last: bool,
        seed: int | None = None,
    ) -> None:
        self.epoch = 0
        self._num_elements = num_elements
        self._seed = seed
        self._first, self._count, self._leftovers = owned_range(
            num_elements, combined_batch, process, num_processes, drop_last
        )

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return iter(self.order().tolist())

    def order(self) -> torch.Tensor:
        """Start an epoch and return this process's indices, int64 [count]."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        # Every second epoch all ranges move to the end, so that the leftovers get their turn.
        first = self._first + (self._leftovers if epoch % 2 else 0)
        if self._seed is None:
            return torch.arange(first, first + self._count, device="cpu")
        generator = torch.Generator().manual_seed((self._seed + epoch) % _SEED_RANGE)
        order = torch.randperm(self._num_elements, generator=generator)
        return order[first : first + self._count]


def grouped(micro_batches: Iterable[Any], size: int, drop_last: bool) -> Iterator[Any]:
    """Concatenate every `size` consecutive micro-batches, each a structure of tensors."""
    iterator = iter(micro_batches)
    while group := list(islice(iterator, size)):
        if len(group) == size or not drop_last:
            yield concatenated(group)


def concatenated(parts: list[Any], name: str = "batch") -> Any:
    """Concatenate structures of tensors along dimension 0; their other values must be equal."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        kinds = sorted({type(part).__name__ for part in parts})
        raise _mismatch(name, f"types {kinds}")
    if isinstance(first, torch.Tensor):
        return torch.cat(parts)
    if parser := parser_for(first):
        columns = zip(*(parser.yieldTensors(part) for part in parts), strict=True)
        return parser.reconstruct(first, iter([torch.cat(column) for column in columns]))
    if isinstance(first, dict):
        return _concatenated_dicts(parts, name)
    if isinstance(first, tuple | list):
        return _concatenated_sequences(parts, name)
    if any(part != first for part in parts):
        raise _mismatch(name, f"values {parts}")
    return first


def _concatenated_dicts(parts: list[Any], name: str) -> Any:
    first = parts[0]
    if any(part.keys() != first.keys() for part in parts):
        raise _mismatch(name, f"keys {[sorted(map(str, part)) for part in parts]}")
    items = {key: concatenated([part[key] for part in parts], f"{name}[{key!r}]") for key in first}
    return items if type(first) is dict else type(first)(items)


def _concatenated_sequences(parts: list[Any], name: str) -> Any:
    first = parts[0]
    if any(len(part) != len(first) for part in parts):
        raise _mismatch(name, f"lengths {[len(part) for part in parts]}")
    items = [
        concatenated(list(column), f"{name}[{index}]")
        for index, column in enumerate(zip(*parts, strict=True))
    ]
    return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)


def _mismatch(name: str, difference: str) -> Exception:
    return error(
        f"The micro-batches of one combined batch differ: {name} has the {difference}. "
        "Let the dataset or its collate_fn return the same structure for every micro-batch"
    )
