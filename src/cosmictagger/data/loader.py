"""Batches of dense images, prepared in the background while the device computes."""

import abc
import os
import weakref
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from cosmictagger.data.dense import dense_size, densify
from cosmictagger.data.larcv import EventFile
from cosmictagger.data.layout import IMAGE, LABEL, PLANES
from cosmictagger.data.order import Order
from cosmictagger.errors import DataError

Source = str | os.PathLike[str] | EventFile

# What has to be equal for a stored position to mean the same events.
_IDENTITY = ("events", "shuffle", "drop_last", "across_epochs")


@dataclass(frozen=True)
class Batch:
    """Some events as dense images.

    Attributes:
        image: float32 [B, 3, H, W], charge; rows are times, columns are wires.
        label: int64 [B, 3, H, W], 0 background, 1 cosmic, 2 neutrino; None without labels.
        entries: number of each event, counted through all files.
        event_ids: int64 [B, 3], run, subrun and event number of each event.
    """

    image: torch.Tensor
    label: torch.Tensor | None
    entries: list[int]
    event_ids: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.entries)


class BatchStream(abc.ABC):
    """Batches in an order, with a position that can be stored; what all loaders share.

    Iterating gives the rest of the current epoch and then moves to the next one. The position
    counts the batches that were handed out, not those prepared ahead.

    Args:
        order: which events make which batch.
        stored_size: (H, W) of the images before they shrink.
        downsample: exponent k: the size is divided by 2^k.
        prefetch: how many batches are prepared ahead by a background thread; 0 means none.

    Attributes:
        stored_size: as given.
        image_size: (H, W) of the images.
    """

    def __init__(
        self, order: Order, stored_size: tuple[int, int], downsample: int, prefetch: int = 2
    ) -> None:
        if prefetch < 0:
            raise DataError(f"prefetch is {prefetch}; it has to be 0 or more.")
        self.stored_size, self.image_size = stored_size, dense_size(stored_size, downsample)
        self.order = order
        self.prefetch = prefetch
        self.epoch = 0
        self.position = 0
        # Weak: a loop that is left early lets go of its iterator, and so of its thread, at once.
        self._running: weakref.ref[Generator[Batch, None, None]] | None = None

    @property
    def events(self) -> int:
        """How many events there are, of all instances together."""
        return self.order.events

    @property
    def batch_size(self) -> int:
        """Events of one batch of this instance."""
        return self.order.batch_size

    @property
    def step_size(self) -> int:
        """Events of one batch of all instances together."""
        return self.order.step_size

    @abc.abstractmethod
    def load(self, entries: Sequence[int]) -> Batch:
        """Make one batch of the given events, here and now."""

    def __len__(self) -> int:
        """Return batches of the current epoch, those already handed out included."""
        return self.order.batches(self.epoch)

    def __iter__(self) -> Iterator[Batch]:
        """Return the rest of the current epoch; ends an iteration that was under way."""
        self.stop()
        running = self._rest_of_epoch()
        self._running = weakref.ref(running)
        return running

    def stop(self) -> None:
        """End an iteration that is under way and its background thread."""
        running = self._running() if self._running is not None else None
        self._running = None
        if running is not None:
            running.close()

    def close(self) -> None:
        """End the background thread and close what is open."""
        self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; end an iteration that is under way."""
        self.stop()
        self.epoch, self.position = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """Return where the next batch comes from, as plain values that any format can store."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.order.seed,
            "origin": self.order.origin,
            "step_size": self.order.step_size,
            **{name: getattr(self.order, name) for name in _IDENTITY},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was taken: the very same events follow.

        In the same batches, if these are of the same size, of all instances together.
        """
        missing = {"epoch", "position", "seed", "step_size", *_IDENTITY} - set(state)
        if missing:
            raise DataError(f"The stored position of the loader lacks {sorted(missing)}.")
        for name in _IDENTITY:
            if state[name] != getattr(self.order, name):
                raise DataError(
                    f"The stored position of the loader is for {name}={state[name]}, here it is "
                    f"{getattr(self.order, name)}. Go on with the same data, or start it afresh "
                    "with set_epoch."
                )
        self.stop()
        order = replace(self.order, seed=int(state["seed"]), origin=int(state.get("origin", 0)))
        place = int(state["epoch"]), int(state["position"])
        self.order, self.epoch, self.position = order.moved(*place, int(state["step_size"]))

    def _rest_of_epoch(self) -> Generator[Batch, None, None]:
        epoch, last = self.epoch, len(self)
        todo = iter(range(self.position, last))
        if not self.prefetch:
            for position in todo:
                yield self._handed_out(position, self._batch(epoch, position))
        else:
            yield from self._prefetched(epoch, todo)
        self._running = None
        self.epoch, self.position = epoch + 1, 0

    def _prefetched(self, epoch: int, todo: Iterator[int]) -> Generator[Batch, None, None]:
        # One thread: HDF5 lets one in at a time, and a batch takes a few percent of a step.
        pool = ThreadPoolExecutor(1, "cosmictagger-loader")
        ahead: deque[tuple[int, Future[Batch]]] = deque()
        try:
            while True:
                while len(ahead) < self.prefetch and (position := next(todo, None)) is not None:
                    ahead.append((position, pool.submit(self._batch, epoch, position)))
                if not ahead:
                    return
                position, future = ahead.popleft()
                batch = future.result()
                following = next(todo, None)
                if following is not None:
                    ahead.append((following, pool.submit(self._batch, epoch, following)))
                yield self._handed_out(position, batch)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _batch(self, epoch: int, position: int) -> Batch:
        return self.load(self.order.entries(epoch, position).tolist())

    def _handed_out(self, position: int, batch: Batch) -> Batch:
        self.position = position + 1
        return batch


class EventLoader(BatchStream):
    """Batches out of larcv3 files, read and made dense in the background.

    In order for inference; for training with ``shuffle``, each event once per epoch. Every image
    value is checked to be a number.

    Args:
        files: files of events, or lists of them; opened ones are closed by ``close`` as well.
        batch_size: events of one batch of this instance.
        downsample: exponent k: cells of 2^k x 2^k pixels become one.
        shuffle: another order in each epoch.
        seed: of the shuffling.
        shard: (index, count) of this instance among those that share each step.
        prefetch: how many batches are prepared ahead.
        drop_last: leave out events at the end of an epoch that fill no batch.
        across_epochs: fill the last batch with the first events of the next epoch: batches of one
            size and yet each event once per epoch.
        equal: all instances get the same number of batches; the last one of an epoch may be empty.
        img_transform: give ln(1 + x) of the images.
        image: producer of the images, for files given by name.
        label: producer of the labels, or None to read none, for files given by name.
    """

    def __init__(
        self,
        *files: Source | Sequence[Source],
        batch_size: int = 1,
        downsample: int = 0,
        shuffle: bool = False,
        seed: int = 0,
        shard: tuple[int, int] = (0, 1),
        prefetch: int = 2,
        drop_last: bool = False,
        across_epochs: bool = False,
        equal: bool = False,
        img_transform: bool = False,
        image: str = IMAGE,
        label: str | None = LABEL,
    ) -> None:
        self.files = [_opened(source, image, label) for source in _flat(files)]
        self.downsample = downsample
        self.img_transform = img_transform
        self._ends = np.cumsum([len(file) for file in self.files])
        events = int(self._ends[-1])
        if not events:
            names = ", ".join(str(file.path) for file in self.files)
            raise DataError(f"There are no events in {names}. Name files that have some.")
        order = Order(events, batch_size, shuffle, seed, shard, drop_last, across_epochs, equal)
        super().__init__(order, _common_size(self.files), downsample, prefetch)

    def locate(self, entry: int) -> tuple[EventFile, int]:
        """Return the file of an event, counted through all files, and its number there."""
        if not 0 <= entry < self.events:
            raise DataError(f"Event {entry} was asked for, the files have {self.events}.")
        index = int(np.searchsorted(self._ends, entry, side="right"))
        file = self.files[index]
        return file, entry - int(self._ends[index]) + len(file)

    def load(self, entries: Sequence[int]) -> Batch:
        """Read the given events and make one batch of them, here and now."""
        shape = (len(entries), PLANES, *self.image_size)
        places = [self.locate(entry) for entry in entries]
        labelled = all(file.label is not None for file, _ in places)
        image = np.zeros(shape, np.float32)
        label = np.zeros(shape, np.int64) if labelled else None
        for row, (file, event) in enumerate(places):
            planes = file.sparse(file.image, event)
            _check_finite(file, event, planes)
            size, factor = self.stored_size, self.downsample
            densify(planes, size, factor, log=self.img_transform, out=image[row])
            if label is not None and file.label is not None:
                classes = file.sparse(file.label, event)
                densify(classes, size, factor, label=True, out=label[row])
        ids = [file.event_ids[event] for file, event in places]
        return Batch(
            torch.from_numpy(image),
            None if label is None else torch.from_numpy(label),
            list(entries),
            np.array(ids, np.int64).reshape(-1, 3),
        )

    def close(self) -> None:
        """End the background thread and close the files."""
        super().close()
        for file in self.files:
            file.close()


def _flat(files: Sequence[Source | Sequence[Source]]) -> list[Source]:
    sources: list[Source] = []
    for entry in files:
        if isinstance(entry, str | os.PathLike | EventFile):
            sources.append(entry)
        else:
            sources += entry
    if not sources:
        raise DataError("A loader needs at least one file of events, found none.")
    return sources


def _opened(source: Source, image: str, label: str | None) -> EventFile:
    return source if isinstance(source, EventFile) else EventFile(source, image, label)


def _common_size(files: Sequence[EventFile]) -> tuple[int, int]:
    for file in files[1:]:
        if file.image_size != files[0].image_size:
            raise DataError(
                f"Files of one loader need images of one size: {files[0].path} has "
                f"{files[0].image_size} (rows, columns), {file.path} has {file.image_size}."
            )
    return files[0].image_size


def _check_finite(file: EventFile, event: int, planes: Sequence[Any]) -> None:
    for plane, (ids, values) in enumerate(planes):
        wrong = np.flatnonzero(~np.isfinite(values))
        if len(wrong):
            raise DataError(
                f"{file.path}: event {event}, plane {plane} of {file.image!r} has the value "
                f"{values[wrong[0]]} at pixel id {ids[wrong[0]]}; {len(wrong)} in all are no "
                "numbers. Remove the event or mend the file."
            )
