"""Output of poprun and its instances: log lines, tagged instance lines, exit messages."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import os
import re
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import BinaryIO, TextIO

from popdist._run import shim

logger = logging.getLogger("popdist.poprun")
_LETTERS = {logging.DEBUG: "D", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E"}
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class _Format(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        now = datetime.fromtimestamp(record.created)
        clock = f"{now:%H:%M:%S}.{now.microsecond // 1000:03}"
        letter = _LETTERS.get(record.levelno, "E")
        head = f"{clock} {os.getpid()} POPRUN [{letter}] "
        return "\n".join(head + line for line in record.getMessage().splitlines())


def set_up_log(verbosity: int) -> None:
    """Send log lines to stderr: 0 for warnings and errors, 1 also information, 2 everything."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Format())
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(_LEVELS[min(verbosity, 2)])


SILENT = "silent"  # what killed the instance killed its shim, too


@dataclasses.dataclass(frozen=True)
class Ending:
    """The exit of an instance: how, when and with which status it ended."""

    rank: int
    kind: str
    value: int
    seconds: float

    @property
    def failed(self) -> bool:
        """True if the instance failed by itself, rather than succeeded or was stopped by poprun."""
        return self.kind != shim.STOPPED and (self.kind, self.value) != (shim.EXITED, 0)

    @property
    def status(self) -> int:
        """The exit status of an instance in shell convention."""
        return 128 + self.value if self.kind == shim.KILLED else self.value


def describe_ending(ending: Ending) -> str:
    """Describe how an instance ended, as the end of a sentence."""
    if ending.kind == shim.KILLED:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(ending.value).name} (signal {ending.value})"
        return f"was killed by signal {ending.value}"
    if ending.kind == shim.MISSING:
        return "could not be started"
    if ending.kind == shim.SSH:
        return f"lost its connection (ssh ended with status {ending.value})"
    if ending.kind == SILENT:
        return "was killed together with its shim"
    return f"ended with exit status {ending.value}"


def first_failure(endings: Sequence[Ending], count: int, one_host: bool) -> Ending | None:
    """Return the earliest failure of an instance; None without failures.

    One clock tells all times on one host; otherwise the order of arrival has to do.
    """
    failed = [ending for ending in endings if ending.failed]
    if failed:
        return min(failed, key=lambda ending: ending.seconds) if one_host else failed[0]
    silent = set(range(count)) - {ending.rank for ending in endings}
    return Ending(min(silent), SILENT, 1, 0.0) if silent else None


STREAMS = ("stdout", "stderr")
_BAR_SECONDS = 30.0  # between states of a progress bar


class Screen:
    """Prints complete lines of instances; progress bars become occasional lines.

    Args:
        tagged: Whether lines begin with their instance.
        only: The only instance to show; None for all.
        broken: Called once when nobody reads any more.
        streams: Where stdout and stderr go; default: those of the process.
    """

    def __init__(
        self,
        tagged: bool = True,
        only: int | None = None,
        broken: Callable[[], None] = lambda: None,
        streams: tuple[BinaryIO, BinaryIO] | None = None,
    ) -> None:
        self._tagged, self._only, self._on_broken = tagged, only, broken
        self._streams = streams or (_buffer(sys.stdout), _buffer(sys.stderr))
        self._bar_written = time.monotonic()
        self.broken = False

    def line(self, rank: int, stream: int, text: bytes) -> None:
        """Print a line of an instance."""
        if self._only is None or rank == self._only:
            tag = f"[1,{rank}]<{STREAMS[stream]}>:".encode() if self._tagged else b""
            self._write(stream, tag + text + b"\n")

    def bar(self, rank: int, stream: int, text: bytes) -> None:
        """Print the state of a progress bar, of instance 0 or the only displayed instance."""
        late = time.monotonic() - self._bar_written > _BAR_SECONDS
        if late and self.shows_bars(rank) and text.strip():
            self._bar_written = time.monotonic()
            self.line(rank, stream, text)

    def shows_bars(self, rank: int) -> bool:
        """Return whether progress bars of an instance are printed."""
        return rank == (self._only or 0)

    def _write(self, stream: int, data: bytes) -> None:
        if self.broken:
            return
        try:
            self._streams[stream].write(data)
            self._streams[stream].flush()
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                logger.error("%s cannot be written: %s", STREAMS[stream], error.strerror)
            self.broken = True
            _discard(self._streams[stream])
            self._on_broken()


