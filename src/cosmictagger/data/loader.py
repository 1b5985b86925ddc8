"""Batches of dense images: their order, downsampling, and loaders that read in the background."""

import abc
import functools
import os
import weakref
from collections import deque
from collections.abc import Collection, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from cosmictagger.data.larcv import PLANES, VERTEX, EventFile, Frame, Plane
from cosmictagger.data.truth import Truth
from cosmictagger.errors import ConfigError, DataError
from cosmictagger.measures import EVENT_CLASSES

_AHEAD = 2  # batches that a background thread prepares
_SYNTHETIC = 1_000_000  # events


def dense_size(size: tuple[int, int], downsample: int) -> tuple[int, int]:
    """Return (H, W) of images downsampled by 2^k."""
    factor = 1 << downsample if downsample >= 0 else 0
    if not factor or size[0] % factor or size[1] % factor:
        fitting = [k for k in range(20) if not (size[0] % (1 << k) or size[1] % (1 << k))]
        raise ConfigError(
            f"downsample={downsample} does not fit images of {size[0]} x {size[1]}: 2^downsample "
            f"has to divide both. Values that fit: {fitting[0]} to {fitting[-1]}."
        )
    return size[0] // factor, size[1] // factor


def densify(
    planes: Sequence[Plane],
    size: tuple[int, int],
    downsample: int = 0,
    label: bool = False,
    log: bool = False,
    out: npt.NDArray | None = None,
) -> npt.NDArray:
    """Convert the stored pixels of one event to dense images.

    Equal to larcv3 3.5 bit for bit. It walks the voxels in stored order (ascending ids: column by
    column, time upwards inside a column), adds each in float32 to its cell, and divides by the
    cell's area at the end; a sum in float64 or by pairs would round differently. Labels take the
    largest class of the cell: neutrino over cosmic over background.

    Args:
        planes: three planes of pixels.
        size: (H, W) of the stored images.
        downsample: exponent k: cells of 2^k x 2^k pixels become one.
        label: whether the values are classes 0..2.
        log: give ln(1 + x) of the image.
        out: [3, H / 2^k, W / 2^k], contiguous and all zeros, to be filled.

    Returns:
        float32 (image) or int64 (label) [3, H / 2^k, W / 2^k]; rows are times, columns are wires.
    """
    height, width = dense_size(size, downsample)
    if out is None:
        out = np.zeros((PLANES, height, width), np.int64 if label else np.float32)
    for pixels, target in zip(planes, out.reshape(PLANES, -1), strict=True):
        cells = _cells(pixels.ids, size, downsample)
        if label:
            for value in (1, 2):
                target[cells[pixels.values == value]] = value
        else:
            _mean(target, cells, pixels.values, downsample)
            if log:
                # Cells that come twice are read once, before any is written.
                target[cells] = np.log1p(target[cells])
    return out


def _cells(
    ids: npt.NDArray[np.uint64], size: tuple[int, int], downsample: int
) -> npt.NDArray[np.int64]:
    """Return the flat index of each pixel's cell in a downsampled image."""
    # 32-bit division is several times faster than 64-bit, and ids fit: checked by the reader.
    kind = np.uint32 if size[0] * size[1] <= 1 << 32 else np.uint64
    column, row = np.divmod(ids.astype(kind), kind(size[0]))
    width = size[1] >> downsample
    return (row >> kind(downsample)).astype(np.int64) * width + (column >> kind(downsample))


def _mean(
    target: npt.NDArray[np.float32],
    cells: npt.NDArray[np.int64],
    values: npt.NDArray[np.float32],
    downsample: int,
) -> None:
    if not downsample:
        target[cells] = values
        return
    # Walks the values one by one as numpy.add.at does, in a twentieth of its time.
    sums = torch.from_numpy(target)
    sums.index_add_(0, torch.from_numpy(cells), torch.from_numpy(values))
    # Powers of two: the division is exact, and each cell that was hit is divided once.
    target[cells] = target[cells] * np.float32(0.25**downsample)


