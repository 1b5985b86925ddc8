"""`DataLoader`: torch's loader with batches sized for one call of a wrapped model.

The options determine the batch size, and the share of the data set that this process reads.
"""

import atexit
import copy
import logging
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from multiprocessing import util
from typing import Any

import torch
from torch.utils.data import IterableDataset

from abele._torch.contexts import has_lost_worker
from poptorch import processes as distributed
from poptorch._data.accessor import AsynchronousDataAccessor
from poptorch._data.position import Ordered, Position, check_fits
from poptorch._data.samplers import PartitionSampler, grouped
from poptorch._data.waiting import Timed, Waiting
from poptorch._data.whole_batches import TensorBatches, WholeBatches, draws_at_once, why_single
from poptorch._error import error, require
from poptorch._wrapper.translate import BatchSize
from poptorch.enums import DataLoaderMode, member
from poptorch.options import Options
from poptorch.profiling import DATALOADER

_logger = logging.getLogger("poptorch::python")
_with_workers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


@atexit.register  # after torch's own, so before it: torch ends no workers once Python ends
def _end_workers() -> None:
    """Shut down loader worker processes at exit; killing them leaves ``pymp-*`` folders behind."""
    for loader, process in list(_with_workers.items()):
        if process == os.getpid():
            loader._iterator = None


