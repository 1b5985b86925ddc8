"""Processes that a program starts answer, too, where they compile first.

The command's request is in the environment, which other processes inherit, and the answer is a
file. The program that waits for these processes is ended by a signal, since it may wait in a call
of the system.
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
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from abele.fit.answers import Answered, Refused, Report, Say, silent
from abele.storage import atomic, temporary

_REQUEST, _ANSWER, _CLAIMED = "ABELE_REQUEST", "answer.json", "claimed"
_SIGNAL = signal.SIGUSR2
_LOOK_S = 0.05


class ChildReport:
    """The answer of another process.

    Args:
        facts: as that process wrote them.
    """

    def __init__(self, facts: dict[str, Any]):
        self._facts = facts

    def data(self) -> dict[str, Any]:
        """The answer, and under ``process`` the number and arguments of who gave it."""
        return {**self._facts["data"], "process": self._facts["process"]}

    def pieces(self, say: Say = silent) -> Iterator[str]:
        """The text, all of which is known."""
        del say
        yield str(self)

    def __str__(self) -> str:
        process = self._facts["process"]
        who = f"process {process['number']}, which the program started: "
        return f"{self._facts['text']}\n\nThat is of {who}{shlex.join(process['arguments'])}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What a command wants of the first process that compiles.

    Attributes:
        command: ``fit`` or ``stage``.
        wanted: JSON values that say what.
        folder: where the answer goes.
    """

    command: str
    wanted: Any
    folder: str

    def is_claimed(self) -> bool:
        """Whether some process has what is wanted, or nobody waits any more."""
        return not Path(self.folder).is_dir() or Path(self.folder, _CLAIMED).exists()

    def claim(self) -> bool:
        """Take it: true for one process only."""
        try:
            Path(self.folder, _CLAIMED).touch(exist_ok=False)
        except OSError:  # it is there, or the folder is not
            return False
        return True

    def answer(self, report: Report) -> NoReturn:
        """Answer and end; also if nobody waits any more, since no step is to run.

        Raises:
            SystemExit: always.
        """
        process = {"number": os.getpid(), "arguments": sys.argv}
        self._write({"text": str(report), "data": report.data(), "process": process})
        raise SystemExit(0)

    def refuse(self, why: str) -> NoReturn:
        """Say why there is no answer, and end.

        Raises:
            SystemExit: always.
        """
        self._write({"refused": why})
        raise SystemExit(1)

    def _write(self, facts: dict[str, Any]) -> None:
        if Path(self.folder).is_dir():
            atomic.write_text(Path(self.folder, _ANSWER), json.dumps(facts))


@contextlib.contextmanager
def asked(command: str, wanted: Any) -> Generator[Request]:
    """While open, processes that start answer where they would compile.

    Args:
        command: that asks.
        wanted: JSON values.

    Raises:
        Answered: one of them has answered, and this one has not; at the end at the latest.
        Refused: likewise.
    """
    with temporary.folder() as folder:
        request = Request(command=command, wanted=wanted, folder=folder)
        file = Path(folder, _ANSWER)
        before = os.environ.get(_REQUEST)
        os.environ[_REQUEST] = json.dumps(dataclasses.asdict(request))
        try:
            with _watched(file):
                yield request
        except (Answered, Refused):
            raise
        except BaseException:  # for want of what the process would have computed
            _raise_answer(file)
            raise
        finally:
            os.environ.pop(_REQUEST)
            if before is not None:
                os.environ[_REQUEST] = before
        _raise_answer(file)


def of_ancestor(command: str) -> Request | None:
    """What an ancestor that runs a command wants of this process, if one does."""
    text = os.environ.get(_REQUEST)
    request = None if text is None else Request(**json.loads(text))
    return request if request is not None and request.command == command else None


def _raise_answer(file: Path) -> None:
    if file.exists():
        facts = json.loads(file.read_text(encoding="utf-8"))
        if "refused" in facts:
            raise Refused(facts["refused"]) from None
        raise Answered(ChildReport(facts)) from None


@contextlib.contextmanager
def _watched(file: Path) -> Generator[None]:
    """Raises the answer in the main thread as soon as it is there; elsewhere nothing happens."""
    main = threading.main_thread()
    if threading.current_thread() is not main:  # only there signals may be handled
        yield
        return
    over = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        if not over.is_set():
            _raise_answer(file)

    def look() -> None:
        while not over.wait(_LOOK_S):
            if file.exists():
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
