"""The streams of poprun itself, shared by all instances."""

import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import BinaryIO, TextIO

from popdist._run.instances.log import logger

STREAMS = ("stdout", "stderr")
_BAR_SECONDS = 30.0  # between states of a progress bar in a file


class Screen:
    """Shows lines and progress bars, and never one in the middle of another.

    On a terminal a progress bar stays the last line; in a file its states become lines, now and
    then.

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
        self._terminals = [stream.isatty() for stream in self._streams]
        self._bar: tuple[int, bytes] | None = None
        self._bar_written = time.monotonic()
        self.broken = False

    def line(self, rank: int, stream: int, text: bytes) -> None:
        """Show a line of an instance."""
        if self._shown(rank):
            self._clear()
            self._write(stream, self._tag(rank, stream) + text + b"\n")
            self._draw()

    def bar(self, rank: int, stream: int, text: bytes) -> None:
        """Show the state of a progress bar; of instance 0, or of the only one that is shown."""
        if not self.shows_bars(rank) or not text.strip():
            return
        if self._terminals[stream]:
            self._clear()
            self._bar = (stream, self._tag(rank, stream) + text)
            self._draw()
        elif time.monotonic() - self._bar_written > _BAR_SECONDS:
            self._bar_written = time.monotonic()
            self.line(rank, stream, text)

    def end_bar(self) -> None:
        """Forget the bar: what follows is its final state, or nothing."""
        self._clear()
        self._bar = None

    def shows_bars(self, rank: int) -> bool:
        """Tell whether progress bars of an instance are shown."""
        return rank == (self._only or 0)

    def _shown(self, rank: int) -> bool:
        return self._only is None or rank == self._only

    def _tag(self, rank: int, stream: int) -> bytes:
        return f"[1,{rank}]<{STREAMS[stream]}>:".encode() if self._tagged else b""

    def _clear(self) -> None:
        if self._bar:
            self._write(self._bar[0], b"\r\x1b[K")

    def _draw(self) -> None:
        if self._bar:
            width = shutil.get_terminal_size().columns - 1
            stream, text = self._bar
            self._write(stream, text.decode(errors="replace")[:width].encode())

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
            self._on_broken()


def _buffer(stream: TextIO | None) -> BinaryIO:
    """Return the bytes of a stream; of one that is closed, those of nothing."""
    return open(os.devnull, "wb") if stream is None else stream.buffer
