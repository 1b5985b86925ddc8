"""The exceptions that PopTorch programs catch.

    Exception
      Error                  a model, a graph or a wrapper cannot do what is required
        RecoverableError     the device can be used again after `recovery_action`
        UnrecoverableError   the device needs maintenance
        IndexCheckError      an index is out of range; also an IndexError

Mistakes in option values are AssertionError, ValueError or AttributeError, as in the original.
"""

from collections.abc import Sequence

_PYTHON_ERROR = "poptorch_py_error"


class Error(Exception):
    """An error of the model, its graph or its wrapper.

    Args:
        message: What went wrong, without the type.
        type: Which layer raised it.
        location: Source position; empty for errors raised from Python.
        contexts: What was being done, innermost first; shown below the message.
    """

    def __init__(
        self,
        message: str,
        type: str = _PYTHON_ERROR,
        location: str = "",
        contexts: Sequence[str] = (),
    ):
        # All of them go to Exception so that pickling between processes rebuilds the same error.
        super().__init__(message, type, location, contexts)
        self.message = message
        self.type = type
        self.location = location
        self.contexts = contexts

    def __str__(self) -> str:
        where = f"In {self.location}: " if self.location else ""
        lines = [f"{where}'{self.type}': {self.message}"]
        if self.contexts:
            lines.append("Error raised in:")
            lines += [f"  [{index}] {context}" for index, context in enumerate(self.contexts)]
        return "\n".join(lines)


class RecoverableError(Error):
    """A device failure that a reset repairs.

    Args:
        message: What went wrong, without the type.
        recovery_action: IPU_RESET, PARTITION_RESET, LINK_RESET or FULL_RESET.
        type: Which layer raised it.
        location: Source position, or empty.
        contexts: As for ``Error``.
    """

    def __init__(
        self,
        message: str,
        recovery_action: str,
        type: str = _PYTHON_ERROR,
        location: str = "",
        contexts: Sequence[str] = (),
    ):
        super().__init__(message, type, location, contexts)
        self.args = (message, recovery_action, type, location, contexts)
        self.recovery_action = recovery_action


class UnrecoverableError(Error):
    """A device failure that no reset repairs.

    Args:
        message: What went wrong, without the type.
        type: Which layer raised it.
        location: Source position, or empty.

    Differs from the original: raised only by ``poptorch_core``'s test errors; failures of a CPU or
    GPU come as torch reports them.
    """


class IndexCheckError(Error, IndexError):
    """An error for an index, or a target class, that is out of range.

    Differs from the original: an IPU reads other memory.
    """


def error(message: str) -> Error:
    """Create a `poptorch.Error` without a source location, for the caller to raise."""
    return Error(message)


def createPoptorchError(msg: str) -> Error:
    """Create a `poptorch.Error` with a message, for the caller to raise."""
    return Error(msg)


def require(condition: bool, message: str) -> None:
    """Raise AssertionError unless `condition` holds.

    The interface promises AssertionError for mistaken arguments; a plain assert statement would
    vanish under `python -O`.
    """
    if not condition:
        raise AssertionError(message)
