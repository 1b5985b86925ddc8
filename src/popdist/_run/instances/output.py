"""The output of instances: whole lines with their origin; the last ones are kept for errors."""

from __future__ import annotations

import collections
import os
import re
import selectors
import threading

from popdist._run.instances.endings import Ending
from popdist._run.instances.screen import Screen

_CHUNK = 1 << 16
_LONGEST = 1 << 20  # bytes of a line that is held until it ends
_TAIL = 20


class _Lines:
    """Cuts one stream of one instance into lines."""

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
        """Show what has no end of line."""
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
            if screen.shows_bars(self._rank):
                screen.end_bar()
            elif not message:
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
    """Reads the pipes of all instances, in a thread of its own, until `finish`.

    Args:
        count: Number of instances.
        screen: Where their lines go.
        mark: What the shims' last lines begin and end with.
    """

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
        """Return a path that opens the writing end of an instance's pipe."""
        return f"/dev/fd/{self._writers[rank][stream]}"

    def finish(self) -> None:
        """Show what is left in the pipes, when all instances have ended; again is harmless."""
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
        self.screen.end_bar()

    def _read(self, reader: int, everything: bool) -> None:
        try:
            while data := os.read(reader, _CHUNK):
                self._lines[reader].feed(data)
                if not everything:
                    return
        except BlockingIOError:
            return
