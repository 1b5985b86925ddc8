"""The worker process of an `AsynchronousDataAccessor`: reads the data set into shared slots.

Messages to the parent: ("layout", layout, rows of the first element) followed by the memory's
descriptor; then for each slot ("full", run, slot, rows, structure), and after each epoch
("end", run); at last ("failed", text).
Messages from the parent: ("free", slot) and ("start", run, epoch, seed, skip, replay), where skip
is how many elements at the beginning of the epoch are left out. A closed connection means stop.
"""

import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from poptorch._data.slots import (
    Layout,
    Parts,
    Slots,
    anonymous_file,
    elements_of,
    num_rows,
    structure_of,
)
from poptorch._forward.structure import ICustomArgParser, registerCustomArgParser


@dataclass(frozen=True)
class Job:
    """The configuration of a worker process, named as the accessor's arguments.

    Attributes:
        parsers: Custom parsers, which the worker's registry may lack.
        num_slots: How many elements are prepared ahead.
        drop_last: Whether an incomplete assembled element is dropped.
        seed: Random state of the first epoch; later epochs count up from it.
        start_method: How the data set's own processes are made, as in the parent.
    """

    dataset: Any
    parsers: dict[type, ICustomArgParser]
    num_slots: int
    load_indefinitely: bool
    early_preload: bool
    rebatched_size: int | None
    drop_last: bool
    seed: int
    start_method: str


class _StoppedError(Exception):
    """The signal inside a worker process that the parent has closed the connection."""


class _RestartError(Exception):
    """The signal inside a worker process that the parent requests a new run."""


def main(connection: Connection, parents_end: Connection | None, job: Job) -> None:
    """Run the worker process until the parent stops it or dies, or the data set fails.

    The parent's end of the pipe is closed here if inherited: it would hide the parent's death.
    """
    if parents_end is not None:
        parents_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    # Otherwise a spawned process would spawn its children too, each with its own import of torch.
    multiprocessing.set_start_method(job.start_method, force=True)
    # A forked copy of OpenMP's thread pool would hang at its first use.
    torch.set_num_threads(1)
    try:
        _Worker(connection, job).run()
    except _StoppedError:
        pass
    except BaseException:  # noqa: BLE001 - whatever the data set raises is the parent's to report
        with contextlib.suppress(OSError):
            connection.send(("failed", traceback.format_exc()))


def _exit_with_parent() -> None:
    # In a thread, because the data set may block for ever when its source died with the parent.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        for child in multiprocessing.active_children():
            child.kill()
        os._exit(1)


