"""Connection of the processes that train one model, and the class of errors between them.

A wrapper connects by itself. ``popdist`` calls these functions to do it earlier, and to have errors
raised as its own.
"""

import functools
import threading
import weakref
from collections.abc import Callable, Sequence, Sized
from typing import Any

from abele import collectives
from abele.capture import Captured
from abele.collectives import Collective
from abele.compilation import start
from abele.errors import CollectiveError, MeetingPointError
from abele.runtime.exchange import Exchange
from abele.runtime.observers import Observer
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from poptorch._error import Error
from poptorch.enums import ConnectionType
from poptorch.options import Options

__all__ = ["connect", "join", "problem_between", "raise_as"]

_LOCAL_RANKS = ("POPDIST_LOCAL_INSTANCE_INDEX",)
_error_kind: type[Error] = Error
# Each process may choose for itself which results it looks at.
_OWN_CHOICE = {"output_mode", "output_period", "replica_groups"}
_EPOCH = "epoch of the data loader (every process has to begin as many iterators)"


def raise_as(kind: type[Error]) -> None:
    """Set the exception class that errors between processes are raised as."""
    global _error_kind
    _error_kind = kind


def problem_between(problem: CollectiveError, shorten: Callable[[str], str] = str) -> Error:
    """Return the exception to raise for a failed collective operation between processes."""
    advice = ""
    if isinstance(problem, MeetingPointError):
        advice = f" The launcher is poprun --num-instances {problem.size}."
    return _error_kind(shorten(f"{problem}{advice}"))


def connect(options: Options) -> None:
    """Connect to the other training processes, if the options name more than one.

    Raises:
        poptorch.Error: the meeting point is not known, or another process does not arrive.
    """
    place = options.Distributed
    if place.numProcesses > 1 and options.connection_type != ConnectionType.Never:
        join(place.processId, place.numProcesses)


def join(rank: int, size: int) -> None:
    """Connect this process to the other training processes; later calls do nothing.

    Raises:
        poptorch.Error: the meeting point is not known, or another process does not arrive.
    """
    try:
        collectives.connect(rank, size, _LOCAL_RANKS)
    except CollectiveError as problem:
        raise problem_between(problem) from problem


# -- comparison between processes --------------------------------------------------------------


class Share:
    """A process's share of a partitioned data set, and its position in the share.

    Attributes:
        epoch: number of epochs started before that of the latest batch.
        batches: number of batches returned so far.
    """

    def __init__(self) -> None:
        self.epoch = self.batches = 0


class _Read(threading.local):
    """The data loader and data set share of this thread's latest batch."""

    source: Any = None
    share: Share | None = None


_read = _Read()


def collective_of(config: StepConfig) -> Collective | None:
    """Return the connection of a training program's processes; None for a single process."""
    return collectives.connected() if config.training and config.processes > 1 else None


def gather_of(config: StepConfig) -> Callable[[str], list[str]] | None:
    """Return a function that exchanges texts between processes on how steps start, or None."""
    collective = collective_of(config)
    return None if collective is None else functools.partial(collective.gather, "how steps start")


def note_batch(source: Any, share: Share | None, epoch: int = 0) -> None:
    """Record the data loader of this thread's latest batch, for the next training step.

    Args:
        source: the loader.
        share: the loader's share of a data set that processes divide; None if they do not.
        epoch: number of the share's epoch, from 0.
    """
    _read.source = weakref.ref(source)
    if share is not None:
        share.epoch, share.batches = epoch, share.batches + 1
        _read.share = share


class SameEpoch(Observer):
    """Checks at every update that all processes are in the same epoch of their data set shares.

    Processes whose epochs differ would read some rows twice and others never.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._share: Share | None = None
        self._batches, self._epoch = 0, -1

    def on_call_begin(self, began_ns: int) -> None:
        """Record the current data set epoch for the comparison between processes."""
        # One process may read something else in between, such as rows for validation.
        if self._share is None or self._share.batches == self._batches:
            self._share = _read.share
        if self._share is None:
            return
        self._batches = self._share.batches
        if self._share.epoch != self._epoch:
            self._epoch = self._share.epoch
            self._exchange.note(_EPOCH, str(self._epoch))


def agree(
    captured: Captured, config: StepConfig, rule: UpdateRule | None, examples: Sequence[Any]
) -> None:
    """Raise DisagreementError unless all processes train one model with the same options."""
    collective = collective_of(config)
    if collective is None:
        return
    values = {n: str(value) for n, value in vars(config).items() if n not in _OWN_CHOICE}
    for index, example in enumerate(examples):
        values[f"shape of input {index}"] = f"{list(example.shape)} {example.dtype}"
    for name, value in (rule.hyper() if rule is not None else {}).items():
        values[f"optimizer's {name}"] = repr(value)
    values[start.SWAP_AT] = str(start.swap_at())
    values["batches per epoch"] = _batches()
    for program in captured.programs:
        values[f"program {program.name!r}"] = program.fingerprint()[:16]
    collective.agree("the model and its options", values)


def _batches() -> str:
    loader = None if _read.source is None else _read.source()
    if not isinstance(loader, Sized):
        return "unknown"
    try:
        return str(len(loader))
    except (TypeError, NotImplementedError):  # an iterable data set
        return "unknown"