@dataclass(frozen=True)
class Order:
    """The sequence of batches of one instance.

    Attributes:
        events: how many there are.
        batch_size: events of one batch of one instance.
        shuffle: another order in each epoch, or the order of the files.
        seed: of the shuffling.
        shard: (index, count) of the instance.
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
    across_epochs: bool = False
    equal: bool = False
    origin: int = 0

    def __post_init__(self) -> None:
        if self.across_epochs and self.events < self.step_size:
            raise ConfigError(
                f"A full batch takes {self.step_size} events (batch_size {self.batch_size} x "
                f"{self.shard[1]} instances), the file has {self.events}. Take a smaller "
                "run.minibatch_size, or more events."
            )

    @property
    def step_size(self) -> int:
        """Number of events of one step, summed over all instances."""
        return self.batch_size * self.shard[1]

    def batches(self, epoch: int) -> int:
        """Return the number of batches of this instance in an epoch."""
        if self.across_epochs:
            return self._first_step(epoch + 1) - self._first_step(epoch)
        full, rest = divmod(self.events, self.step_size)
        least = 0 if self.equal else self.shard[0] * self.batch_size
        return full + (rest > least)

    def entries(self, epoch: int, position: int) -> npt.NDArray[np.int64]:
        """Return the event numbers of one batch.

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
        """Return an order with a new batch size that continues from a position.

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
        """Return the first event of a step over all instances, counted over all epochs."""
        return self.origin + (self._first_step(epoch) + position) * self.step_size

    def epoch_order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the permutation of all events in an epoch, int64 [events]."""
        return _epoch_order(self.events, self.seed, epoch if self.shuffle else None)

    def _first_step(self, epoch: int) -> int:
        """Return the number of the first step, over all epochs, that starts in an epoch."""
        return -((self.origin - epoch * self.events) // self.step_size)


@functools.lru_cache(maxsize=8)
def _epoch_order(events: int, seed: int, epoch: int | None) -> npt.NDArray[np.int64]:
    if epoch is None:
        return np.arange(events)
    # Sorting raw bits, not Generator.permutation: numpy promises the same bits in every release,
    # and a resumed run has to see the same batches after an upgrade.
    keys = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(events)
    return np.argsort(keys, kind="stable")


# What has to be equal for a stored position to mean the same events.
_IDENTITY = ("events", "shuffle", "across_epochs")


@dataclass(frozen=True)
class Batch:
    """A batch of events as dense images.

    Attributes:
        image: float32 [B, 3, H, W], charge; rows are times, columns are wires.
        label: int64 [B, 3, H, W], 0 background, 1 cosmic, 2 neutrino; None without labels.
        entries: number of each event in the file.
        event_ids: int64 [B, 3], run, subrun and event number of each event.
        event_label: int64 [B], positions in ``EVENT_CLASSES``; None where no truth is asked for.
        vertex: float32 [B, 3, 2], row and column of the vertex in each plane, as shares of the
            image; where it is not in the image or there is none (3, cosmic only), outside of 0 to
            1. None likewise.
    """

    image: torch.Tensor
    label: torch.Tensor | None
    entries: list[int]
    event_ids: npt.NDArray[np.int64]
    event_label: torch.Tensor | None = None
    vertex: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.entries)


