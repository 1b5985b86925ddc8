"""Training in several processes: who connects, what must agree, which error a program catches."""

import weakref
from collections.abc import Sequence, Sized
from typing import Any

from abele import collectives
from abele.capture import Captured
from abele.collectives import Collective
from abele.errors import CollectiveError
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from poptorch._error import Error
from poptorch.enums import ConnectionType
from poptorch.options import Options

# Each process may choose for itself which results it looks at.
_OWN_CHOICE = {"output_mode", "output_period"}

_error_kind: type[Error] = Error
_epoch_of: Any = None


def raise_as(kind: type[Error]) -> None:
    """Have errors between processes raised as this class, which a higher layer knows."""
    global _error_kind
    _error_kind = kind


def error_of(text: str) -> Error:
    """Return the error for what went wrong between processes."""
    return _error_kind(text)


def connect(options: Options) -> None:
    """Connect with the other processes that the options name; the only one has none.

    Raises:
        poptorch.Error: it is not known where they meet, or one does not come.
    """
    place = options.Distributed
    if place.numProcesses > 1 and options.connection_type != ConnectionType.Never:
        join(place.processId, place.numProcesses)


def join(rank: int, size: int) -> None:
    """Connect as one of several processes, once.

    Raises:
        poptorch.Error: it is not known where they meet, or one does not come.
    """
    try:
        collectives.connect(rank, size)
    except CollectiveError as problem:
        raise error_of(str(problem)) from problem


def collective_of(config: StepConfig) -> Collective | None:
    """Return what connects the processes of a training program; None for the only one."""
    return collectives.connected() if config.training and config.processes > 1 else None


def note_epoch(loader: Any) -> None:
    """Remember the loader that was begun last: its batches are those of the next step."""
    global _epoch_of
    _epoch_of = weakref.ref(loader)


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
    values["batches per epoch"] = _batches()
    for program in captured.programs:
        values[f"program {program.name!r}"] = program.fingerprint()[:16]
    return values


def _batches() -> str:
    loader = None if _epoch_of is None else _epoch_of()
    if not isinstance(loader, Sized):
        return "unknown"
    try:
        return str(len(loader))
    except (TypeError, NotImplementedError):  # an iterable data set
        return "unknown"
