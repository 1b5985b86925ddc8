"""The names of the original native module ``poptorch_core`` that programs use.

Its exceptions, and a way to test that a program survives them.
"""

import enum
from pathlib import Path

from poptorch._error import Error, RecoverableError, UnrecoverableError
from poptorch._forward.running import isRunningOnIpu
from poptorch._forward.structure import parser_for

__all__ = [
    "Error",
    "RecoverableError",
    "TestErrorType",
    "UnrecoverableError",
    "isAlreadyRegistered",
    "isCompilingWithDispatcher",
]


class TestErrorType(enum.IntEnum):
    """The kinds of device failures that ``_throwTestError`` simulates."""

    __test__ = False  # pytest collects classes called Test...

    Poptorch = 0
    Popart = 1
    PopartInternal = 2
    Poplibs = 3
    PoplarUnrecoverable = 4
    PoplarUnknown = 5
    PoplarRecoverableFullReset = 6
    PoplarLinkError = 7


# By the numbers of ``TestErrorType``.
_TYPES = (
    "poptorch_cpp_error",
    "popart_exception",
    "popart_internal_exception",
    "poplibs_exception",
    "poplar_unrecoverable_runtime_error",
    "poplar_unknown_runtime_error",
    "poplar_recoverable_runtime_error",
    "poplar_link_error",
)


def _throwTestError(kind: TestErrorType) -> None:
    """Raise the error of a simulated device failure, to test a program's handling of it.

    Raises:
        RecoverableError: for ``PoplarRecoverableFullReset``.
        UnrecoverableError: for ``PoplarUnrecoverable``.
        Error: for every other kind.
    """
    kind = TestErrorType(kind)
    message = f"A failure of kind {kind.name} was asked for"
    here = f"{Path(__file__).name}:{_throwTestError.__code__.co_firstlineno}"
    contexts = (_throwTestError.__name__,)
    if kind is TestErrorType.PoplarRecoverableFullReset:
        raise RecoverableError(message, "FULL_RESET", _TYPES[kind], here, contexts)
    if kind is TestErrorType.PoplarUnrecoverable:
        raise UnrecoverableError(message, _TYPES[kind], here, contexts)
    raise Error(message, _TYPES[kind], here, contexts)


def isCompilingWithDispatcher() -> bool:
    """Return whether this thread is capturing a model's forward for the device."""
    return isRunningOnIpu()


def isAlreadyRegistered(value: object) -> bool:
    """Return whether a custom argument parser is registered for the type of ``value``."""
    return parser_for(value) is not None
