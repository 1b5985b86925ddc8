"""The processes of one run: the rank of the present process, and collective operations.

    alone()              one process; everything below is free
    of_popdist()         IPU mode: `popdist.init()` under poprun, mpirun or torchrun
    of_torch()           CPU and GPU mode: torch.distributed under torchrun, mpirun, Slurm or poprun

The connection lasts as long as the process: its other runs use it too.
All instances call the same collective functions in the same order. Values travel as JSON, numbers
and bytes, never pickled. An instance that is gone ends the wait of the others within seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from abele import collectives
from abele.collectives import Collective
from abele.errors import CollectiveError, DisagreementError, PlaceError, raised_as
from abele.storage import state_file
from cosmictagger.errors import ConfigError, CosmicTaggerError, InstanceError

_ALL = "values"


class Instances:
    """A process of a run, with collective operations over all processes of the run.

    Args:
        connection: with the other processes; None for the only one.

    Attributes:
        index: which one this is, from 0.
        count: how many there are.
        is_told: the first instance has got the last problem that was checked.
    """

    def __init__(self, connection: Collective | None = None):
        self._connection = connection
        self.index = 0 if connection is None else connection.rank
        self.count = 1 if connection is None else connection.size
        self.is_told = False

    @property
    def is_first(self) -> bool:
        """True on the rank 0 instance, which logs and writes files."""
        return self.index == 0

    @property
    def shard(self) -> tuple[int, int]:
        """The shard (index, count) of this instance, as loaders take it."""
        return self.index, self.count

    # -- values, now and then ----------------------------------------------------------------

    def gather(self, topic: str, value: Any) -> list[Any]:
        """Gather a value of every instance on all instances; takes milliseconds.

        Args:
            topic: what is exchanged, for messages; may be used again.
            value: anything that JSON holds; tuples become lists. NaN and infinity pass.

        Returns:
            The values by index of the instance; alone, the value itself in a list.
        """
        if self._connection is None:
            return [value]
        with raised_as(InstanceError, CollectiveError):
            return [json.loads(each) for each in self._connection.gather(topic, json.dumps(value))]

    def from_first(self, topic: str, value: Any = None) -> Any:
        """Broadcast a value of the first instance to all instances; see ``gather``."""
        return self.gather(topic, value if self.is_first else None)[0]

    def tensors_from_first(self, topic: str, values: Any = None) -> Any:
        """Broadcast tensors of the first instance, in dictionaries and lists with plain values.

        Args:
            topic: see ``gather``.
            values: of the first instance; others may give anything.

        Returns:
            On the host; alone, the very values.
        """
        if self._connection is None:
            return values
        data = None
        if self.is_first:
            data = state_file.to_bytes(state_file.plain({_ALL: values}, topic))
        with raised_as(InstanceError, CollectiveError):
            received = collectives.broadcast_bytes(self._connection, topic, data)
        return values if self.is_first else state_file.from_bytes(received)[_ALL]

    def agree(self, topic: str, facts: Mapping[str, object]) -> None:
        """Compare values that all instances must share; all instances raise if values differ."""
        if self._connection is None:
            return
        try:
            self._connection.agree(topic, {name: str(value) for name, value in facts.items()})
        except CollectiveError as error:
            self.is_told = isinstance(error, DisagreementError)
            raise InstanceError(str(error)) from error

    @contextlib.contextmanager
    def together(self, topic: str) -> Iterator[None]:
        """Run a block that succeeds on all instances or on none; wait for all instances at the end.

            with instances.together("opening the events"):
                events = open_events()

        Inside of it an instance may do nothing (``if instances.is_first:``), but calls no
        collective function.

        """
        problem: CosmicTaggerError | OSError | None = None
        try:
            yield
        except (CosmicTaggerError, OSError) as error:
            if self._connection is None:
                raise
            problem = error
        self.check(topic, problem)

    def check(self, topic: str, problem: CosmicTaggerError | OSError | None) -> None:
        """Raise on all instances if any instance has a problem; the end of ``together``."""
        texts = self.gather(topic, None if problem is None else str(problem))
        self.is_told = any(text is not None for text in texts)
        if problem is not None:
            raise problem
        for index, text in enumerate(texts):
            if text is not None:
                raise InstanceError(f"Instance {index} of {self.count}: {text}", instance=index)

    # -- numbers, in every step --------------------------------------------------------------

    def total(self, values: Sequence[float]) -> list[float]:
        """Sum numbers over all instances, in float64; takes about ten microseconds on one host."""
        if self._connection is None:
            return list(values)
        wire = torch.tensor(values, dtype=torch.float64)
        with raised_as(InstanceError, CollectiveError):
            self._connection.all_reduce(wire)
        return wire.tolist()

    def add_up(self, values: torch.Tensor) -> None:
        """Sum a contiguous tensor over all instances in place, in rank order."""
        if self._connection is not None:
            with raised_as(InstanceError, CollectiveError):
                self._connection.all_reduce(values)

    def rows(self, values: torch.Tensor) -> torch.Tensor:
        """Concatenate tensors of all instances along their first dimension, in rank order.

        Returns:
            [count * n, ...] on every instance; alone, the tensor itself.
        """
        if self._connection is None:
            return values
        joined = values.new_zeros(self.count, *values.shape)
        joined[self.index] = values
        self.add_up(joined)  # everybody else's part is zero
        return joined.flatten(0, 1)

    def mean(self, values: Mapping[str, float], images: int) -> dict[str, float]:
        """Average metrics over the images of all instances.

        Args:
            values: means over this instance's images, by name; the same names on every instance.
                NaN is left out; the mean of nothing but NaN is NaN.
            images: how many these are; 0 counts nothing, whatever the values are.
        """
        if self._connection is None:
            return dict(values)
        valid = [value == value and images > 0 for value in values.values()]
        sums = [v * images if ok else 0.0 for v, ok in zip(values.values(), valid, strict=True)]
        totals = self.total([*sums, *(images if ok else 0 for ok in valid)])
        pairs = zip(totals[: len(sums)], totals[len(sums) :], strict=True)
        means = [total / number if number else float("nan") for total, number in pairs]
        return dict(zip(values, means, strict=True))

    # -- the end -------------------------------------------------------------------------------

    def fail(self, problem: str) -> None:
        """Notify waiting instances of a failure and its reason.

        For errors outside of ``together``; nothing may be exchanged afterwards.
        """
        if self._connection is not None:
            self._connection.fail(problem)


def alone() -> Instances:
    """Return the ``Instances`` of a run with one process."""
    return Instances()


def of_popdist() -> Instances:
    """Connect the processes of poprun, mpirun or torchrun by ``popdist.init()``."""
    import popdist

    with raised_as(InstanceError, popdist.Error):
        popdist.init()
    return _connected()


def of_torch() -> Instances:
    """Connect the processes of torchrun, mpirun, Slurm or poprun in a torch process group.

    Gloo connects processors, NCCL processes that have a GPU each. The current CUDA device is
    afterwards that of this process.
    """
    place = _place()
    if place is not None:
        with raised_as(InstanceError, CollectiveError), raised_as(ConfigError, PlaceError):
            collectives.connect(*place)
    return _connected()


def processes() -> int:
    """Return the number of processes that the launcher has started; 1 if unknown."""
    place = _place()
    return 1 if place is None else place[1]


def _place() -> tuple[int, int] | None:
    """Return rank and world size of this process; set the launcher's MASTER_ADDR and port."""
    import popdist
    from popdist import places

    try:
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            place = places.this_place()
            if place is not None:
                if place.address is not None:
                    os.environ.setdefault("MASTER_ADDR", place.address)
                os.environ.setdefault("MASTER_PORT", str(place.port))
                os.environ.setdefault("LOCAL_RANK", str(place.local_rank))
                return place.rank, place.size
        count = popdist.getNumInstances()
        return None if count == 1 else (popdist.getInstanceIndex(), count)
    except (popdist.Error, ValueError) as error:
        raise ConfigError(f"How many processes there are is not known: {error}") from error


def _connected() -> Instances:
    return Instances(collectives.connected())
