"""The assignment of events to batches: a pure function of the epoch and the position in it.

Batches are cut from one sequence of all events for all instances together, and each instance takes
its piece of every batch. So the events of a step do not depend on how many instances share it, and
a run can go on with another number of them.
"""

import functools
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cosmictagger.errors import DataError


@dataclass(frozen=True)
class Order:
    """The sequence of batches of one instance.

    Attributes:
        events: how many there are.
        batch_size: events of one batch of one instance.
        shuffle: another order in each epoch, or the order of the files.
        seed: of the shuffling.
        shard: (index, count) of the instance.
        drop_last: leave out the events at the end of an epoch that fill no batch.
        across_epochs: fill the last batch of an epoch with the first events of the next one, so
            that all batches are of one size and yet each event comes once per epoch.
        equal: all instances get the same number of batches; at the end of an epoch some may be
            empty.
        origin: where the first step begins, counted in events of all epochs; with across_epochs.
    """

    events: int
    batch_size: int
    shuffle: bool = False
    seed: int = 0
    shard: tuple[int, int] = (0, 1)
    drop_last: bool = False
    across_epochs: bool = False
    equal: bool = False
    origin: int = 0

    def __post_init__(self) -> None:
        index, count = self.shard
        if self.batch_size < 1:
            raise DataError(f"batch_size is {self.batch_size}; it has to be 1 or more.")
        if not 0 <= index < count:
            raise DataError(f"shard {self.shard} means instance {index} of {count}; count from 0.")
        if not self.events:
            raise DataError(f"events is {self.events}; it has to be 1 or more.")
        if self.drop_last and self.across_epochs:
            raise DataError("drop_last and across_epochs exclude each other; choose one.")
        if (self.drop_last or self.across_epochs) and self.events < self.step_size:
            raise DataError(
                f"A full batch takes {self.step_size} events (batch_size {self.batch_size} x "
                f"{count} instances), the files have {self.events}. Take a smaller batch size, "
                "more events, or allow a smaller last batch (drop_last=False, across_epochs=False)."
            )

    @property
    def step_size(self) -> int:
        """Events of one step of all instances together."""
        return self.batch_size * self.shard[1]

    def batches(self, epoch: int) -> int:
        """Return how many batches this instance gets in an epoch."""
        if self.across_epochs:
            return self._first_step(epoch + 1) - self._first_step(epoch)
        full, rest = divmod(self.events, self.step_size)
        least = 0 if self.equal else self.shard[0] * self.batch_size
        return full + (not self.drop_last and rest > least)

    def entries(self, epoch: int, position: int) -> npt.NDArray[np.int64]:
        """Return the events of one batch.

        Args:
            epoch: counts from 0.
            position: number of the batch in the epoch.

        Returns:
            int64 [batch_size], or fewer for the last batch of an epoch.
        """
        offset = self.shard[0] * self.batch_size
        if not self.across_epochs:
            start = position * self.step_size + offset
            return self.epoch_order(epoch)[start : start + self.batch_size]
        start = self._begins(epoch, position) + offset
        places = np.arange(start, start + self.batch_size)
        return np.array(
            [self.epoch_order(int(p) // self.events)[int(p) % self.events] for p in places],
            np.int64,
        )

    def moved(self, epoch: int, position: int, step_size: int) -> tuple["Order", int, int]:
        """Go on behind the steps of another size that were made so far.

        Args:
            epoch: of the next one of these steps.
            position: likewise.
            step_size: their events.

        Returns:
            An order, and epoch and position of its next batch. With across_epochs each event comes
            as often as before; otherwise events of one new step may be left out.
        """
        if step_size == self.step_size:
            return self, epoch, position
        if not self.across_epochs:
            return self, epoch, -(-position * step_size // self.step_size)
        old = replace(self, batch_size=step_size, shard=(0, 1))
        place = old._begins(epoch, position)
        new = replace(self, origin=place)
        epoch = place // self.events
        return new, epoch, -new._first_step(epoch)

    def _begins(self, epoch: int, position: int) -> int:
        """Return the first event of a step of all instances, counted in events of all epochs."""
        return self.origin + (self._first_step(epoch) + position) * self.step_size

    def epoch_order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return all events in the order of an epoch, int64 [events]."""
        return _order(self.events, self.seed, epoch if self.shuffle else None)

    def _first_step(self, epoch: int) -> int:
        """Return the number of the first step, over all epochs, that starts in this epoch."""
        return -((self.origin - epoch * self.events) // self.step_size)


@functools.lru_cache(maxsize=8)
def _order(events: int, seed: int, epoch: int | None) -> npt.NDArray[np.int64]:
    if epoch is None:
        return np.arange(events)
    # Sorting raw bits, not Generator.permutation: numpy promises the same bits in every release,
    # and a resumed run has to see the same batches after an upgrade.
    keys = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(events)
    return np.argsort(keys, kind="stable")