def _buffer(stream: TextIO | None) -> BinaryIO:
    """Return the binary stream of a text stream; that of ``/dev/null`` if it is closed."""
    return open(os.devnull, "wb") if stream is None else stream.buffer


def _discard(stream: BinaryIO) -> None:
    """Redirect a stream to ``/dev/null``.

    Python 3.13 and newer write its buffer again at the end of the process, and a failure is the
    exit status 120.
    """
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


_CHUNK = 1 << 16
_LONGEST = 1 << 20  # bytes of a line that is held until it ends
_TAIL = 20


class _Lines:
    """Splits an output stream of an instance into lines."""

    def __init__(self, relay: Relay, rank: int, stream: int) -> None:
        self._relay, self._rank, self._stream = relay, rank, stream
        self._partial = b""
        mark = re.escape(relay.mark.encode())
        self._ending = re.compile(mark + rb"(\w+) (\d+) ([\d.]+)" + mark)

    def feed(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._complete(line)
        if b"\r" in self._partial:
            self._progress()
        elif len(self._partial) > _LONGEST:
            self.end()

    def end(self) -> None:
        """Print the unterminated last line."""
        partial, self._partial = self._partial, b""
        if partial:
            self._complete(partial)

    def _complete(self, line: bytes) -> None:
        match = self._ending.search(line)
        if match:
            kind, value, seconds = match[1].decode(), int(match[2]), float(match[3])
            self._relay.endings.append(Ending(self._rank, kind, value, seconds))
            line = line[: match.start()]
            if not line:
                return
        self._show(line.rstrip(b"\r"))

    def _show(self, line: bytes) -> None:
        screen = self._relay.screen
        if b"\r" in line:
            *before, line = line.split(b"\r")
            # A bar blanks itself out before a program prints a message in its place.
            message = bool(before[-1]) and not before[-1].strip()
            if not message and not screen.shows_bars(self._rank):
                return
        self._relay.tails[self._rank].append((self._stream, line))
        screen.line(self._rank, self._stream, line)

    def _progress(self) -> None:
        *before, last = self._partial.split(b"\r")
        state = last or before[-1]
        self._relay.screen.bar(self._rank, self._stream, state)
        # Only the latest state matters, and whether the bar was blanked out.
        previous = before[-1] if before[-1] and not before[-1].strip() else b""
        self._partial = previous + b"\r" + last


class Relay:
    """Thread that reads the output pipes of all instances until `finish`."""

    def __init__(self, count: int, screen: Screen, mark: str) -> None:
        self.screen, self.mark = screen, mark
        self.endings: list[Ending] = []
        self.tails = [collections.deque[tuple[int, bytes]](maxlen=_TAIL) for _ in range(count)]
        self._lines: dict[int, _Lines] = {}
        self._writers: list[list[int]] = []
        self._selector = selectors.DefaultSelector()
        for rank in range(count):
            self._writers.append([self._pipe(rank, stream) for stream in range(2)])
        self._wake, self._woken = os.pipe()
        self._selector.register(self._wake, selectors.EVENT_READ)
        ends = [end for pair in self._writers for end in pair]
        self._open = [self._woken, self._wake, *self._lines, *ends]
        self._thread = threading.Thread(target=self._run, name="poprun output", daemon=True)
        self._thread.start()

    def path(self, rank: int, stream: int) -> str:
        """Return a path that opens the write end of an instance's pipe."""
        return f"/dev/fd/{self._writers[rank][stream]}"

    def finish(self) -> None:
        """Print what remains in the pipes after all instances have ended; idempotent."""
        if self._open:
            os.write(self._woken, b"x")
        self._thread.join()
        self._selector.close()
        while self._open:
            os.close(self._open.pop())

    def _pipe(self, rank: int, stream: int) -> int:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self._lines[reader] = _Lines(self, rank, stream)
        self._selector.register(reader, selectors.EVENT_READ)
        return writer

    def _run(self) -> None:
        finishing = False
        while not finishing:
            ready = [key.fd for key, _ in self._selector.select()]
            finishing = self._wake in ready
            for reader in self._lines if finishing else ready:
                self._read(reader, everything=finishing)
        for lines in self._lines.values():
            lines.end()

    def _read(self, reader: int, everything: bool) -> None:
        try:
            while data := os.read(reader, _CHUNK):
                self._lines[reader].feed(data)
                if not everything:
                    return
        except BlockingIOError:
            return
