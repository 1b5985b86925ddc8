"""`AsynchronousDataAccessor`: a data set read ahead by a separate process.

This file is the consumer's side; `accessor_worker` is the process, `slots` the memory that both
share.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import socket
import threading
from multiprocessing import reduction, util
from multiprocessing.connection import Connection
from typing import Any, Self

import torch

from abele import systems
from poptorch import processes as distributed
from poptorch._data import accessor_worker
from poptorch._data.slots import Lender, Slots
from poptorch._error import error, require
from poptorch._forward import structure
from poptorch.enums import SharingStrategy, member

_START_METHODS = {
    SharingStrategy.SharedMemory: "spawn",
    SharingStrategy.FileSystem: "spawn",
    SharingStrategy.Fork: "fork",
    SharingStrategy.ForkServer: "forkserver",
}
_TERMINATED = "The AsynchronousDataAccessor was terminated: create a new one to read on"
_ALIVE_CHECK_S, _GRACE_S = 1.0, 5.0
_GUARD = '\nA script that starts processes needs a guard: if __name__ == "__main__": main()'


class AsynchronousDataAccessor:
    """Reads a data set in a separate process, ahead of the training loop that consumes it.

    Elements are tensors, flat tuples or lists of tensors (given back as lists), dicts of tensors,
    or types with a registered custom parser; all have the shapes and types of the first one. With
    any strategy but Fork the data set must pickle, and a script needs the usual
    ``if __name__ == "__main__":``. After an interrupt in the middle of reading an element, begin a
    new iterator, which starts another process.

    Differs from the original: elements stay valid after the next one is fetched. A slot is filled
    again only when its tensors are freed; if all slots are in use, an element is a copy. Nothing
    polls, so that `miss_sleep_time_in_ms` has no effect. An element of another type than the first
    one is an error, where the original casts it without a word.

    Args:
        dataset: Any iterable, such as a loader, or a map-style data set.
        buffer_size: How many elements the shared memory holds.
        miss_sleep_time_in_ms: No effect.
        load_indefinitely: At the end of the data set, begin to prepare the next epoch.
        early_preload: Begin to read before the first iterator is created.
        sharing_strategy: How the process is started: SharedMemory and FileSystem spawn it, Fork and
            ForkServer fork it. A member or its name.
        rebatched_size: Assemble elements of this many rows from smaller or larger ones.

    Raises:
        AssertionError: An argument is not legal.
        poptorch.Error: The data set is empty, its first element fails or has an unsupported
            structure, it already has an accessor, or it does not pickle.
    """

    def __init__(
        self,
        dataset: Any,
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = 0.1,
        load_indefinitely: bool = True,
        early_preload: bool = False,
        sharing_strategy: SharingStrategy | str = SharingStrategy.ForkServer,
        rebatched_size: int | None = None,
    ) -> None:
        del miss_sleep_time_in_ms
        _check(dataset, buffer_size, rebatched_size)
        self.rebatched_size = rebatched_size
        self._dataset = dataset
        self._load_indefinitely = load_indefinitely
        self._run = 0  # number of the run that the worker was told to make
        self._epoch = -1
        self._seed = torch.initial_seed()  # an epoch's random state is this plus its number
        self._skip, self._replay = 0, False
        self._ahead = early_preload  # the worker is on the next epoch without being told
        self._consuming = False
        self._failure: str | None = None
        self._share = distributed.Share()
        self._reading = False  # stays if an exception ends a call: half a message may be left
        self._lock = threading.RLock()  # two threads may take elements
        self._job = accessor_worker.Job(
            dataset=dataset,
            parsers=structure.registered(),
            num_slots=buffer_size,
            load_indefinitely=load_indefinitely,
            early_preload=early_preload,
            rebatched_size=rebatched_size,
            drop_last=getattr(dataset, "rebatched_drop_last", True),
            seed=self._seed,
            start_method=_start_method(),
        )
        self._strategy = member(SharingStrategy, sharing_strategy)
        self._start()

    def terminate(self) -> None:
        """Stop the worker process; elements already fetched stay valid."""
        self._failure = self._failure or _TERMINATED
        self._consuming = self._reading = False
        self._stop()

    def __len__(self) -> int:
        length = len(self._dataset)
        if self.rebatched_size is None:
            return length
        rows = length * self._first_rows
        whole, rest = divmod(rows, self.rebatched_size)
        return whole + (rest > 0 and not getattr(self._dataset, "rebatched_drop_last", True))

    def __iter__(self) -> Self:
        """Start an epoch of the data set and return this accessor."""
        self._require_usable()
        with self._lock:
            if self._reading:
                self._stop()
                self._start()
                self._ahead = self._reading = False
            self._consuming = False  # an iterator from before has nothing to wait for
            epoch = self._epoch + 1
            if not self._ahead:
                self._run += 1
                with contextlib.suppress(OSError):  # a dead worker is reported by __next__
                    order = ("start", self._run, epoch, self._seed, self._skip, self._replay)
                    self._connection.send(order)
            self._epoch, self._ahead, self._skip, self._consuming = epoch, False, 0, True
        return self

    def __next__(self) -> Any:
        """Return the next element of the data set, waiting until the worker has read it.

        Raises:
            AssertionError: The data set raised, an element does not fit the layout of the first
                one, or the process died.
        """
        if self._epoch < 0:
            iter(self)
        with self._lock:
            if self._reading:
                raise error(
                    "An error or interrupt ended this reading. Begin a new iterator to read on."
                )
            self._reading = True
            while self._consuming:
                kind, *details = self._receive()
                if kind in ("failed", "died"):
                    self._fail(details[0])
                elif kind == "full" and details[0] == self._run:
                    element = self._lender.lend(*details[1:])
                    self._reading = False
                    if getattr(self._dataset, "_partition", None) is not None:
                        distributed.note_batch(self, self._share, self._epoch)
                    return element
                elif kind == "full":  # what an abandoned iterator has left over
                    self._lender.give_back(details[1])
                elif details[0] == self._run:
                    self._consuming, self._ahead = False, self._load_indefinitely
            self._reading = False
        self._require_usable()
        raise StopIteration

    def _begin_at(self, epoch: int, seed: int | None) -> None:
        """Set the epoch, and optionally the random seed, of the next iterator."""
        self._epoch, self._ahead = epoch - 1, False
        self._seed = self._seed if seed is None else seed

    def _leave_out(self, count: int, replay: bool) -> None:
        """Skip the next iterator's first ``count`` elements, reading them if ``replay``."""
        self._skip, self._replay, self._ahead = count, replay, False

    def _start(self) -> None:
        self._process, self._connection = _launch(self._job, self._strategy)
        # multiprocessing's own finalizer, because its exit handler waits for child processes and
        # must find none; it also runs when this object is collected, never in a fork.
        self._stop = util.Finalize(
            self, _shut_down, (self._process, self._connection), exitpriority=10
        )
        self._lender = self._receive_memory()

    def _receive(self) -> tuple[Any, ...]:
        """Return the worker's next message, or a "died" message with its exit code."""
        try:
            # The dead worker's own children may keep the connection open: poll once more.
            while not self._connection.poll(_ALIVE_CHECK_S):
                if not self._process.is_alive() and not self._connection.poll(0):
                    raise EOFError
            return self._connection.recv()
        except (EOFError, OSError):
            self._process.join(_GRACE_S)
            code = self._process.exitcode
            return "died", f"its process died without a report, exit code {code}"

    def _fail(self, report: str) -> None:
        self.terminate()
        self._failure = report
        self._require_usable()

    def _require_usable(self) -> None:
        if self._failure is _TERMINATED:
            raise error(_TERMINATED)
        require(self._failure is None, f"An error occurred in the data fetcher: {self._failure}")

    def _receive_memory(self) -> Lender:
        kind, *details = self._receive()
        if kind != "layout":
            self.terminate()
            # Without a guard a worker ends while it imports the script, before it can report.
            advice = _GUARD if kind == "died" else ""
            raise error(
                f"AsynchronousDataAccessor worker thread failed to start: {details[0]}{advice}"
            )
        layout, self._first_rows = details
        slots = Slots(layout, self._job.num_slots, reduction.recv_handle(self._connection))
        return Lender(self._connection, slots)


