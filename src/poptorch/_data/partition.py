"""The division of a data set between processes, epoch by epoch.

Every process computes the same permutation from the same seed, and owns a contiguous range of it.
"""

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler

_SEED_RANGE = 2**63


def owned_range(
    num_elements: int, combined_batch: int, process: int, num_processes: int, drop_last: bool
) -> tuple[int, int, int]:
    """Divide a data set between processes.

    Args:
        num_elements: Size of the data set.
        combined_batch: Rows that one process consumes per call.
        process: Number of the process, from 0.
        num_processes: How many there are.
        drop_last: Every process gets equally many whole batches; otherwise every element is
            given out, and the first processes may get one more than the others.

    Returns:
        First position, number of positions, and leftovers at the end that nobody owns.
    """
    if drop_last:
        count = num_elements // (combined_batch * num_processes) * combined_batch
        return process * count, count, num_elements - num_processes * count
    share, longer = divmod(num_elements, num_processes)
    return process * share + min(process, longer), share + (process < longer), 0


class PartitionSampler(Sampler[int]):
    """The indices that one process reads, in a new order at each new iterator.

    Args:
        num_elements: Size of the data set.
        combined_batch: Rows that one process consumes per call.
        process: Number of the process, from 0.
        num_processes: How many there are.
        drop_last: See `owned_range`.
        seed: Seed of the permutations; None leaves the data set in order.

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
        """Begin an epoch: return its indices, int64 [count]."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        # Every second epoch all ranges move to the end, so that the leftovers get their turn.
        first = self._first + (self._leftovers if epoch % 2 else 0)
        if self._seed is None:
            return torch.arange(first, first + self._count, device="cpu")
        generator = torch.Generator().manual_seed((self._seed + epoch) % _SEED_RANGE)
        order = torch.randperm(self._num_elements, generator=generator)
        return order[first : first + self._count]
