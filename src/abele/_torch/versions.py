"""Versions of torch this project was tried with, and what becomes of others.

An older one is refused. A newer one is accepted with one warning: then nothing takes the shortcuts
through torch that only save time, and ``checks`` tries the private names that remain.
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
#: Whether this project was tried with this torch.
tried = ".".join(torch.__version__.split(".")[:2]) in SUPPORTED

_INSTEAD = f"Run: pip install torch=={SUPPORTED[-1]}.0"
P = ParamSpec("P")


def require() -> None:
    """Warn of a torch that is newer than those tried.

    Raises:
        TorchVersionError: this torch is older.
    """
    series = (re.findall(r"\d+", each)[:2] for each in (torch.__version__, SUPPORTED[0]))
    found, oldest = (list(map(int, each)) for each in series)
    if found < oldest:
        raise TorchVersionError(
            f"abele needs torch {SUPPORTED[0]} or newer, found {torch.__version__}: it uses names "
            f"that torch does not promise to keep. {_INSTEAD}"
        )
    if not tried:
        how = "Programs are compiled if abele's self-checks of it pass, and interpreted otherwise."
        warnings.warn(f"{_newer()}. {how}", TorchVersionWarning, stacklevel=3)


def _newer() -> str:
    known = f"{SUPPORTED[0]} to {SUPPORTED[-1]}"
    return f"torch {torch.__version__} is newer than abele was tried with ({known})"


def lacks(found: object) -> str:
    """Return a sentence on what captures miss in a torch that is newer than those tried."""
    return f"{_newer()}, and lacks what the capture of programs needs: {found}. {_INSTEAD}"


@contextlib.contextmanager
def imported() -> Generator[None]:
    """Explain imports that fail in a ``with`` block because torch has moved a name.

    Raises:
        TorchVersionError: a name is gone from a torch that was not tried.
    """
    try:
        yield
    except (ImportError, AttributeError) as error:
        raise (error if tried else TorchVersionError(lacks(error))) from error.__cause__


def optional(
    manager: Callable[P, contextlib.AbstractContextManager[None]],
) -> Callable[P, contextlib.AbstractContextManager[None]]:
    """Have a context manager do nothing where an untried torch lacks a name that it uses."""

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
