"""The page of a run in which nothing was compiled, because nobody called what would have been."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from abele.errors import ReportError
from abele.report import endings, files
from abele.report.journal import FILE, read_journal
from abele.report.record import Run, read_run
from abele.report.recorder import Trouble
from abele.storage.atomic import write_text


class Uncalled:
    """Waits for the end of a run that has not begun; then writes the page that says so.

    Args:
        folder: of the run; one that has a run of this process already stays as it is.
        run: gives what is known of it.
    """

    def __init__(self, folder: Path, run: Callable[[], Run]):
        self._folder, self._run = folder, run
        self._lines: list[dict[str, str | float]] = []
        self._began_ns = time.perf_counter_ns()
        endings.watch(self)

    def begun(self) -> None:
        """Somebody has called it: there is nothing to be said here."""
        endings.leave(self)

    def failed(self, where: str, error: BaseException) -> None:
        """Record an uncaught error."""
        text = endings.text_of(error)
        self._lines.append(self._line("error", text, type=type(error).__name__, where=where))

    def ended(self, how: str) -> None:
        """Write the page."""
        endings.leave(self)
        with Trouble():
            if not self._has_run():
                self._write(how)

    def _write(self, how: str) -> None:
        run, lines = self._run(), [*self._lines, self._line("end", how)]
        # No thread as a journal has that is written meanwhile: none may start when Python ends.
        self._folder.mkdir(parents=True, exist_ok=True)
        write_text(self._folder / FILE, "".join(f"{json.dumps(line)}\n" for line in lines))
        run.write(self._folder)
        files.write(self._folder, run, read_journal(self._folder))

    def _line(self, kind: str, what: str, **more: str) -> dict[str, str | float]:
        at = (time.perf_counter_ns() - self._began_ns) / 1e9
        return {"e": kind, "at": round(at, 6), "what": what, **more}

    def _has_run(self) -> bool:
        try:
            return read_run(self._folder).process.pid == os.getpid()
        except ReportError:
            return False