class DataLoader(torch.utils.data.DataLoader):
    """A data loader whose batches feed one call of a wrapped model.

    A batch has `batch_size` x device iterations x gradient accumulation x replicas rows. Several
    processes each read their own share of a map-style data set. The options object is frozen.

    Items of data sets in memory are fetched batch by batch, with the bits that single items have:
    ``TensorDataset``, torchvision's MNIST and CIFAR families with ``ToTensor``, ``Normalize`` and
    the like, subsets of these, and classes whose ``__getitem__`` only indexes tensors.

    Differs from the original: iterating over a loader that has no batch to give, because the data
    set is smaller than one batch, raises instead of doing nothing. Every epoch's share and order
    follow from the seed and the number of the epoch.

    Args:
        options: Options of the wrapped model, with the factors of the batch size.
        dataset: Map-style or iterable.
        batch_size: Rows of a micro-batch, which forward computes; None if the data set returns
            whole batches.
        shuffle: Read a map-style data set in random order.
        num_workers: Processes that load elements; 0 loads in the calling process.
        drop_last: Leave out rows that do not fill a batch.
        persistent_workers: Reuse worker processes between epochs; None: if there are any.
        auto_distributed_partitioning: Give each of several processes its own share.
        mode: Whether a separate process reads ahead.
        async_options: Arguments of the `AsynchronousDataAccessor` if the mode uses one.
        rebatched_worker_size: Rows that workers load per element in mode AsyncRebatched; None loads
            whole batches.
        batch_sampler: Gives the indices of each micro-batch, instead of `batch_size` and
            `shuffle`.
        **kwargs: Further arguments of torch's loader.

    Raises:
        AssertionError: An argument is not legal, alone or with the options.
        poptorch.Error: Arguments exclude each other.
    """

    _accessor: AsynchronousDataAccessor | None = None
    _partition: PartitionSampler | None = None

    def __init__(
        self,
        options: Options,
        dataset: torch.utils.data.Dataset,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: dict[str, Any] | None = None,
        rebatched_worker_size: int | None = None,
        batch_sampler: torch.utils.data.Sampler[Sequence] | Iterable[Sequence] | None = None,
        **kwargs: Any,
    ) -> None:
        require(isinstance(options, Options), f"options must be poptorch.Options, not {options!r}")
        _check_exclusions(batch_size, shuffle, batch_sampler, rebatched_worker_size, async_options)
        options._freeze()
        self._options, self._position = options, Position()
        self._share = distributed.Share()
        self._waiting = self._new_waiting()
        self._mode = member(DataLoaderMode, mode)
        self._async_options = async_options or {}
        self._is_iterable = isinstance(dataset, IterableDataset)
        self._groups = batch_sampler is not None  # joins the micro-batches of a sampler
        self._size = BatchSize.of(options, batch_size, batch_sampler)
        self.rebatched_drop_last = self.batch_sampler_drop_last = drop_last
        kwargs.update(self._choose_batches(batch_sampler, rebatched_worker_size))
        if auto_distributed_partitioning and options.Distributed.numProcesses > 1:
            self._check_partitioning(shuffle, kwargs)
            self._partition = kwargs["sampler"] = self._make_partition(dataset, shuffle)
            shuffle = False
        if persistent_workers is None:
            persistent_workers = num_workers > 0
        kwargs.update(num_workers=num_workers, persistent_workers=persistent_workers)
        super().__init__(dataset, shuffle=shuffle, **kwargs)
        self._warn()
        if self._uses_accessor and not self._is_empty():
            self._accessor = self._make_accessor()

    @property
    def combinedBatchSize(self) -> int | None:
        """The rows of a combined batch; None if only the data set or the batch sampler knows."""
        return self._size.combined

    @property
    def _combined_batch_size(self) -> int | None:
        """The combined batch size, by a private name that published programs read."""
        return self.combinedBatchSize

    @property
    def options(self) -> Options:
        """The frozen `Options` that the loader was created with."""
        return self._options

    def terminate(self) -> None:
        """Stop the accessor's and torch's worker processes of this loader."""
        if self._accessor is not None:
            self._accessor.terminate()
        self._iterator = None  # the last reference to torch's worker processes

    def __len__(self) -> int:
        if self._groups or self._rebatched_size is not None:
            available, per_batch = self._supply()
            rest = available % per_batch > 0 and not self.rebatched_drop_last
            return available // per_batch + rest
        return super().__len__()

    def __iter__(self) -> Any:
        if self._is_empty():
            raise error(self._why_empty())
        make = self._from_accessor if self._uses_accessor else self._from_batch
        batches = self._position.begin(make, self.generator)
        return Timed(batches, self._waiting, self._note_batch)

    def _note_batch(self) -> None:
        if self._partition is None:
            distributed.note_batch(self, None)
        else:
            begun = self._partition.epoch - 1 if self._accessor is None else self._accessor._epoch
            distributed.note_batch(self, self._share, begun)

    def _from_accessor(self, skip: int, replay: bool) -> Iterator[Any]:
        if self._accessor is None:  # this is a copy
            self._accessor = self._make_accessor()
        if skip:
            self._accessor._leave_out(skip, replay)
        return DATALOADER._iterate(iter(self._accessor), "__next__")

    def _from_batch(self, skip: int, replay: bool) -> Iterator[Any]:
        by_reading = replay or self._is_iterable
        if not by_reading:
            self._position.order.leave_out(skip * (self._size.micro_batches if self._groups else 1))
        iterator = DATALOADER._iterate(self._iterator_of_torch(), "__next__")
        if self._groups:
            size, drop_last = self._size.micro_batches, self.batch_sampler_drop_last
            iterator = grouped(iterator, size, drop_last)
        for _ in islice(iterator, skip if by_reading else 0):
            pass
        checked = (self._groups or self._is_iterable) and not skip
        return _never_empty(iterator, self) if checked else iterator

    def _iterator_of_torch(self) -> Iterator[Any]:
        """Return torch's batch iterator, or one over whole batches if they have the same bits."""
        if self._iterator is not None and has_lost_worker(self._iterator):
            self._iterator = None  # torch then starts others
        if self.num_workers > 0:
            if os.getpid() not in _with_workers.values():  # of a worker itself, without atexit
                util.Finalize(None, _end_workers, exitpriority=20)  # before queues, which have 10
            _with_workers[self] = os.getpid()
        if self._is_iterable or self.num_workers > 0 or self.batch_sampler is None:
            return super().__iter__()
        self._waiting.why_single = why_single(self.dataset, self.collate_fn)
        if self._waiting.why_single is not None:
            return super().__iter__()
        # The number that torch's iterator draws when it begins.
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        pinned = self.pin_memory and torch.accelerator.is_available()
        return WholeBatches(self.dataset, self._whole_indices(), pinned=pinned)

    def _whole_indices(self) -> Any:
        """Return a sampler of batch indices, as tensors if torch's sampler would draw the same."""
        sampler: Any = self.batch_sampler
        if draws_at_once(sampler):
            sampler = TensorBatches(sampler)
        return Ordered(sampler, self._position.order, self.generator)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's position: the epoch and the number of batches returned in it.

        An addition of this project.

        Returns:
            Tensors and plain values, for `load_state_dict` of a loader with the same arguments.
        """
        accessor = self._accessor
        return {
            **self._position.state(has_workers=self._iterator is not None),
            "seed": None if accessor is None else accessor._seed,
            "generator": None if self.generator is None else self.generator.get_state(),
            "batches": self._description(),
        }

    def load_state_dict(self, state: dict[str, Any], *, replay: bool = False) -> None:
        """Resume the data set at the position in ``state``: the next iterator finishes that epoch.

        It has the order of that epoch, and leaves the random numbers of this process as they are.
        Later iterators continue with the following epochs. An addition of this project.

        Args:
            state: What `state_dict` returned.
            replay: Read the skipped batches instead of stepping over them. Elements that
                draw random numbers in worker processes need it; iterable data sets are always
                read.

        Raises:
            poptorch.Error: The state is one of a loader with other batches.
        """
        check_fits(self._description(), state.get("batches", {}))
        self._position.load(state, replay)
        self._set_epoch(self._position.begun)
        if self.generator is not None and state["generator"] is not None:
            self.generator.set_state(state["generator"])
        if self._accessor is not None:
            self._accessor._begin_at(self._position.begun, state["seed"])

    def _description(self) -> dict[str, Any]:
        """Return the settings that determine a loader's batches."""
        dataset: Any = self.dataset
        return {
            "combined batch": self.combinedBatchSize,
            "rows of data": None if self._is_iterable else len(dataset),
            "sampler": type(self.batch_sampler if self._groups else self.sampler).__name__,
            "process": self._options.Distributed.processId,
            "processes": self._options.Distributed.numProcesses,
            "read ahead by a process": self._uses_accessor,
        }

    @property
    def _index_sampler(self) -> Any:
        # What torch's iterators take indices from. Any other way to begin in the middle of an
        # epoch would change an attribute that users read.
        sampler: Any = super()._index_sampler
        return Ordered(sampler, self._position.order, self.generator)

    @property
    def _rows_of_an_element(self) -> int:
        """The rows of each element that an accessor reads to assemble batches."""
        rows = self._size.combined if self._groups else self.batch_size
        return rows or 1

    def __getstate__(self) -> dict[str, Any]:
        # Processes belong to one loader; a copy starts its own.
        fresh = {
            "_position": Position(),
            "_waiting": self._new_waiting(),
            "_share": distributed.Share(),
        }
        return {**self.__dict__, "_accessor": None, "_iterator": None, **fresh}

    def _new_waiting(self) -> Waiting:
        show = self._options._show_compilation_progress_bar
        return Waiting(self._options.device_iterations, show=show)

    @property
    def _uses_accessor(self) -> bool:
        return self._mode is not DataLoaderMode.Sync

    @property
    def _may_end_short(self) -> bool:
        batched = self.batch_sampler is not None
        return batched and not self.rebatched_drop_last and self._size.combined != 1

    def _choose_batches(self, batch_sampler: Any, worker_size: int | None) -> dict[str, Any]:
        """Choose between combined and rebatched batches; return arguments for torch's loader."""
        combined, drop_last = self._size.combined, self.rebatched_drop_last
        rebatches = self._mode is DataLoaderMode.AsyncRebatched
        require(
            not rebatches or combined is not None,
            "Mode AsyncRebatched needs to know the combined batch size: set batch_size, or use a "
            "batch_sampler that has the attribute batch_size",
        )
        pieces = rebatches or (self._mode is DataLoaderMode.Async and not drop_last)
        self._rebatched_size = combined if pieces and (combined or 0) > 1 else None
        if batch_sampler is not None:
            return {"batch_sampler": batch_sampler}
        if self._rebatched_size is None or combined is None:
            return {"batch_size": combined, "drop_last": drop_last and combined is not None}
        size = combined if worker_size is None else worker_size
        require(
            size <= combined,
            f"rebatched_worker_size ({size}) must be <= to the combined batch size ({combined})",
        )
        return {"batch_size": size, "drop_last": False}

    def _check_partitioning(self, shuffle: bool | None, arguments: dict[str, Any]) -> None:
        escape = "or set auto_distributed_partitioning=False and divide the data yourself"
        require(
            not self._is_iterable,
            "auto_distributed_partitioning is not supported for IterableDataset: set it to False "
            "and let every process iterate over its own share",
        )
        for name in ("batch_sampler", "sampler"):
            if arguments.get(name) is not None:
                raise error(
                    f"{name} and auto_distributed_partitioning are mutually exclusive with "
                    f"several processes: leave out the {name}, {escape}"
                )
        require(
            self._size.combined is not None,
            f"batch_size=None cannot be partitioned between processes: set a batch_size, {escape}",
        )
        require(
            not shuffle or self._options.exists("random_seed"),
            "To shuffle with several processes you must set poptorch.Options.randomSeed, the same "
            f"in all of them, {escape}",
        )

    def _make_partition(self, dataset: Any, shuffle: bool | None) -> PartitionSampler:
        return PartitionSampler(
            len(dataset),
            self._size.combined or 1,
            self._options.Distributed.processId,
            self._options.Distributed.numProcesses,
            self.rebatched_drop_last,
            self._options.random_seed if shuffle else None,
        )

    def _make_accessor(self) -> AsynchronousDataAccessor:
        source = copy.copy(self)
        source._mode = DataLoaderMode.Sync
        source.pin_memory = False  # the worker copies to shared memory; pinning needs a device
        size = self._rebatched_size
        return AsynchronousDataAccessor(source, rebatched_size=size, **self._async_options)

    def _set_epoch(self, epoch: int) -> None:
        """Set the epoch that determines this process's share and order of the data set."""
        if self._partition is not None:
            self._partition.epoch = epoch

    def _supply(self) -> tuple[int, int]:
        """Count the available rows (or a sampler's micro-batches), and those that a batch needs."""
        source: Any = self.batch_sampler if self._groups else self.sampler
        if self._is_iterable:
            source = self.dataset
        per_batch = self._size.micro_batches if self._groups else self._size.combined
        return len(source), per_batch or 1

    def _is_empty(self) -> bool:
        if self._is_iterable:
            return False  # its length is an estimate
        try:
            return len(self) == 0
        except (TypeError, NotImplementedError):
            return False

    def _warn(self) -> None:
        if self._is_iterable and self.num_workers > 1 and self.worker_init_fn is None:
            _logger.warning(
                "Every element of the IterableDataset will be repeated by each of the "
                f"{self.num_workers} workers, unless the dataset divides itself by "
                "torch.utils.data.get_worker_info(); a worker_init_fn can divide it too"
            )
        if self._is_empty():
            _logger.warning(self._why_empty())
        elif self._may_end_short:
            self._warn_about_short_batch()

    def _warn_about_short_batch(self) -> None:
        try:
            available, per_batch = self._supply()
        except (TypeError, NotImplementedError):
            reason = "The length of the data is not known"
        else:
            if available % per_batch == 0:
                return
            unit = "micro-batches" if self._groups else "elements"
            reason = f"{available} {unit} are not divisible by {per_batch}"
        _logger.warning(
            f"{reason}, and drop_last is False: the last batch may be smaller than the combined "
            f"batch of {self._factors()}, and a compiled model does not accept it. Set "
            "drop_last=True, or make the sizes divide"
        )

    def _factors(self) -> str:
        processes = 1 if self._partition is None else self._options.Distributed.numProcesses
        return self._size.spelled_out(not self._groups, processes)

    def _why_empty(self) -> str:
        dataset: Any = self.dataset
        try:
            # An empty sampler is falsy, hence "is not None".
            available = self._supply()[0] if self._partition is None else len(dataset)
        except (TypeError, NotImplementedError):
            available = "too few"
        unit = "micro-batches" if self._groups else "elements"
        dropped, keep = "", ""
        if self.rebatched_drop_last:
            dropped, keep = " and drop_last=True drops the rest", ", or set drop_last=False"
        return (
            f"The DataLoader has no batch to give: there are {available} {unit}, one combined "
            f"batch takes {self._factors()}{dropped}. Use more data, make a factor smaller{keep}"
        )


def _check_exclusions(
    batch_size: int | None,
    shuffle: bool | None,
    batch_sampler: Any,
    worker_size: int | None,
    async_options: dict[str, Any] | None,
) -> None:
    others = {
        "batch_size": batch_size != 1,
        "shuffle": bool(shuffle),
        "rebatched_worker_size": worker_size is not None,
    }
    conflicting = [name for name, is_given in others.items() if is_given]
    if batch_sampler is not None and conflicting:
        raise error(
            f"batch_sampler and {', '.join(conflicting)} are mutually exclusive: the sampler alone "
            "decides on the micro-batches"
        )
    require(
        "rebatched_size" not in (async_options or {}),
        "async_options cannot manually specify rebatched_size, it is the combined batch size; "
        "rebatched_worker_size sets how many rows workers load at once",
    )


def _never_empty(batches: Iterator[Any], loader: DataLoader) -> Iterator[Any]:
    """Yield the batches of a loader; raise an error if an epoch has none."""
    empty = True
    for batch in batches:
        empty = False
        yield batch
    if empty:
        raise error(loader._why_empty())
