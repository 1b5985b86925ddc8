"""A command that wants an answer instead of the first compile of a program that it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any, Protocol


class Report(Protocol):
    """An answer as a front-end gives it; its text is for people."""

    def data(self) -> dict[str, Any]:
        """Everything as JSON values."""
        ...


class Answered(BaseException):
    """Ends a program at its first compile; no ``except Exception`` of the program catches it.

    Attributes:
        report: the answer.
    """

    def __init__(self, report: Report):
        super().__init__("the fit check has its answer")
        self.report = report


_limits: list[str | None] = []


@contextlib.contextmanager
def instead_of_compiling(limit: str | None) -> Generator[None]:
    """While open, the first model that would be compiled raises ``Answered``.

    Args:
        limit: as for ``limits.of_machine``; None for the device that would be used.
    """
    _limits.append(limit)
    try:
        yield
    finally:
        _limits.pop()


def answer(of: Callable[[str | None], Report]) -> None:
    """Where somebody asks, answer; front-ends call this before they compile.

    Args:
        of: the answer for a limit.

    Raises:
        Answered: somebody asks.
    """
    if _limits:
        raise Answered(of(_limits[-1]))
