"""An answer, as front-ends give it to a command that asked before it ran a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

#: Told in words what takes time.
Say = Callable[[str], None]


def silent(text: str) -> None:
    """Says nothing."""


class Report(Protocol):
    """An answer; its text is for people."""

    def data(self) -> dict[str, Any]:
        """Everything as JSON values."""
        ...

    def pieces(self, say: Say = silent) -> Iterator[str]:
        """The text, each piece of whole lines as soon as it is known."""
        ...


class Answered(BaseException):
    """Ends a program at its first compile; no ``except Exception`` of the program catches it.

    Attributes:
        report: the answer.
    """

    def __init__(self, report: Report):
        super().__init__("the command has its answer")
        self.report = report


class Refused(BaseException):
    """There is no answer, and why; no ``except Exception`` of the program catches it."""
