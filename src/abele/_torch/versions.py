"""Versions of torch this project was tried with, and what becomes of others.

An older one is refused. A newer one is accepted with one warning: then nothing takes the shortcuts
through torch whose only gain is time, and ``checks`` probes the private names that remain.
"""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Callable, Generator
from typing import ParamSpec

import torch

from abele.errors import TorchVersionError, TorchVersionWarning

SUPPORTED = ("2.13", "2.14", "2.15")
#: Whether this torch was tried; without, only names that self-checks cover are used.
tried = ".".join(torch.__version__.split(".")[:2]) in SUPPORTED

_RANGE = f"{SUPPORTED[0]} to {SUPPORTED[-1]}"
P = ParamSpec("P")


def require() -> None:
    """Warn of a torch that is newer than those tried.

    Raises:
        TorchVersionError: this torch is older.
    """
    if tried:
        return
    if _series(torch.__version__) < _series(SUPPORTED[0]):
        raise TorchVersionError(
            f"abele needs torch {SUPPORTED[0]} or newer, found {torch.__version__}: it uses names "
            f"that torch does not promise to keep. Run: pip install torch=={SUPPORTED[-1]}.0"
        )
    warnings.warn(
        f"torch {torch.__version__} is newer than abele was tried with ({_RANGE}). Programs are "
        "compiled if abele's self-checks of it pass, and interpreted otherwise.",
        TorchVersionWarning,
        stacklevel=3,
    )


def missing(found: object) -> TorchVersionError:
    """Return the error that says what capture misses in a torch that is newer than those tried."""
    return TorchVersionError(
        f"torch {torch.__version__} is newer than abele was tried with ({_RANGE}), and lacks what "
        f"the capture of programs needs: {found}. Run: pip install torch=={SUPPORTED[-1]}.0"
    )


@contextlib.contextmanager
def imported() -> Generator[None]:
    """Explain an import that fails in a ``with`` block because torch has moved a name.

    Raises:
        TorchVersionError: a name is gone from a torch that was not tried.
    """
    try:
        yield
    except (ImportError, AttributeError) as error:
        if tried or isinstance(error, TorchVersionError):
            raise
        raise missing(error) from error


def optional(
    manager: Callable[P, contextlib.AbstractContextManager[None]],
) -> Callable[P, contextlib.AbstractContextManager[None]]:
    """Have a context manager do nothing where an untried torch lacks a name that it uses.

    Most programs run without; others end in an error of their own.
    """

    @contextlib.contextmanager
    @functools.wraps(manager)
    def where_possible(*args: P.args, **kwargs: P.kwargs) -> Generator[None]:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(manager(*args, **kwargs))
            except (ImportError, AttributeError):
                if tried:
                    raise
            yield

    return where_possible


def _series(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
