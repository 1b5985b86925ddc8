"""Question of ``abele fit`` or ``stage``, answered in place of a program's first compile."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

from abele.errors import FitError, StageError

#: Called with a description of each long step.
Say = Callable[[str], None]


def silent(text: str) -> None:
    """Ignore a description of progress."""


class Report(Protocol):
    """An answer, which prints as text."""

    def data(self) -> dict[str, Any]:
        """Return the answer as JSON values."""
        ...

    def pieces(self, say: Say = silent) -> Iterator[str]:
        """Yield the text in pieces of full lines, each as soon as it is known."""
        ...


class Answered(BaseException):
    """Ends a program at its first compile; not caught by ``except Exception``."""


@dataclasses.dataclass(kw_only=True)
class Question:
    """A question to the first model that this process compiles.

    Attributes:
        command: ``fit`` or ``stage``.
        wanted: details.
        answer: the answer; None before.
        refused: why there is no answer.
        problem: error of answering; the program may have caught it.
        process: the process that asks; those that it forks have its memory, but no answer.
    """

    command: str
    wanted: Any
    answer: Report | None = None
    refused: str = ""
    problem: str = ""
    process: int = dataclasses.field(default_factory=os.getpid)

    def answer_with(self, of: Callable[[], Report]) -> NoReturn:
        """Answer with the result of ``of``, and end the program.

        Raises:
            Answered: there is an answer, or a ``FitError`` or ``StageError`` says why not.
        """
        try:
            self.answer = of()
        except (FitError, StageError) as error:
            self.refuse(str(error))
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"
            raise
        raise Answered

    def refuse(self, why: str) -> NoReturn:
        """Say why there is no answer, and end the program.

        Raises:
            Answered: always.
        """
        self.refused = why
        raise Answered


#: The open question, or None.
asked: Question | None = None
#: A command runs the program up to its answer, so the records of its real runs stay.
inspecting = False


def taken() -> Question | None:
    """Return the question for the model about to be compiled; None if there is none.

    Front-ends call this before they compile.

    Raises:
        Answered: this process has answered already, and the program went on.
    """
    if asked is None or asked.process != os.getpid():
        return None
    if asked.answer is not None or asked.refused:
        raise Answered
    return asked
