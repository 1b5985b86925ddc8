"""Text for a terminal, a file or a pipe: numbers, encoding and width."""

import os
import re
import shutil
import sys
import unicodedata
from typing import TextIO

UNKNOWN = "N/A"


def number(value: float | None, digits: int = 0) -> str:
    """Format a number with some digits after the point."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def unit(value: float | None, suffix: str, digits: int = 0) -> str:
    """Format a number directly followed by its unit: ``1850MHz``."""
    return UNKNOWN if value is None else f"{value:.{digits}f}{suffix}"


def gibibytes(value: int | None) -> str:
    """Bytes as GiB."""
    return UNKNOWN if value is None else f"{value / 2**30:.1f}"


def elapsed(seconds: float | None) -> str:
    """Two units: ``9s``, ``4m1s``, ``3h20m``, ``2d5h``."""
    if seconds is None:
        return UNKNOWN
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes}m"
    return f"{minutes}m{whole % 60}s" if minutes else f"{whole}s"


def count(value: int, one: str) -> str:
    """``1 socket``, ``2 sockets``."""
    return f"{value} {one}" if value == 1 else f"{value} {one}s"


class OutputError(Exception):
    """Standard output is closed, or cannot be written."""


def width_of(stream: TextIO | None) -> int | None:
    """Columns of a terminal; None for a file or pipe, which takes any width."""
    if stream is None:  # closed, which ``write`` says
        return None
    if os.environ.get("COLUMNS", "").strip("0").isdigit() or stream.isatty():
        return shutil.get_terminal_size().columns
    return None


def clean(text: str) -> str:
    """Without what would move the cursor or change colours: others choose their command lines."""
    text = "".join(c if unicodedata.category(c)[0] != "C" else " " for c in text)
    return re.sub(r" +", " ", text).strip()


def can_print(stream: TextIO, text: str) -> str:
    """Replace characters that a stream's encoding lacks by question marks."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def write(text: str, stream: TextIO | None = None) -> None:
    """Print to a stream (standard output by default) whatever its encoding.

    Raises:
        BrokenPipeError: its reader has gone.
        OutputError: it is closed, or its disk is full.
    """
    chosen = sys.stdout if stream is None else stream
    if chosen is None:
        raise OutputError("standard output is closed")
    try:
        print(can_print(chosen, text), file=chosen, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output cannot be written: {error.strerror}") from error
