"""The engine's errors under the classes that PopTorch programs catch."""

import contextlib
from collections.abc import Iterator

from abele.errors import AbeleError, BatchError
from poptorch._error import error


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raises a batch mistake as AssertionError and every other engine error as poptorch.Error."""
    try:
        yield
    except BatchError as found:
        raise AssertionError(str(found)) from found
    except AbeleError as found:
        raise error(str(found)) from found
