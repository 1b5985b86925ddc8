"""Training in several processes: connecting, comparing settings, and errors."""

import functools
import threading
import weakref
from collections.abc import Callable, Sequence, Sized
from typing import Any

from abele import collectives
from abele.capture import Captured
from abele.collectives import Collective
from abele.compile import start
from abele.runtime.exchange import Exchange
from abele.runtime.observers import Observer
from abele.runtime.session import Session
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule

# Each process may choose for itself which results it looks at.
_OWN_CHOICE = {"output_mode", "output_period"}

_EPOCH = "epoch of the data loader (every process has to begin as many iterators)"


class Share:
    """Return this process's share of a data set that all processes divide.

    Attributes:
        epoch: how many epochs were begun before that of the latest batch.
        batches: that were given so far.
    """

    def __init__(self) -> None:
        self.epoch = self.batches = 0


class _Read(threading.local):
    """The source of what this thread has read last.

    Attributes:
        source: a weak reference to the loader that gave the latest batch.
        share: the one with the latest batch; None before there is one.
    """

    source: Any = None
    share: Share | None = None


_read = _Read()


def collective_of(config: StepConfig) -> Collective | None:
    """Return what connects the processes of a training program; None for the only one."""
    return collectives.connected() if config.training and config.processes > 1 else None


def gather_of(config: StepConfig) -> Callable[[str], list[str]] | None:
    """Return what tells all processes of a training program how each of them starts."""
    collective = collective_of(config)
    return None if collective is None else functools.partial(collective.gather, "how steps start")


def note_batch(source: Any, share: Share | None, epoch: int = 0) -> None:
    """Remember where a batch comes from: it is that of this thread's next step.

    Args:
        source: the loader.
        share: what it reads of a data set that processes divide; None if they do not.
        epoch: of the share, from 0.
    """
    _read.source = weakref.ref(source)
    if share is not None:
        share.epoch, share.batches = epoch, share.batches + 1
        _read.share = share


class SameEpoch(Observer):
    """Has all processes compare the epochs of their shares of the data in every update.

    Processes whose epochs differ would read some rows twice and others never.

    Args:
        exchange: of the session that is observed.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._share: Share | None = None
        self._batches, self._epoch = 0, -1

    def on_call_begin(self, began_ns: int) -> None:
        """Take the epoch of the share that gives batches to this session."""
        # One process may read something else in between, such as rows for validation.
        if self._share is None or self._share.batches == self._batches:
            self._share = _read.share
        if self._share is None:
            return
        self._batches = self._share.batches
        if self._share.epoch != self._epoch:
            self._epoch = self._share.epoch
            self._exchange.note(_EPOCH, str(self._epoch))


def observe(session: Session) -> None:
    """Have a session that trains with other processes compare the epochs of the data."""
    if session.exchange is not None:
        session.add_observer(SameEpoch(session.exchange))


def agree(
    captured: Captured, config: StepConfig, rule: UpdateRule | None, examples: Sequence[Any]
) -> None:
    """With other processes: all have the same before anybody compiles for a long time.

    Raises:
        DisagreementError: names what differs.
    """
    collective = collective_of(config)
    if collective is not None:
        collective.agree("the model and its options", facts(captured, config, rule, examples))


def facts(
    captured: Captured, config: StepConfig, rule: UpdateRule | None, examples: Sequence[Any]
) -> dict[str, str]:
    """Return what must be the same in all processes, by the name under which it is told apart."""
    values = {
        name: str(value)
        for name, value in vars(config).items()
        if name not in _OWN_CHOICE and name != "replica_groups"
    }
    for index, example in enumerate(examples):
        values[f"shape of input {index}"] = f"{list(example.shape)} {example.dtype}"
    for name, value in (rule.hyper() if rule is not None else {}).items():
        values[f"optimizer's {name}"] = repr(value)
    values[start.SWAP_AT] = str(start.swap_at())
    values["batches per epoch"] = _batches()
    for program in captured.programs:
        values[f"program {program.name!r}"] = program.fingerprint()[:16]
    return values


def _batches() -> str:
    loader = None if _read.source is None else _read.source()
    if not isinstance(loader, Sized):
        return "unknown"
    try:
        return str(len(loader))
    except (TypeError, NotImplementedError):  # an iterable data set
        return "unknown"
