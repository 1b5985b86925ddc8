"""Journal of a run: a file of JSON lines that is appended to while the run goes on.

``journal.jsonl`` has one JSON object per line. Its first key, ``e``, is its kind:

    stage   a stage of building begins: ``what``, ``at``
    calls   consecutive calls: see ``Window``
    note    a message: ``text``, ``at``
    error   an error of a call or of other code: ``where``, ``type``, ``text``, ``at``
    end     the end of the run: ``how``, ``at``

``at`` is in seconds since the run began. The file can be read at any time; an incomplete last line
of a killed writer is ignored. Each of the first calls has a line, later calls share a line every
quarter of a second, and a file of more than ``LARGEST`` bytes is thinned to half as many lines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import statistics
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from abele import systems
from abele.storage.atomic import is_full, replacing

FILE = "journal.jsonl"
LARGEST = 4 * 2**20
SINGLE = 256  # so many calls have a line each
SPAN_S = 0.25
FLUSH_S = 0.5
MOMENTS = 500  # a thinned journal keeps so many at its beginning, and as many at its end
#: Freed when the disk is full, so that the journal can still say so, and a page can grow.
RESERVE_BYTES = 65536


@dataclasses.dataclass(frozen=True, kw_only=True)
class Window:
    """Consecutive calls of a model, with times in seconds, summed over the calls.

    Attributes:
        at: begin of the first call, since the run began.
        until: end of the last call, since the run began.
        first: number of the first call, from 0.
        count: number of calls.
        waited: time between calls: loading data, and other work of the user.
        loading: part of ``waited`` until a batch was loaded; 0 if unknown.
        inputs: from a call's beginning to its first micro-step.
        compiling: part of ``inputs`` for a compiling process, or for checking its results.
        computed: from the first micro-step's beginning to the last one's end.
        outputs: from the last micro-step's end to the end of the call.
        quarters: minimum, quartiles and maximum of the seconds of a single call.
        loss: last loss; None without a loss, or if it is not finite.
        not_finite: number of losses that are not finite.
        instead: ``nan``, ``inf`` or ``-inf`` if the last loss is not finite, else empty.
    """

    at: float
    until: float
    count: int
    waited: float
    inputs: float
    computed: float
    outputs: float
    quarters: tuple[float, float, float, float, float]
    first: int = 0
    loading: float = 0.0
    compiling: float = 0.0
    loss: float | None = None
    not_finite: int = 0
    instead: str = ""

    @property
    def handed(self) -> float:
        """Seconds spent on passing inputs to calls, without compiling."""
        return max(0.0, self.inputs - self.compiling)

    @property
    def other(self) -> float:
        """Seconds between calls that were not spent on loading batches."""
        return max(0.0, self.waited - self.loading)

    @property
    def in_calls(self) -> float:
        """Seconds spent in calls of the model."""
        return self.inputs + self.computed + self.outputs

    @property
    def whole(self) -> float:
        """Seconds of calls and of waiting between calls."""
        return self.waited + self.in_calls


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moment:
    """An event of a run, such as a stage of building, a note, an error or the end.

    Attributes:
        at: seconds since the run began.
        kind: ``stage``, ``note``, ``error`` or ``end``.
        what: description.
        type: type of an error.
        where: activity during which an error occurred.
    """

    at: float
    kind: str
    what: str
    type: str = ""
    where: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Journal:
    """A journal of a run, read from its file.

    Attributes:
        windows: calls, in order.
        moments: other events, in order.
    """

    windows: tuple[Window, ...] = ()
    moments: tuple[Moment, ...] = ()

    def of_kind(self, *kinds: str) -> list[Moment]:
        """Return the events of some kinds, such as ``error``."""
        return [each for each in self.moments if each.kind in kinds]

    @property
    def calls(self) -> int:
        """Number of recorded calls of the model."""
        return sum(each.count for each in self.windows)

    @property
    def end(self) -> Moment | None:
        """The event that ends the run; None if none was recorded."""
        return next(iter(self.of_kind("end")[-1:]), None)


def read_journal(path: Path) -> Journal:
    """Read a run's journal; an incomplete last line and invalid lines are skipped.

    Args:
        path: the file or its folder; a missing file gives an empty journal.
    """
    file = path / FILE if path.is_dir() else path
    try:
        data = file.read_bytes()
    except OSError:
        return Journal()
    *lines, _ = data.split(b"\n")
    windows: list[Window] = []
    moments: list[Moment] = []
    for line in lines:
        entry = _read(line)
        if isinstance(entry, Window):
            windows.append(entry)
        elif entry is not None:
            moments.append(entry)
    return Journal(windows=tuple(windows), moments=tuple(moments))


def _read(line: bytes) -> Window | Moment | None:
    try:
        data = json.loads(line)
        if data["e"] != "calls":
            names = {"at": data["at"], "what": data.get("what", "")}
            return Moment(
                kind=data["e"], type=data.get("type", ""), where=data.get("where", ""), **names
            )
        low, first, middle, third, high = data.pop("quarters")
        del data["e"]
        return Window(quarters=(low, first, middle, third, high), **data)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class JournalWriter:
    """Thread-safe writer of a run's journal, which writes nothing in a forked child.

    A thread flushes pending calls regularly, so that they are recorded if the process is killed.

    Args:
        folder: folder of the file, which replaces an older one.
        problem: called once with a message if the file can no longer be written.
        bring: called by the thread; passes pending calls to ``calls``.
    """

    def __init__(
        self,
        folder: Path,
        problem: Callable[[str], None] = lambda text: None,
        bring: Callable[[], None] = lambda: None,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE
        self.path.unlink(missing_ok=True)
        self._flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | systems.OWN
        self._file = os.open(self.path, self._flags, 0o666)
        self._reserve: Path | None = folder / f".{FILE}.reserve"
        self._reserve.write_bytes(bytes(RESERVE_BYTES))
        self._problem, self._bring, self._lock = problem, bring, threading.RLock()
        self._pid, self._written, self._at = os.getpid(), 0, 0.0
        self._given_up = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="abele-journal", daemon=True)
        self._thread.start()

    def add(self, kind: str, at: float, what: str, **more: str) -> None:
        """Append an event to the journal.

        Args:
            kind: the ``kind`` of ``Moment``.
            at: seconds since the run began.
            what: description.
            more: ``type`` and ``where`` of an error.
        """
        if self._pid != os.getpid():
            return
        with self._lock:
            self._write({"e": kind, "at": round(at, 6), "what": what, **more})

    def calls(self, window: Window) -> None:
        """Append a window of consecutive calls to the journal."""
        if self._pid == os.getpid():  # before the lock, which another thread may have had
            with self._lock:
                self._write(_entry(window))

    def close(self) -> None:
        """Close the journal's file; later lines are dropped."""
        if self._pid != os.getpid():
            return
        with self._lock:
            file, self._file = self._file, -1
        self._stop.set()
        if file >= 0:
            os.close(file)
            if self._reserve is not None:
                self._reserve.unlink(missing_ok=True)

    def _tick(self) -> None:
        while not self._stop.wait(FLUSH_S):
            self._bring()

    # -- the file --------------------------------------------------------------------------

    def _write(self, entry: dict[str, Any]) -> None:
        if self._file < 0:
            return
        line = _line(entry) + b"\n"
        if self._given_up:
            if entry["e"] in ("error", "end"):  # there may be room for how it ends
                with contextlib.suppress(OSError):
                    self._put(line)
            return
        self._at = entry.get("until", entry["at"])
        try:
            if self._written + len(line) > LARGEST:
                self._thin()
            self._put(line)
        except OSError as error:
            self._give_up(error)

    def _put(self, line: bytes) -> None:
        view = memoryview(line)
        while view:
            view = view[os.write(self._file, view) :]
        self._written += len(line)

    def _give_up(self, error: OSError) -> None:
        """Stop writing the journal after an error, and notify the user; the run continues."""
        self._given_up = True
        if self._reserve is not None and is_full(error):
            self._reserve.unlink(missing_ok=True)
        text = f"the journal ends here: {error.strerror or error}"
        last = {"e": "error", "at": self._at, "what": text, "type": type(error).__name__}
        with contextlib.suppress(OSError):  # it is said to the user, at least
            self._put(b"\n" + json.dumps(last | {"where": "the journal"}).encode() + b"\n")
        self._problem(f"{self.path}: {text}. The run goes on; its report lacks what follows.")

    def _thin(self) -> None:
        """Halve the number of lines of the journal by joining adjacent windows of calls."""
        lines = self.path.read_bytes().splitlines()
        with replacing(self.path) as file:
            for line in _thinned(lines):
                file.write(line + b"\n")
        os.close(self._file)
        self._file = os.open(self.path, self._flags, 0o666)
        self._written = os.fstat(self._file).st_size


