"""The exceptions of the engine.

A message names the request, the finding and the remedy, in that order.
Front-ends translate these into the exception classes their users expect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator


class AbeleError(Exception):
    """Base class of the errors that the engine raises."""


class CaptureError(AbeleError):
    """The model could not be captured as one static program."""


class DataDependentError(CaptureError):
    """The model reads a tensor's value while it is being captured."""


class LossError(CaptureError):
    """A training program needs exactly one final loss."""


class ReassignedError(CaptureError):
    """A parameter or buffer was replaced or removed inside ``forward``."""


class BatchError(AbeleError):
    """The leading dimension of a batch does not fit the configuration."""


class ValueCheckError(AbeleError):
    """A tensor holds a value that an operation cannot take, detected at run time."""


class IndexCheckError(ValueCheckError, IndexError):
    """An index, or a target's class, is out of range of an operation."""


class TrappedError(AbeleError):
    """An operation produced an infinity or a NaN from finite operands.

    Attributes:
        line: ``FILE:LINE in FUNCTION`` of the user's source, or empty.
    """

    def __init__(self, message: str, line: str = ""):
        super().__init__(message)
        self.line = line


class ProgramError(AbeleError):
    """A program violates the rules of ``Program.verify``."""


class CollectiveError(AbeleError):
    """Processes that train together cannot continue together."""


class PlaceError(CollectiveError):
    """The addresses or ranks of the processes that train together are unknown."""


class MeetingPointError(PlaceError):
    """The environment lacks the address where training processes connect.

    Attributes:
        size: how many there are.
    """

    def __init__(self, message: str, size: int):
        super().__init__(message)
        self.size = size


class RankLostError(CollectiveError):
    """A training process that others wait for has ended, died, or never came."""


class DisagreementError(CollectiveError):
    """Processes that share their updates were given different programs, options or values."""


class StoppedError(CollectiveError):
    """Another process could not finish its part of an update, so no process applied it.

    Weights and optimizer state are as after the last complete update, in all processes.
    """


class HostCallError(AbeleError):
    """A function that a program calls on the host is missing, or its results changed shape."""


class ReportError(AbeleError):
    """The record of a run is missing, damaged, or of a newer version."""


class SerializationError(AbeleError):
    """An object cannot be written to a file, or a file's content is invalid."""


class TargetError(AbeleError):
    """The requested target cannot be used on this machine."""


class CompilerError(TargetError):
    """The native compiler behind a target failed.

    Attributes:
        log: the compiler's own output, for a log file rather than a terminal.
    """

    def __init__(self, message: str, log: str = ""):
        super().__init__(message)
        self.log = log


class LoweringError(CompilerError):
    """A lowering failed with an exception that is a bug of this package.

    Attributes:
        lowering: its name.
    """

    def __init__(self, message: str, log: str = "", lowering: str = ""):
        super().__init__(message, log)
        self.lowering = lowering


class ExecutableError(AbeleError):
    """An executable file cannot be used."""


class CorruptExecutable(ExecutableError):
    """An executable file is truncated, altered or of another kind."""


class ForeignExecutable(ExecutableError):
    """An executable file is intact but for another machine, torch version or program."""


class FitError(AbeleError):
    """A program's memory use could not be determined."""


class LimitError(FitError, ValueError):
    """A memory limit is invalid, or its device does not exist."""


class StageError(AbeleError):
    """A model cannot be divided into stages, or not into the requested number."""


class PortError(AbeleError):
    """A program that cannot be ported, or whose files cannot be read or written."""


class CheckError(PortError):
    """A port and its original cannot be compared: one of them did not run or train."""


class DifferenceError(AbeleError):
    """Two modes of running a program cannot be compared."""


class TorchVersionError(ImportError):
    """The installed torch is too old, or lacks what the capture of programs needs."""


class TorchVersionWarning(UserWarning):
    """The installed torch is newer than the versions this project was tested with."""


@contextlib.contextmanager
def raised_as(kind: type[Exception], caught: type[Exception]) -> Generator[None]:
    """Raise exceptions of one class as another class's, with their message, in a ``with`` block."""
    try:
        yield
    except caught as error:
        raise kind(str(error)) from error
