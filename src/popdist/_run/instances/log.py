"""Log lines of poprun itself, on stderr: ``HH:MM:SS.mmm PID POPRUN [I] message``."""

import logging
import os
import sys
from datetime import datetime
from typing import TextIO

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


def set_up(verbosity: int, stream: TextIO | None = None) -> None:
    """Send log lines to a stream.

    Args:
        verbosity: 0 for warnings and errors, 1 also for information, 2 for everything.
        stream: Default: stderr.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Format())
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(_LEVELS[min(verbosity, 2)])