def window_of(
    at: float,
    parts: Sequence[float],
    *losses: float,
    times: Sequence[float] = (),
    until: float | None = None,
    **more: Any,
) -> Window:
    """Return a window of consecutive calls from their summed times.

    Args:
        at: begin of the first call, in seconds since the run began.
        parts: seconds of all calls together: ``waited``, ``inputs``, ``computed``, ``outputs``.
        losses: losses of the calls, if known.
        times: seconds of each call; empty for one call.
        until: end of the last call; None if there was no waiting between the calls.
        more: further fields of ``Window``.
    """
    took = sum(parts[1:])
    last = losses[-1:]
    finite = bool(last) and math.isfinite(last[0])
    names = ("waited", "inputs", "computed", "outputs")
    return Window(
        at=at,
        until=at + took if until is None else until,
        count=len(times) or 1,
        quarters=quarters_of(times or [took]),
        loss=last[0] if finite else None,
        not_finite=sum(not math.isfinite(each) for each in losses),
        instead=str(last[0]) if last and not finite else "",
        **dict(zip(names, parts, strict=True)),
        **more,
    )


def quarters_of(times: Sequence[float]) -> tuple[float, float, float, float, float]:
    """Return minimum, quartiles and maximum of one or more durations."""
    if len(times) == 1:
        (only,) = times
        return only, only, only, only, only
    first, middle, third = statistics.quantiles(times, n=4, method="inclusive")
    return min(times), first, middle, third, max(times)


