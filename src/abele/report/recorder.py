"""Records a run: writes record, journal and page while the run goes on."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from abele.errors import ReportError
from abele.report import endings
from abele.report.journal import (
    FILE,
    SINGLE,
    SPAN_S,
    Journal,
    JournalWriter,
    Window,
    read_journal,
    window_of,
)
from abele.report.optimizer import Optimizer, changed
from abele.report.page import FILE as PAGE
from abele.report.page import write_page
from abele.report.record import Run, Waits, read_run
from abele.runtime.observers import CallRecord, Observer, nanoseconds
from abele.storage.atomic import write_text
from abele.warn import show, warn_user


class Uncalled:
    """Writes the report of a model wrapper that was never called, at the end of the process.

    Args:
        folder: folder of the run; unchanged if it contains a run of this process already.
        run: returns the record of the run.
    """

    def __init__(self, folder: Path, run: Callable[[], Run]):
        self._folder, self._run = folder, run
        self._lines: list[dict[str, str | float]] = []
        self._began_ns = time.perf_counter_ns()
        endings.watch(self)

    def begun(self) -> None:
        """Cancel the report of an uncalled wrapper, because the wrapper was called."""
        endings.leave(self)

    def failed(self, where: str, error: BaseException) -> None:
        """Record an error that the program did not catch."""
        text = endings.text_of(error)
        self._lines.append(self._line("error", text, type=type(error).__name__, where=where))

    def ended(self, how: str) -> None:
        """Write the report of an uncalled wrapper at the end of the process."""
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
        write_page(self._folder, run, read_journal(self._folder))

    def _line(self, kind: str, what: str, **more: str) -> dict[str, str | float]:
        at = (time.perf_counter_ns() - self._began_ns) / 1e9
        return {"e": kind, "at": round(at, 6), "what": what, **more}

    def _has_run(self) -> bool:
        try:
            return read_run(self._folder).process.pid == os.getpid()
        except ReportError:
            return False


Latest = Callable[[Run, bool], Run]
#: A call that has ended, its loss, and how many nanoseconds batches were waited for by then.
_Ended = tuple[CallRecord, float | None, int]

#: How runs end that went well; their wrappers are still there.
WELL = ("finished", "ended: the wrapper was destroyed")
LONGEST = 20_000  # characters of an error's message
#: The page is written anew after so many calls, for whoever opens it meanwhile, and then once in a
#: while, so that little is missing where the process is killed: after ``AGAIN_S``, or ``TIMES`` as
#: long as that takes.
FIRST_CALLS = (1, 16)
AGAIN_S, TIMES = 60.0, 200
#: Where values change often, the record is written anew after this time, or ``TIMES`` as long.
CHANGED_S = 1.0


class Trouble:
    """Context manager that turns errors of writing a report into one warning.

    It is no generator of ``contextlib``, whose file would be the source of the warning.
    """

    def __init__(self):
        self._warned = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, Exception):
            return False
        if not self._warned:
            self._warned = True
            name = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
            _warn(f"The report cannot be written: {name}{error}. The run goes on.")
        return True


class Recorder(Observer):
    """Records a run in a folder, as an observer of its build and of its session.

    Errors of writing files only cause a warning.

    Args:
        folder: folder for ``run.json``, ``journal.jsonl`` and ``report.html``; files of an older
            run are replaced.
        run: the record before building.
        latest: returns the updated record, from the last one and whether the run has ended well,
            which allows expensive measurements.
        loading: returns the accumulated wait of the calling thread for batches.
        trouble: turns errors into warnings.

    Attributes:
        run: the current record.
    """

    def __init__(
        self,
        folder: Path,
        run: Run,
        latest: Latest = lambda run, over: run,
        loading: Callable[[], Waits] = Waits,
        trouble: Trouble | None = None,
    ):
        self.folder, self.run, self._latest, self._loading = folder, run, latest, loading
        self._trouble = trouble or Trouble()
        self._pending: deque[_Ended] = deque()
        self._waits, self._loaded_ns = Waits(), 0
        self._lock, self._pid = threading.RLock(), os.getpid()
        self._journal = JournalWriter(folder, _warn, self._drain)
        self._ended_ns = self._due_ns = self._again_ns = self._changed_ns = 0
        self._calls = 0
        self._loss: int | None = None
        self._value: float | None = None
        self._number: Callable[[torch.Tensor], float] = self._first_number
        self._over = False
        self._write()
        endings.watch(self)

    # -- what it is told -------------------------------------------------------------------

    def on_stage(self, stage: str, fraction: float) -> None:
        """Record the beginning of a stage of building."""
        self._add("stage", self._now(), stage)

    def built(self, run: Run, loss: int | None) -> None:
        """Record the compiled programs after building.

        Args:
            run: the new record.
            loss: index of the output that is the loss; None if none is.
        """
        self.run, self._loss, self._number = run, loss, self._first_number
        self._add("stage", self._now(), "calls")
        self._waits = self._loading()
        self._ended_ns, self._loaded_ns = time.perf_counter_ns(), self._waits.ns
        self._write()

    def changed(self, run: Run, what: str) -> None:
        """Record a new state of the run, such as a switch to compiled programs."""
        self.run = run
        self._add("note", self._now(), what)
        self._write()

    def optimizer(self, now: Optimizer) -> None:
        """Record the optimizer's hyperparameters for the next calls.

        Args:
            now: a record of the optimizer that begins with these values.
        """
        if self._pid != os.getpid() or self.run.optimizer is None:
            return
        with self._lock:
            calls = self._calls + len(self._pending)
        known = changed(self.run.optimizer, now, calls)
        if known == self.run.optimizer:
            return
        self.run = dataclasses.replace(self.run, optimizer=known)
        began = time.perf_counter_ns()
        if began >= self._changed_ns:  # else they are written with those that come later
            self._drain()
            self._trying(lambda: self.run.write(self.folder))
            self._ended_ns = time.perf_counter_ns()  # no call waited for that
            took = self._ended_ns - began
            self._changed_ns = began + took + max(int(CHANGED_S * 1e9), TIMES * took)

    def on_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        """Read the loss from a call's outputs; a loss of several elements is averaged."""
        if self._loss is not None:
            self._value = self._number(outputs[self._loss])

    def _first_number(self, loss: torch.Tensor) -> float:
        """Choose how to read the loss, by its number of dimensions, and read it."""
        self._number = torch.Tensor.item if loss.dim() == 0 else _mean
        return self._number(loss)

    def on_call_end(self, call: CallRecord) -> None:
        """Record a call of the model, or its error."""
        # At every call, so what can wait is done for many calls at once.
        self._pending.append((call, self._value, self._waits.ns))
        self._value = None
        if call.ended_ns >= self._due_ns or call.error is not None:
            self._catch_up(call)

    def _catch_up(self, call: CallRecord) -> None:
        """Write pending calls to the journal, and the page if it is due."""
        self._drain()
        self._waits = self._loading()  # another thread may make the calls by now
        if call.error is not None:
            self.failed(f"call {self._calls + 1}", call.error)
        elif self._calls in FIRST_CALLS or call.ended_ns >= self._again_ns:
            self._look(over=False)
            self._write()
            self._ended_ns = time.perf_counter_ns()  # no call waited for that

    def _drain(self) -> None:
        """Write pending calls to the journal; safe to call from several threads."""
        if self._pid != os.getpid():  # before the lock, which another thread may have had
            self._pending.clear()
            return
        with self._lock:
            pending = self._pending
            taken = [pending.popleft() for _ in range(len(pending))]
            ended = [each for each in taken if each[0].error is None]
            # While calls have a line each, they come one by one.
            singles = max(0, SINGLE - self._calls)
            for each in [[one] for one in ended[:singles]] + [ended[singles:]]:
                if each:
                    self._journal.calls(self._together(each))
                    self._calls += len(each)
            # The first calls have a line each, as they come.
            late = self._calls >= SINGLE
            self._due_ns = time.perf_counter_ns() + int(SPAN_S * 1e9) if late else 0

    def _together(self, calls: Sequence[_Ended]) -> Window:
        """Return consecutive calls as one window of the journal."""
        start, before = self.run.process.clock_ns, self._ended_ns
        waited = inputs = computed = outputs = compiling = 0
        times: list[float] = []
        for call, _, _ in calls:
            began, ended, marks = call.began_ns, call.ended_ns, call.marks
            if len(marks) == 2 and type(marks[0]) is int:  # most calls, in short
                first, last = marks
            else:
                parts = parts_of(call)
                first, last = began + parts[0], ended - parts[2]
            if began > before:
                waited += began - before
            inputs += first - began
            computed += last - first
            outputs += ended - last
            compiling += call.following_ns
            times.append((ended - began) / 1e9)
            before = ended
        # Batches are waited for between calls, and nowhere else.
        loading = min(waited, max(0, calls[-1][2] - self._loaded_ns))
        self._ended_ns, self._loaded_ns = before, calls[-1][2]
        return window_of(
            (calls[0][0].began_ns - start) / 1e9,
            [each / 1e9 for each in (waited, inputs, computed, outputs)],
            *(loss for _, loss, _ in calls if loss is not None),
            times=times,
            until=(before - start) / 1e9,
            first=self._calls,
            loading=loading / 1e9,
            compiling=compiling / 1e9,
        )

    def failed(self, where: str, error: BaseException) -> None:
        """Record an error of the run, and write the page.

        Args:
            where: activity during which it occurred.
            error: the error; its causes are recorded, too.
        """
        text = endings.with_causes(error)
        self._add("error", self._now(), text[:LONGEST], type=type(error).__name__, where=where)
        self._look(over=False)
        self._write()

    def ended(self, how: str) -> None:
        """Record how the process ended."""
        if self._over:
            return
        self._over = True
        endings.leave(self)
        self._add("end", self._now(), how)
        self._journal.close()
        self._look(over=how in WELL)
        self._write()
        self._say_where()

    def _say_where(self) -> None:
        """Print where the page of the run is, once for each page, in the first instance only."""
        page = self.folder / PAGE
        if self._pid == os.getpid() and page.is_file() and page not in _said:
            _said.add(page)
            if not self.folder.name.startswith("instance_"):
                show(f"abele: the report of {self.run.name} is {page}")

    def looked(self, run: Run) -> None:
        """Record facts found between two calls, excluding the time this takes."""
        self.run = run
        self._drain()
        self._write()
        self._ended_ns = time.perf_counter_ns()

    def _look(self, *, over: bool) -> None:
        try:
            if self._pid == os.getpid():
                self.run = self._latest(self.run, over)
        except Exception as error:  # noqa: BLE001 - whatever it is, a report does not end a run
            _warn(f"The report lacks what was last: {error}. The run goes on.")

    # -- files -----------------------------------------------------------------------------

    def _add(self, kind: str, at: float, what: str, **more: str) -> None:
        self._drain()
        self._journal.add(kind, at, what, **more)

    def _now(self) -> float:
        return (time.perf_counter_ns() - self.run.process.clock_ns) / 1e9

    def _write(self) -> None:
        began = time.perf_counter_ns()
        self._trying(lambda: self.run.write(self.folder))
        self._trying(lambda: write_page(self.folder, self.run, self.read(), alive=True))
        took = time.perf_counter_ns() - began
        self._again_ns = began + took + max(int(AGAIN_S * 1e9), TIMES * took)

    def read(self) -> Journal:
        """Return the journal of the run so far."""
        self._drain()
        return read_journal(self.folder)

    def _trying(self, write: Callable[[], Any]) -> None:
        """Call a function that writes files, except in a forked child or a deleted folder."""
        with self._trouble:
            if self._pid == os.getpid() and self.folder.is_dir():
                write()


_said: set[Path] = set()  # pages


def _mean(losses: torch.Tensor) -> float:
    return losses.detach().float().mean().item()


def parts_of(call: CallRecord) -> tuple[int, int, int]:
    """Return the nanoseconds of a call spent on inputs, computing and outputs."""
    marks = nanoseconds(call.marks)
    ends = marks[1::2]
    if not ends:
        return 0, call.ended_ns - call.began_ns, 0
    first, last = marks[0], max(ends)
    return first - call.began_ns, last - first, call.ended_ns - last


def latest_call(call: CallRecord | None, began_ns: int) -> Journal:
    """Return a journal of one call only, for a run without a recorder that began at a time."""
    if call is None:
        return Journal()
    at = (call.began_ns - began_ns) / 1e9
    return Journal(windows=(window_of(at, [each / 1e9 for each in (0, *parts_of(call))]),))


def _warn(text: str) -> None:
    warn_user(text, ReportWarning)


class ReportWarning(UserWarning):
    """Warning that part of a report could not be written; the run goes on."""
