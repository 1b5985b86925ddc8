"""Questions of ``abele fit`` and ``abele stage``, answered at a program's first compile."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Protocol

from abele.errors import FitError, StageError

#: Called with a description of each long step.
Say = Callable[[str], None]


def silent(text: str) -> None:
    """Ignore a progress message."""


class Report(Protocol):
    """The answer of ``abele fit`` or ``abele stage``, printable as text or JSON."""

    def data(self) -> dict[str, Any]:
        """Return the answer of ``abele fit`` or ``abele stage`` as JSON values."""
        ...

    def pieces(self, say: Say = silent) -> Iterator[str]:
        """Yield the text of the answer in chunks of lines, each as soon as it is known."""
        ...


class Answered(BaseException):
    """An exception that ends a program at its first compile; ``except Exception`` passes it on."""


@dataclasses.dataclass(kw_only=True)
class Question:
    """A question of ``abele fit`` or ``abele stage`` about the first model that is compiled.

    Attributes:
        command: ``fit`` or ``stage``.
        wanted: options of the command, such as a limit.
        of_function: answers for a compiled function, as ``about_function`` calls it; None if the
            command has no answer for one.
        answer: the answer; None before.
        refused: reason why there is no answer.
        problem: error while answering, which the program may have caught.
        process: the asking process; forked children do not answer.
    """

    command: str
    wanted: Any
    of_function: Callable[..., Report] | None = None
    answer: Report | None = None
    refused: str = ""
    problem: str = ""
    process: int = dataclasses.field(default_factory=os.getpid)

    def answer_with(self, of: Callable[[], Report]) -> NoReturn:
        """Store the result of a function as the answer, and end the program.

        Raises:
            Answered: the question is answered, or refused by a ``FitError`` or ``StageError``.
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
        """Store the reason why there is no answer, and end the program.

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
    """Return the open question about the model that is about to be compiled, or None.

    Front-ends call this before they compile.

    Raises:
        Answered: this process has answered already, and the program continued.
    """
    if asked is None or asked.process != os.getpid():
        return None
    if asked.answer is not None or asked.refused:
        raise Answered
    return asked


_STAGES = (
    "Stages begin at modules of a wrapped model. A function that abele.compile decorates is one "
    "program on one device."
)
_PARTS = (
    "Graphs of torch.compile are parts of a step, whose optimizer runs outside of them. Decorate "
    "the whole step with abele.compile instead, and ask again."
)


def about_function(programs: Sequence[Any], *settings: Any) -> None:
    """Answer the open question, if there is one, for a function of plain PyTorch.

    Args:
        programs: the captured programs of a call.
        settings: their configuration, device and ``Start``.

    Raises:
        Answered: the question is answered or refused.
    """
    question = taken()
    if question is None:
        return
    answer = question.of_function
    if answer is None:
        question.refuse(_STAGES)
    question.answer_with(lambda: answer(programs, *settings))


def refuse_graphs() -> None:
    """Refuse the open question, if there is one, for a graph of ``torch.compile``.

    Raises:
        Answered: the question is refused.
    """
    question = taken()
    if question is not None:
        question.refuse(_PARTS)
