"""Questions of ``abele fit`` and ``abele stage``, answered in place of a program's first compile.

The command runs the program in its own process. A question is open in that process, and for the
processes that it starts: the environment names a folder, in which one process claims the question
and writes its answer. A signal then interrupts the command, which may wait in a system call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

from abele.errors import FitError
from abele.storage import atomic, temporary

_REQUEST, _ANSWER, _CLAIMED = "ABELE_REQUEST", "answer.json", "claimed"
_SIGNAL = signal.SIGUSR2
_LOOK_S = 0.05

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
    """Ends a program at its first compile; not caught by ``except Exception``.

    Attributes:
        report: the answer.
    """

    def __init__(self, report: Report):
        super().__init__("the command has its answer")
        self.report = report


class Refused(BaseException):
    """Ends a program for which there is no answer; the text says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """A question to the first process that compiles.

    Attributes:
        command: ``fit`` or ``stage``.
        wanted: details, as JSON values.
        goes_on: the program goes on after the answer.
    """

    command: str
    wanted: Any
    goes_on: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Folder:
    """The folder in which processes claim and answer a question."""

    question: Question
    path: str

    def is_claimed(self) -> bool:
        """Return whether a process has claimed the question, or the command is gone."""
        return not Path(self.path).is_dir() or Path(self.path, _CLAIMED).exists()

    def claim(self) -> bool:
        """Claim the question; True for one process only."""
        try:
            Path(self.path, _CLAIMED).touch(exist_ok=False)
        except OSError:  # claimed already, or there is no folder any more
            return False
        return True

    def write(self, facts: dict[str, Any]) -> None:
        """Write the answer, if the command still waits."""
        if Path(self.path).is_dir():
            atomic.write_text(Path(self.path, _ANSWER), json.dumps(facts))

    def raise_answer(self) -> None:
        """Raise ``Answered`` or ``Refused`` if another process has written its answer."""
        file = Path(self.path, _ANSWER)
        if file.exists():
            facts = json.loads(file.read_text(encoding="utf-8"))
            if "refused" in facts:
                raise Refused(facts["refused"]) from None
            raise Answered(_OfProcess(facts)) from None


class _OfProcess:
    """The answer that another process wrote."""

    def __init__(self, facts: dict[str, Any]):
        self._facts = facts

    def data(self) -> dict[str, Any]:
        """Return the answer; ``process`` has the number and arguments of the process."""
        return {**self._facts["data"], "process": self._facts["process"]}

    def pieces(self, say: Say = silent) -> Iterator[str]:
        """Yield the text in one piece."""
        del say
        yield str(self)

    def __str__(self) -> str:
        process = self._facts["process"]
        who = f"process {process['number']}, which the program started: "
        return f"{self._facts['text']}\n\nThat is of {who}{shlex.join(process['arguments'])}"


class Asked:
    """A question of this process.

    Attributes:
        folder: where other processes answer.
        told: the answer of this process; None before.
        problem: error of this process while it answered; the program may have caught it.
    """

    def __init__(self, folder: _Folder):
        self.folder, self.process = folder, os.getpid()
        self.told: Answered | Refused | None = None
        self.problem = ""

    def is_taken(self) -> bool:
        """Return whether a model has come, for which the answer is sought."""
        return self.folder.is_claimed()


#: Open questions; a fork has those of its parent, too, so each knows its process.
_open: list[Asked] = []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taken:
    """A question that this process answers or refuses.

    Attributes:
        question: the question.
        folder: where the command looks for the answer.
        asked: the question, if this process asks; None if an ancestor does.
    """

    question: Question
    folder: _Folder
    asked: Asked | None = None

    def answer(self, report: Report) -> NoReturn:
        """Answer and end the program.

        Raises:
            Answered: this process asks.
            SystemExit: an ancestor asks.
        """
        if self.asked is not None:
            self.asked.told = Answered(report)
            raise self.asked.told
        process = {"number": os.getpid(), "arguments": sys.argv}
        self.folder.write({"text": str(report), "data": report.data(), "process": process})
        raise SystemExit(0)

    def refuse(self, why: str) -> NoReturn:
        """Say why there is no answer, and end the program.

        Raises:
            Refused: this process asks.
            SystemExit: an ancestor asks.
        """
        if self.asked is not None:
            self.asked.told = Refused(why)
            raise self.asked.told
        self.folder.write({"refused": why})
        raise SystemExit(1)

    def answer_with(self, of: Callable[[], Report]) -> NoReturn:
        """Answer with the result of ``of``; refuse if it raises ``FitError``.

        Raises:
            Answered, Refused, SystemExit: as ``answer`` and ``refuse`` do.
        """
        try:
            report = of()
        except FitError as error:
            self.refuse(str(error))
        except Exception as error:
            if self.asked is not None:
                self.asked.problem = f"{type(error).__name__}: {error}"
            raise
        self.answer(report)


def taken() -> Taken | None:
    """Return the question for the model about to be compiled; None if there is none.

    Front-ends call this before they compile.

    Raises:
        SystemExit: another process answers, and this one is to run no step.
        Answered, Refused: this process has answered already, and the program went on.
    """
    if _open and _open[-1].process == os.getpid():
        asked = _open[-1]
        if asked.told is not None:
            raise asked.told
        folder = asked.folder
        if folder.claim() or not folder.question.goes_on:
            return Taken(question=folder.question, folder=folder, asked=asked)
        return None
    text = os.environ.get(_REQUEST)
    if text is None:
        return None
    facts = json.loads(text)
    folder = _Folder(question=Question(**facts["question"]), path=facts["path"])
    if folder.claim():
        return Taken(question=folder.question, folder=folder)
    if folder.question.goes_on:
        return None
    raise SystemExit(0)


@contextlib.contextmanager
def asked(question: Question) -> Generator[Asked]:
    """Ask the first model that is compiled inside, in this process or one that it starts.

    Yields:
        The state of the question.

    Raises:
        Answered, Refused: there is an answer, or none for this model; raised at the end at the
            latest, if the program has caught it.
    """
    with temporary.folder() as path:
        folder = _Folder(question=question, path=path)
        made = Asked(folder)
        before = os.environ.get(_REQUEST)
        os.environ[_REQUEST] = json.dumps(dataclasses.asdict(folder))
        _open.append(made)
        try:
            with _interrupted(folder):
                yield made
        except BaseException:  # perhaps for want of what the ended process would have computed
            _raise(made)
            raise
        finally:
            _open.pop()
            os.environ.pop(_REQUEST)
            if before is not None:
                os.environ[_REQUEST] = before
        _raise(made)


def _raise(made: Asked) -> None:
    """Raise the answer, if there is one: this process's own before that of another one."""
    if made.told is not None:
        raise made.told from None
    made.folder.raise_answer()


@contextlib.contextmanager
def _interrupted(folder: _Folder) -> Generator[None]:
    """Raise the answer of another process in the main thread, as soon as it is written."""
    main = threading.main_thread()
    if threading.current_thread() is not main:  # only the main thread may handle signals
        yield
        return
    over = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        if not over.is_set():
            folder.raise_answer()

    def look() -> None:
        while not over.wait(_LOOK_S):
            if Path(folder.path, _ANSWER).exists():
                signal.pthread_kill(main.ident or 0, _SIGNAL)
                return

    before = signal.signal(_SIGNAL, interrupt)
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
        signal.signal(_SIGNAL, before)
