"""Processes that a program starts answer, too, where they compile first.

The command's request is in the environment, which other processes inherit, and the answer is a
file. The program that waits for these processes is ended by a signal, since it may wait in a call
of the system.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from abele.fit.answers import Answered, Report, Say, silent
from abele.storage import atomic, temporary

_REQUEST, _ANSWER = "ABELE_FIT_REQUEST", "answer.json"
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


@contextlib.contextmanager
def asked(limit: str | None) -> Generator[None]:
    """While open, processes that start answer where they would compile.

    Args:
        limit: as for ``limits.of_machine``.

    Raises:
        Answered: one of them has answered, and this one has not; at the end at the latest.
    """
    with temporary.folder() as folder:
        file = Path(folder, _ANSWER)
        before = os.environ.get(_REQUEST)
        os.environ[_REQUEST] = json.dumps({"folder": folder, "limit": limit})
        try:
            with _watched(file):
                yield
        except Answered:
            raise
        except BaseException:  # for want of what the process would have computed
            _raise_answer(file)
            raise
        finally:
            os.environ.pop(_REQUEST)
            if before is not None:
                os.environ[_REQUEST] = before
        _raise_answer(file)


def answer(of: Callable[[str | None], Report]) -> None:
    """Where an ancestor asks, answer and end; also if it has ended, since no step is to run.

    Args:
        of: the answer for a limit.

    Raises:
        SystemExit: an ancestor asked.
    """
    text = os.environ.get(_REQUEST)
    if text is None:
        return
    request = json.loads(text)
    file = Path(request["folder"], _ANSWER)
    if file.parent.is_dir() and not file.exists():
        report = of(request["limit"])
        process = {"number": os.getpid(), "arguments": sys.argv}
        facts = {"text": str(report), "data": report.data(), "process": process}
        atomic.write_text(file, json.dumps(facts))
    raise SystemExit(0)


def _raise_answer(file: Path) -> None:
    if file.exists():
        raise Answered(ChildReport(json.loads(file.read_text()))) from None


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
