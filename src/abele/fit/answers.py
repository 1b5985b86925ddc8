"""An answer, as front-ends give it to a command that asked before it ran a program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any, NoReturn, Protocol

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


class Kept:
    """What a command was told: a program with a bare ``except`` may catch what should end it.

    Attributes:
        told: the first that was; None before.
        is_sought: somebody is about to tell.
        problem: why that failed, which the program may have caught, too.
    """

    def __init__(self) -> None:
        self.told: Answered | Refused | None = None
        self.is_sought, self.problem = False, ""

    def end(self, told: Answered | Refused) -> NoReturn:
        """End the program.

        Raises:
            Answered, Refused: ``told``.
        """
        self.told = told
        raise told

    @contextlib.contextmanager
    def in_any_case(self) -> Generator[None]:
        """A program that runs inside and catches what should end it ends with that all the same.

        Raises:
            Answered, Refused: what was told, at the end at the latest.
        """
        try:
            yield
        except BaseException:  # what came of what was caught
            if self.told is not None:
                raise self.told from None
            raise
        if self.told is not None:
            raise self.told
