"""An answer, as front-ends give it to a command that asked before it ran a program."""

from __future__ import annotations

from typing import Any, Protocol


class Report(Protocol):
    """An answer; its text is for people."""

    def data(self) -> dict[str, Any]:
        """Everything as JSON values."""
        ...


class Answered(BaseException):
    """Ends a program at its first compile; no ``except Exception`` of the program catches it.

    Attributes:
        report: the answer.
    """

    def __init__(self, report: Report):
        super().__init__("the command has its answer")
        self.report = report
