"""Journal of a run: a file to which lines are appended while the run goes on.

``journal.jsonl`` has one JSON object per line. Its first key, ``e``, says what it is:

    stage   a part of building begins: ``what``, ``at``
    calls   calls that followed each other: see ``Window``
    note    something to be said: ``text``, ``at``
    error   a call, or something else, came to an error: ``where``, ``type``, ``text``, ``at``
    end     the run is over: ``how``, ``at``

``at`` is in seconds since the run began. A reader may come at any time. The last line may be torn,
if its writer was killed; it is left out then. The first calls have a line each, later ones a line
every quarter of a second, and a file of more than ``LARGEST`` bytes is thinned to half as many
lines.
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
    """Calls that followed each other. Times are seconds, of all calls together unless said.

    Attributes:
        at: when the first began, since the run began.
        until: when the last one ended.
        first: number of the first call, from 0.
        count: number of calls.
        waited: before calls, since the call before: loading data, and whatever else the user does.
        loading: seconds of that until a batch was there; 0 where nobody could tell.
        inputs: from a call's beginning to its first micro-step.
        compiling: seconds of that which were left to a process that compiles, or compared what that
            has made.
        computed: from the first micro-step's beginning to the last one's end.
        outputs: from there to the end of the call.
        quarters: of single calls: shortest, quartiles and longest.
        loss: of the last call that had one; None without, or if it is no finite number.
        not_finite: number of losses that are not finite.
        instead: what the last loss was if it is no finite number: ``nan``, ``inf`` or ``-inf``;
            empty if it is finite.
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
        """Seconds in which inputs were handed over."""
        return max(0.0, self.inputs - self.compiling)

    @property
    def other(self) -> float:
        """Seconds before calls in which no batch was waited for."""
        return max(0.0, self.waited - self.loading)

    @property
    def in_calls(self) -> float:
        """Seconds spent in calls of the model."""
        return self.inputs + self.computed + self.outputs

    @property
    def whole(self) -> float:
        """Seconds from call to call, waiting included."""
        return self.waited + self.in_calls


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moment:
    """An event of a run.

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
    """A journal that was read.

    Attributes:
        windows: calls, in their order.
        moments: everything else, in its order.
    """

    windows: tuple[Window, ...] = ()
    moments: tuple[Moment, ...] = ()

    def of_kind(self, *kinds: str) -> list[Moment]:
        """Return the moments of some kinds."""
        return [each for each in self.moments if each.kind in kinds]

    @property
    def calls(self) -> int:
        """Number of calls of the model."""
        return sum(each.count for each in self.windows)

    @property
    def end(self) -> Moment | None:
        """Description of the end; None if the run has not recorded one."""
        return next(iter(self.of_kind("end")[-1:]), None)


def read_journal(path: Path) -> Journal:
    """Read a journal; a torn last line, and lines that mean nothing, are left out.

    Args:
        path: the file, or the folder that has it; a journal that is not there is empty.
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
    """Writer of a journal, for several threads. A forked child writes nothing.

    A thread asks for calls that wait for their line, so that a process that is killed later has
    written them.

    Args:
        folder: where the file is made, in the place of an older one.
        problem: told in words, once, when the file cannot be written any more.
        bring: called by the thread; passes calls that wait to ``calls``.
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
        self._flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
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
        """Write the line of a moment.

        Args:
            kind: as of ``Moment``.
            at: seconds since the run began.
            what: in words.
            more: ``type`` and ``where`` of an error.
        """
        if self._pid != os.getpid():
            return
        with self._lock:
            self._write({"e": kind, "at": round(at, 6), "what": what, **more})

    def calls(self, window: Window) -> None:
        """Write the line of calls that followed each other."""
        if self._pid == os.getpid():  # before the lock, which another thread may have had
            with self._lock:
                self._write(_entry(window))

    def close(self) -> None:
        """End the file; later lines are dropped."""
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
        """End the journal early and notify reader and user; the run continues."""
        self._given_up = True
        if self._reserve is not None and is_full(error):
            self._reserve.unlink(missing_ok=True)
        text = f"the journal ends here: {error.strerror or error}"
        last = {"e": "error", "at": self._at, "what": text, "type": type(error).__name__}
        with contextlib.suppress(OSError):  # it is said to the user, at least
            self._put(b"\n" + json.dumps(last | {"where": "the journal"}).encode() + b"\n")
        self._problem(f"{self.path}: {text}. The run goes on; its report lacks what follows.")

    def _thin(self) -> None:
        """Join calls of adjacent lines, which halves the number of lines."""
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
    """Return the window of calls that followed each other.

    Args:
        at: when the first began, in seconds since the run began.
        parts: seconds of all calls together: waited before them, for inputs, computing, and for
            outputs.
        losses: of the calls that have one.
        times: seconds of each call; empty for one call.
        until: when the last call ended; None if nothing was waited for between the calls.
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
    """Return the shortest, the quartiles and the longest of one or more times."""
    if len(times) == 1:
        (only,) = times
        return only, only, only, only, only
    first, middle, third = statistics.quantiles(times, n=4, method="inclusive")
    return min(times), first, middle, third, max(times)


def joined(windows: Iterable[Window]) -> Window:
    """Join adjacent windows; quartiles are averaged, weighted by the number of calls."""
    parts = list(windows)
    count = sum(each.count for each in parts)
    middle = [
        sum(each.quarters[index] * each.count for each in parts) / count for index in (1, 2, 3)
    ]
    last = [each for each in parts if each.loss is not None or each.not_finite][-1:]
    lowest, highest = (pick(e.quarters[i] for e in parts) for pick, i in ((min, 0), (max, 4)))
    return Window(
        at=parts[0].at,
        until=parts[-1].until,
        first=parts[0].first,
        count=count,
        waited=sum(each.waited for each in parts),
        inputs=sum(each.inputs for each in parts),
        computed=sum(each.computed for each in parts),
        outputs=sum(each.outputs for each in parts),
        quarters=(lowest, middle[0], middle[1], middle[2], highest),
        loading=sum(each.loading for each in parts),
        compiling=sum(each.compiling for each in parts),
        loss=last[0].loss if last else None,
        not_finite=sum(each.not_finite for each in parts),
        instead=last[0].instead if last else "",
    )


def _thinned(lines: Sequence[bytes]) -> Iterator[bytes]:
    """Yield half as many lines of calls, and the first and last of other lines."""
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
    """Return the line of calls as JSON values, without fields that have their defaults."""
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
