"""Connecting the processes that train one model, and the class of what goes wrong between them.

A wrapper connects by itself. ``popdist`` calls these functions to do it earlier, and to have errors
raised as its own.
"""

from collections.abc import Callable

from abele import collectives
from abele.errors import CollectiveError, ForeignNoteError, MeetingPointError
from poptorch._error import Error
from poptorch.enums import ConnectionType
from poptorch.options import Options

__all__ = ["connect", "join", "problem_between", "raise_as"]

_LOCAL_RANKS = ("POPDIST_LOCAL_INSTANCE_INDEX",)
_error_kind: type[Error] = Error


def raise_as(kind: type[Error]) -> None:
    """Has errors between processes raised as another class from now on.

    Args:
        kind: the class.
    """
    global _error_kind
    _error_kind = kind


def problem_between(problem: CollectiveError, shorten: Callable[[str], str] = str) -> Error:
    """Return the error of a failed exchange between processes.

    Args:
        problem: what the engine raised.
        shorten: shortens the message.
    """
    advice = ""
    if isinstance(problem, MeetingPointError):
        advice = f" The launcher is poprun --num-instances {problem.size}."
    elif isinstance(problem, ForeignNoteError):
        advice = " poprun --host-subnet chooses one."
    return _error_kind(shorten(f"{problem}{advice}"))


def connect(options: Options) -> None:
    """Connect with the other processes that the options name, if any.

    Args:
        options: those of a wrapper.

    Raises:
        poptorch.Error: it is not known where they meet, or one does not come.
    """
    place = options.Distributed
    if place.numProcesses > 1 and options.connection_type != ConnectionType.Never:
        join(place.processId, place.numProcesses)


def join(rank: int, size: int) -> None:
    """Connect as one of several processes, once.

    Args:
        rank: the number of this process, from 0.
        size: how many there are.

    Raises:
        poptorch.Error: it is not known where they meet, or one does not come.
    """
    try:
        collectives.connect(rank, size, _LOCAL_RANKS)
    except CollectiveError as problem:
        raise problem_between(problem) from problem