class _Worker:
    """The state of a worker process that fills shared slots with data set elements."""

    def __init__(self, connection: Connection, job: Job) -> None:
        self._connection = connection
        self._job = job
        for kind, parser in job.parsers.items():
            registerCustomArgParser(kind, parser)
        self._dataset = job.dataset
        self._free = list(range(job.num_slots))
        self._filled: int | None = None  # a slot that has some rows but not all
        self._rows = 0
        self._structure: bytes | None = None
        self._run = self._next_epoch = self._skip = self._rows_left_out = 0
        self._seed, self._replay = job.seed, False
        self._begin_epoch(0)

    def run(self) -> None:
        """Fill slots with the elements of epoch after epoch until the parent stops the worker."""
        try:
            first = next(self._elements)
        except StopIteration:
            raise RuntimeError("The Dataset is empty") from None
        self._elements = itertools.chain([first], self._elements)
        self._share_memory(Parts.of(first))
        idle = not self._job.early_preload
        while True:
            restart = False
            try:
                idle = self._work(idle)
            except _RestartError:
                restart = True
            if restart:  # out of the handler, whose traceback keeps the old iterator alive
                idle = False
                self._rewind()

    def _work(self, idle: bool) -> bool:
        while idle:
            self._handle()  # until a start is raised
        self._produce_epoch()
        self._send("end", self._run)
        if self._job.load_indefinitely:
            self._begin_epoch(self._epoch + 1)
        return not self._job.load_indefinitely

    def _rewind(self) -> None:
        if self._filled is not None:
            self._free.append(self._filled)
            self._filled = None
        if self._used or self._skip or self._begun != (self._next_epoch, self._seed):
            skip, self._skip = self._skip, 0
            self._begin_epoch(self._next_epoch, skip)

    def _begin_epoch(self, epoch: int, skip: int = 0) -> None:
        self._epoch, self._begun = epoch, (epoch, self._seed)
        self._used = False
        self._elements: Iterator[Any] = iter(())  # lets go of the old iterator's processes first
        # Each epoch's randomness depends on its number alone, never on how far the worker ran
        # ahead before the parent left a loop.
        seed = self._seed + epoch
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed % 2**63)
        if set_epoch := getattr(self._dataset, "_set_epoch", None):
            set_epoch(epoch)
        self._goes_on, self._rows_left_out = skip > 0, 0
        if skip:
            self._leave_out(skip)
        self._elements = elements_of(self._dataset)

    def _leave_out(self, batches: int) -> None:
        """Skip the loader's first batches; drop first rows if a batch ends within an element."""
        loader, size = self._dataset, self._job.rebatched_size
        if self._epoch == 0:
            loader.terminate()  # processes that are kept began together with this epoch
        elements = batches
        if size is not None:
            elements, self._rows_left_out = divmod(batches * size, loader._rows_of_an_element)
        loader._position.load(
            {"begun": 1, "given": elements, "running": True, "start": None, "order": None},
            self._replay,
        )

    def _share_memory(self, first: Parts) -> None:
        layout = Layout.of(first, self._job.rebatched_size)
        rows = None if layout.rows is None else num_rows(first)
        descriptor = anonymous_file(self._job.num_slots * layout.slot_bytes)
        self._send("layout", layout, rows)
        reduction.send_handle(self._connection, descriptor, os.getppid())
        self._slots = Slots(layout, self._job.num_slots, descriptor)
        windows = map(self._slots.window, range(self._job.num_slots))
        self._targets = [self._slots.tensors(window) for window in windows]

    def _produce_epoch(self) -> None:
        count = 0
        for element in self._elements:
            self._used = True
            parts = Parts.of(element)
            tensors = self._slots.layout.ordered(parts)
            structure = structure_of(element, tensors) if parts.kind == "custom" else None
            if self._slots.layout.rows is None:
                count += self._give_whole(tensors, structure)
            else:
                count += self._give_rows(tensors, num_rows(parts), structure)
        count += self._give_rest()
        if not count and not self._goes_on:
            rows = self._slots.layout.rows
            raise RuntimeError(
                f"The Dataset is empty: epoch {self._epoch} has no element"
                + (f" of {rows} rows" if rows else "")
            )

    def _give_rest(self) -> int:
        slot, self._filled = self._filled, None
        if slot is None:
            return 0
        if self._job.drop_last:
            self._free.append(slot)
            return 0
        self._give(slot, self._rows, self._structure)
        return 1

    def _give(self, slot: int, rows: int | None, structure: bytes | None) -> None:
        self._send("full", self._run, slot, rows, structure)

    def _give_whole(self, tensors: list[torch.Tensor], structure: bytes | None) -> int:
        slot = self._take_slot()
        for target, tensor in zip(self._targets[slot], tensors, strict=True):
            target.copy_(tensor.detach())
        self._give(slot, None, structure)
        return 1

    def _give_rows(self, tensors: list[torch.Tensor], rows: int, structure: bytes | None) -> int:
        size = self._slots.layout.rows or 0
        slots, start = 0, min(self._rows_left_out, rows)
        self._rows_left_out -= start
        while start < rows:
            if self._filled is None:
                self._filled, self._rows, self._structure = self._take_slot(), 0, structure
            count = min(rows - start, size - self._rows)
            for target, tensor in zip(self._targets[self._filled], tensors, strict=True):
                piece = tensor.detach()[start : start + count]
                target[self._rows : self._rows + count].copy_(piece)
            start, self._rows = start + count, self._rows + count
            if self._rows == size:
                self._give(self._filled, None, self._structure)
                self._filled, slots = None, slots + 1
        return slots

    def _take_slot(self) -> int:
        while self._connection.poll(0) or not self._free:
            self._handle()
        return self._free.pop(0)

    def _handle(self) -> None:
        try:
            command, *arguments = self._connection.recv()
        except (EOFError, OSError):
            raise _StoppedError from None
        if command == "free":
            self._free.append(*arguments)
        else:
            self._run, self._next_epoch, self._seed, self._skip, self._replay = arguments
            raise _RestartError

    def _send(self, *message: Any) -> None:
        try:
            self._connection.send(message)
        except OSError:
            raise _StoppedError from None
