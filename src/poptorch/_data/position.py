"""The position of a data loader in its data set, and resuming from it.

The order of an epoch follows from random numbers that torch's loader draws when the epoch begins.
So a position is the number of the epoch, how many batches were given, and the state of the random
numbers at that beginning; going on means drawing the same order and leaving out its first part.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch

from abele.runtime import host_random
from poptorch._error import error


class Position:
    """The position of a data loader in its data set; not shared with copies of the loader.

    Attributes:
        begun: number of iterators (epochs) that have been started.
        batches_out: number of batches that the latest iterator has returned.
        running: whether the latest iterator has not finished yet.
        start: random state when it was started; None where another process has it.
        order: the ``Order`` that its sampler follows.
    """

    def __init__(self) -> None:
        self.begun = self.batches_out = 0
        self.running = False
        self.start: dict[str, Any] | None = None
        self.order = Order()
        self._loaded: dict[str, Any] | None = None

    def begin(
        self,
        make: Callable[[int, bool], Iterator[Any]],
        generator: torch.Generator | None,
    ) -> "Counted":
        """Start an epoch of the data loader, or continue a loaded epoch.

        ``make(skip, replay)`` creates an iterator that skips batches, reading them if ``replay``.
        """
        loaded, self._loaded = self._loaded, None
        now = host_random.read(generator)
        self.begun, self.batches_out, self.running, self.start = self.begun + 1, 0, True, now
        self.order.reset()
        if loaded is None:
            return Counted(make(0, False), self)
        if loaded["running"]:
            return Counted(self._go_on(make, generator, loaded), self)
        if not loaded["has_workers"]:
            return Counted(make(0, False), self)
        # Starting processes draws a number; the run that is continued had them already.
        self.order.resume(now)
        iterator = make(0, False)
        host_random.write(self.order.after or now, generator)
        return Counted(iterator, self)

    def _go_on(
        self,
        make: Callable[[int, bool], Iterator[Any]],
        generator: torch.Generator | None,
        loaded: dict[str, Any],
    ) -> Iterator[Any]:
        """Return an iterator in the middle of an epoch; keep the current random state."""
        now, start = self.start, loaded["start"]
        self.batches_out = loaded["given"]
        self.order.resume(loaded["order"])
        if start is None:  # another process sets the random state of each epoch
            return make(self.batches_out, loaded["replay"])
        host_random.write(start, generator)
        iterator = make(self.batches_out, loaded["replay"])
        assert now is not None
        host_random.write(now, generator)
        self.start = start
        return iterator

    def state(self, has_workers: bool) -> dict[str, Any]:
        """Return the loader's position as tensors and plain values, for ``load``."""
        return {
            "begun": self.begun,
            "given": self.batches_out if self.running else 0,
            "running": self.running,
            "has_workers": has_workers,
            "start": self.start if self.running else None,
            "order": self.order.start if self.running else None,
        }

    def load(self, state: dict[str, Any], replay: bool) -> None:
        """Resume from a saved position with the loader's next iterator."""
        self.begun = state["begun"] - state["running"]
        self.batches_out, self.running = 0, False
        self._loaded = {**state, "replay": replay}


class Order:
    """The order of a sampler's indices in one epoch, and the random state that it starts with.

    ``after`` is the random state behind the first draw of a resumed epoch, else None.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start an epoch with the current random state in the sampler's next iterator."""
        self.start: dict[str, Any] | None = None
        self.after: dict[str, Any] | None = None
        self._resumed: dict[str, Any] | None = None
        self._skip = 0

    def resume(self, start: dict[str, Any] | None) -> None:
        """Set the random state that the sampler's next iterator starts with; None: the current."""
        self._resumed = start

    def leave_out(self, count: int) -> None:
        """Skip the sampler's first ``count`` items in the next iterator."""
        self._skip = count

    def of(self, sampler: Any, generator: torch.Generator | None) -> Iterator[Any]:
        """Iterate over one epoch of a sampler; random numbers are drawn with the first item."""
        return self._items(sampler, generator, self._resumed, self._skip)

    def _items(
        self,
        sampler: Any,
        generator: torch.Generator | None,
        resumed: dict[str, Any] | None,
        skip: int,
    ) -> Iterator[Any]:
        outside = host_random.read(generator)
        if resumed is not None:
            host_random.write(resumed, generator)
        self.start = outside if resumed is None else resumed
        indices = iter(sampler)
        for _ in islice(indices, skip):
            pass
        # Its first item makes a sampler draw. Not one more, because at its end it may draw again.
        first = list(islice(indices, int(resumed is not None and not skip)))
        if resumed is not None:
            self.after = host_random.read(generator)
            host_random.write(outside, generator)
        yield from first
        yield from indices


class Ordered:
    """A sampler that follows an ``Order``, with the loader's random generator if it has one."""

    def __init__(self, sampler: Any, order: Order, generator: torch.Generator | None) -> None:
        self._sampler, self._order, self._generator = sampler, order, generator

    def __iter__(self) -> Iterator[Any]:
        return self._order.of(self._sampler, self._generator)

    def __len__(self) -> int:
        return len(self._sampler)


class Counted:
    """An iterator that counts batches for a loader's position until a newer iterator starts."""

    def __init__(self, batches: Iterator[Any], position: Position) -> None:
        self._batches, self._position, self._epoch = batches, position, position.begun

    def __iter__(self) -> "Counted":
        return self

    def __next__(self) -> Any:
        present = self._position.begun == self._epoch
        try:
            batch = next(self._batches)
        except StopIteration:
            if present:
                self._position.running = False
            raise
        if present:
            self._position.batches_out += 1
        return batch

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]


def check_fits(loader: dict[str, Any], state: dict[str, Any]) -> None:
    """Raise an error for the saved position of a loader with different batch settings."""
    unlike = [
        f"{name} {state.get(name)} there, {value} here"
        for name, value in loader.items()
        if state.get(name) != value
    ]
    if unlike:
        raise error(
            f"The position of another loader was loaded: {', '.join(unlike)}. Make the loader as "
            "it was when the position was saved."
        )