def joined(windows: Iterable[Window]) -> Window:
    """Join adjacent windows of calls; quartiles are averaged, weighted by the number of calls."""
    parts = list(windows)
    count = sum(each.count for each in parts)
    middle = [
        sum(each.quarters[index] * each.count for each in parts) / count for index in (1, 2, 3)
    ]
    last = [each for each in parts if each.loss is not None or each.not_finite][-1:]
    lowest, highest = (pick(e.quarters[i] for e in parts) for pick, i in ((min, 0), (max, 4)))
    added = ("waited", "inputs", "computed", "outputs", "loading", "compiling", "not_finite")
    return Window(
        at=parts[0].at,
        until=parts[-1].until,
        first=parts[0].first,
        count=count,
        quarters=(lowest, middle[0], middle[1], middle[2], highest),
        loss=last[0].loss if last else None,
        instead=last[0].instead if last else "",
        **{name: sum(getattr(each, name) for each in parts) for name in added},
    )


def _thinned(lines: Sequence[bytes]) -> Iterator[bytes]:
    """Yield a journal's lines with each two windows joined, and only the first and last events."""
    entries = [_read(line) for line in lines]
    other = [i for i, each in enumerate(entries) if isinstance(each, Moment)]
    dropped = set(other[MOMENTS:-MOMENTS])
    waiting: Window | None = None
    for index, (line, entry) in enumerate(zip(lines, entries, strict=True)):
        if isinstance(entry, Window):
            if waiting is None:
                waiting = entry
            else:
                yield _line(_entry(joined([waiting, entry])))
                waiting = None
        elif entry is not None and index not in dropped:
            if waiting is not None:
                yield _line(_entry(waiting))
                waiting = None
            yield line
    if waiting is not None:
        yield _line(_entry(waiting))


def _entry(window: Window) -> dict[str, Any]:
    """Return a window of calls as JSON values, without fields that have their defaults."""
    entry: dict[str, Any] = {"e": "calls"}
    for field in dataclasses.fields(window):
        value = getattr(window, field.name)
        if value != field.default:
            entry[field.name] = _rounded(value) if field.name != "loss" else value
    return entry


def _rounded(value: Any) -> Any:
    if isinstance(value, tuple):
        return [round(each, 7) for each in cast("tuple[float, ...]", value)]
    return round(value, 7) if isinstance(value, float) else value


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry).encode()
