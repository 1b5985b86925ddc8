"""The engine's errors under the classes that PopTorch programs catch."""

from types import TracebackType

from abele.errors import AbeleError, BatchError, TrappedError
from poptorch._error import RecoverableError, error


class _Translated:
    """Context manager; a class, because a generator costs a microsecond at every call."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type | None, found: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(found, BatchError):
            raise AssertionError(str(found)) from found
        if isinstance(found, TrappedError):
            action, layer = "IPU_RESET", "poplar_recoverable_runtime_error"
            raise RecoverableError(str(found), action, layer, found.line) from found
        if isinstance(found, AbeleError):
            raise error(str(found)) from found


#: Raises a batch mistake as AssertionError, a trapped operation as RecoverableError and every
#: other engine error as poptorch.Error.
translated = _Translated()