class BatchStream(abc.ABC):
    """Base class of loaders: batches in an order, with a position that can be saved.

    Iterating gives the rest of the current epoch and then moves to the next one. The position
    counts the batches that were handed out, not those prepared ahead.

    Args:
        order: which events make which batch.
        stored_size: (H, W) of the images before they shrink.
        downsample: exponent k: the size is divided by 2^k.
        img_transform: the images become ln(1 + x).

    Attributes:
        stored_size: (H, W) of the images before downsampling.
        image_size: (H, W) of the images.
        frame: where the images lie; in pixels of the file if that is not known.
    """

    def __init__(
        self, order: Order, stored_size: tuple[int, int], downsample: int, img_transform: bool
    ) -> None:
        self.stored_size, self.image_size = stored_size, dense_size(stored_size, downsample)
        self.downsample, self.img_transform = downsample, img_transform
        self.frame = Frame(
            np.tile(np.array(stored_size, np.float64), (PLANES, 1)), np.zeros((3, 2))
        )
        self.order = order
        self.epoch = 0
        self.position = 0
        # Weak: a loop that is left early lets go of its iterator, and so of its thread, at once.
        self._running: weakref.ref[Generator[Batch, None, None]] | None = None

    @property
    def events(self) -> int:
        """The number of events of all instances together."""
        return self.order.events

    @property
    def batch_size(self) -> int:
        """Number of events of one batch of this instance."""
        return self.order.batch_size

    @property
    def step_size(self) -> int:
        """Number of events of one batch, summed over all instances."""
        return self.order.step_size

    @abc.abstractmethod
    def load(self, entries: Sequence[int]) -> Batch:
        """Assemble a batch of the given events synchronously."""

    def __len__(self) -> int:
        """Return the number of batches of the current epoch, including returned ones."""
        return self.order.batches(self.epoch)

    def __iter__(self) -> Iterator[Batch]:
        """Iterate over the rest of the current epoch; a running iteration ends."""
        self.stop()
        running = self._rest_of_epoch()
        self._running = weakref.ref(running)
        return running

    def stop(self) -> None:
        """Stop a running iteration and the background thread."""
        running = self._running() if self._running is not None else None
        self._running = None
        if running is not None:
            running.close()

    def close(self) -> None:
        """Stop the background thread and close open files."""
        self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of an epoch; a running iteration ends."""
        self.stop()
        self.epoch, self.position = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next batch as plain, serializable values."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.order.seed,
            "origin": self.order.origin,
            "step_size": self.order.step_size,
            **{name: getattr(self.order, name) for name in _IDENTITY},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a position from ``state_dict``; the same events follow.

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
        epoch, todo = self.epoch, iter(range(self.position, len(self)))
        # One thread: HDF5 lets one in at a time, and a batch takes a few percent of a step.
        pool = ThreadPoolExecutor(1, "cosmictagger-loader")
        ahead: deque[Future[Batch]] = deque()

        def prepare_next() -> None:
            if (position := next(todo, None)) is not None:
                ahead.append(pool.submit(self._batch, epoch, position))

        try:
            for _ in range(_AHEAD):
                prepare_next()
            while ahead:
                batch = ahead.popleft().result()
                prepare_next()
                self.position += 1
                yield batch
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        self._running = None
        self.epoch, self.position = epoch + 1, 0

    def _batch(self, epoch: int, position: int) -> Batch:
        return self.load(self.order.entries(epoch, position).tolist())


class EventLoader(BatchStream):
    """A loader that reads batches of a larcv3 file in a background thread.

    In order for inference; for training with ``shuffle``, each event once per epoch. Every image
    value is checked to be a number.

    Args:
        file: of events, by name or opened; ``close`` closes it.
        downsample: exponent k: cells of 2^k x 2^k pixels become one.
        img_transform: give ln(1 + x) of the images.
        truth: what batches shall have of the truth of whole events, see ``Truth``.
        order: see ``Order``: batch_size, shuffle, seed, shard, across_epochs, equal.
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | EventFile,
        *,
        downsample: int = 0,
        img_transform: bool = False,
        truth: Collection[str] = (),
        batch_size: int = 1,
        **order: Any,
    ) -> None:
        self.file = file if isinstance(file, EventFile) else EventFile(file)
        super().__init__(
            Order(len(self.file), batch_size, **order),
            self.file.image_size,
            downsample,
            img_transform,
        )
        self._truth = None
        if truth and self.file.label is not None:
            self._truth = Truth(self.file, truth)
        if truth:
            self.frame = self.file.frame(VERTEX)

    def load(self, entries: Sequence[int]) -> Batch:
        """Read the given events synchronously into one batch."""
        shape, file = (len(entries), PLANES, *self.image_size), self.file
        image = np.zeros(shape, np.float32)
        label = None if file.label is None else np.zeros(shape, np.int64)
        for row, event in enumerate(entries):
            planes = file.sparse(file.image, event)
            _check_finite(file, event, planes)
            size, factor = self.stored_size, self.downsample
            densify(planes, size, factor, log=self.img_transform, out=image[row])
            if label is not None and file.label is not None:
                classes = file.sparse(file.label, event)
                densify(classes, size, factor, label=True, out=label[row])
        return Batch(
            torch.from_numpy(image),
            None if label is None else torch.from_numpy(label),
            list(entries),
            file.event_ids[list(entries)].reshape(-1, 3),
            *self._read_truth(entries, label),
        )

    def _read_truth(
        self, entries: Sequence[int], label: npt.NDArray | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return classes and vertices of events, or nothing if they are not asked for."""
        if self._truth is None or label is None:
            return None, None
        rows = [self._truth.read(event, label[row]) for row, event in enumerate(entries)]
        classes = torch.tensor([kind for kind, _ in rows], dtype=torch.int64)
        places = np.array([place for _, place in rows], np.float32).reshape(-1, PLANES, 2)
        return classes, torch.from_numpy(places)

    def close(self) -> None:
        """Stop the background thread and close the event file."""
        super().close()
        self.file.close()


def _check_finite(file: EventFile, event: int, planes: Sequence[Plane]) -> None:
    for plane, (ids, values) in enumerate(planes):
        wrong = np.flatnonzero(~np.isfinite(values))
        if len(wrong):
            raise DataError(
                f"{file.path}: event {event}, plane {plane} of {file.image!r} has the value "
                f"{values[wrong[0]]} at pixel id {ids[wrong[0]]}; {len(wrong)} in all are no "
                "numbers. Remove the event or mend the file."
            )


class SyntheticLoader(BatchStream):
    """A loader of random images with the interface of ``EventLoader``, a million per epoch.

    Args:
        batch_size: events of one batch of this instance.
        downsample: exponent k, as for real data: size divided by 2^k.
        size: (H, W) before downsampling.
        seed: of the random numbers.
        shard: (index, count) of this instance.
        img_transform: give ln(1 + x) of the images.
        truth: whether there are classes and vertices, random ones.
    """

    def __init__(
        self,
        batch_size: int = 1,
        downsample: int = 0,
        size: tuple[int, int] = (1280, 2048),
        seed: int = 0,
        shard: tuple[int, int] = (0, 1),
        img_transform: bool = False,
        truth: Collection[str] = (),
    ) -> None:
        self._has_truth = bool(truth)
        order = Order(_SYNTHETIC, batch_size, seed=seed, shard=shard, across_epochs=True)
        super().__init__(order, size, downsample, img_transform)

    def load(self, entries: Sequence[int]) -> Batch:
        """Generate a batch of random images from event numbers."""
        shape = (len(entries), PLANES, *self.image_size)
        image, label = np.empty(shape, np.float32), np.empty(shape, np.int64)
        kinds, places = np.empty(shape[:1], np.int64), np.empty((*shape[:2], 2), np.float32)
        for row, entry in enumerate(entries):
            source = np.random.default_rng([self.order.seed, entry])
            source.random(dtype=np.float32, out=image[row])
            label[row] = source.integers(0, 3, shape[1:], np.uint8)
            kinds[row] = source.integers(0, len(EVENT_CLASSES))
            source.random(dtype=np.float32, out=places[row])
        if self.img_transform:
            np.log1p(image, out=image)
        ids = np.zeros((len(entries), 3), np.int64)
        ids[:, 2] = entries
        truth = map(torch.from_numpy, (kinds, places) if self._has_truth else ())
        return Batch(torch.from_numpy(image), torch.from_numpy(label), list(entries), ids, *truth)