def _check(dataset: Any, buffer_size: int, rebatched_size: int | None) -> None:
    if getattr(dataset, "_uses_accessor", False):
        raise error(
            "The DataLoader already uses an AsynchronousDataAccessor: iterate over the loader "
            "itself, or create it with mode=poptorch.DataLoaderMode.Sync"
        )
    require(
        isinstance(buffer_size, int) and buffer_size > 0,
        f"buffer_size must be a positive number of elements, not {buffer_size!r}",
    )
    require(
        rebatched_size is None or rebatched_size > 1,
        f"rebatched_size must be None or greater than 1, not {rebatched_size}",
    )
    require(
        rebatched_size is not None or not getattr(dataset, "_may_end_short", False),
        "A DataLoader with drop_last=False ends with a short batch, which does not have the shape "
        "of the others: set drop_last=True, or rebatched_size=loader.combinedBatchSize",
    )


def _start_method() -> str:
    # Without allow_none the question itself would fix the method for the whole program.
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def _launch(
    job: accessor_worker.Job, strategy: SharingStrategy
) -> tuple[multiprocessing.Process, Connection]:
    if not systems.POSIX:
        raise error(
            "AsynchronousDataAccessor shares memory with its process by parts of Linux and macOS, "
            "which Windows lacks: use a DataLoader in its mode Sync"
        )
    if strategy is not SharingStrategy.Fork:
        job = dataclasses.replace(job, parsers=structure.sendable(job.parsers))
    elif job.start_method == "forkserver":  # the default of Python 3.14
        # A forked process takes its parent's server for its own, and cannot look whether it lives.
        job = dataclasses.replace(job, start_method="fork")
    context: Any = multiprocessing.get_context(_START_METHODS[strategy])
    connection, worker_connection = multiprocessing.Pipe()
    inherited = connection if strategy is SharingStrategy.Fork else None
    process = context.Process(
        target=accessor_worker.main,
        args=(worker_connection, inherited, job),
        name="poptorch-data-accessor",
    )
    try:
        process.start()
    except Exception as problem:
        connection.close()
        raise error(
            f"AsynchronousDataAccessor worker thread failed to start: {problem!r}. Unless it is "
            "forked, the dataset and its functions must pickle: define them at the top level of a "
            "module, or use sharing_strategy=poptorch.SharingStrategy.Fork"
        ) from problem
    finally:
        worker_connection.close()
    return process, connection


def _shut_down(process: multiprocessing.Process, connection: Connection) -> None:
    # Closing is not enough: processes forked in between hold copies of this end.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)
    process.join(_GRACE_S)
    for insist in (process.terminate, process.kill):
        if process.is_alive():
            insist()
            process.join(_GRACE_S)
    connection.close()
