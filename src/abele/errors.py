"""The exceptions of the engine, and the one shape their messages have.

A message says what was asked, what was found and what to do, in that order.
Front-ends translate these into the exception classes their users expect.
"""

from __future__ import annotations


class AbeleError(Exception):
    """Base of every error the engine raises on purpose."""


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
    """A tensor holds a value that an operation cannot take, noticed while the program ran."""


class IndexCheckError(ValueCheckError, IndexError):
    """An index, or the class of a target, lies outside what an operation indexes."""


class TrappedError(AbeleError):
    """An operation made an infinity or a NaN from values that were none.

    Attributes:
        line: ``FILE:LINE in FUNCTION`` of the user's source, or empty.
    """

    def __init__(self, message: str, line: str = ""):
        super().__init__(message)
        self.line = line


class ProgramError(AbeleError):
    """A program does not keep the rules of ``Program.verify``."""


class CollectiveError(AbeleError):
    """Processes that train together cannot go on together."""


class PlaceError(CollectiveError):
    """The addresses of the processes, or the rank of this one, are unknown."""


class MeetingPointError(PlaceError):
    """The environment does not say where the processes meet.

    Attributes:
        size: how many there are.
    """

    def __init__(self, message: str, size: int):
        super().__init__(message)
        self.size = size


class RankLostError(CollectiveError):
    """A process that others wait for has ended, died, or never came."""


class DisagreementError(CollectiveError):
    """Processes that share their updates were given different programs, options or values."""


class StoppedError(CollectiveError):
    """Another process could not finish its part of an update, so that nobody made it.

    Weights and optimizer state are as after the last complete update, in all processes.
    """


class HostCallError(AbeleError):
    """A function that a program calls on the host is missing, or its results changed shape."""


class ReportError(AbeleError):
    """The record of a run is missing, damaged, or of a newer version."""


class SerializationError(AbeleError):
    """An object cannot be written to a file, or the content of a file means nothing."""


class TargetError(AbeleError):
    """A target was asked for that cannot be used on this machine."""


class CompilerError(TargetError):
    """The native compiler behind a target failed.

    Attributes:
        log: the compiler's own output, for a log file rather than a terminal.
    """

    def __init__(self, message: str, log: str = ""):
        super().__init__(message)
        self.log = log


class ExecutableError(AbeleError):
    """An executable file cannot be used."""


class CorruptExecutable(ExecutableError):
    """The file is truncated, altered or not an executable of ours."""


class ForeignExecutable(ExecutableError):
    """The file is sound but made for another machine, torch version or program."""


class FitError(AbeleError):
    """Nobody can say whether a program fits into a memory."""


class LimitError(FitError, ValueError):
    """A limit of memory that means nothing, or a device that is not there."""


class StageError(AbeleError):
    """A model cannot be divided into stages, or not into as many as were asked for."""


class PortError(AbeleError):
    """A program that cannot be ported, or whose files cannot be read or written."""


class CheckError(PortError):
    """A port and its original cannot be compared: one of them did not run, or did not train."""


class DifferenceError(AbeleError):
    """Two ways to run a program cannot be compared: one cannot be used, or there is no program."""


class TorchVersionError(ImportError):
    """The installed torch is of a version this project was not tested with."""
