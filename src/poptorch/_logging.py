"""The logger "poptorch::python" and its log levels."""

import logging
import os
import sys

LOGGER_NAME = "poptorch::python"
_ENVIRONMENT = "POPTORCH_LOG_LEVEL"
_DESTINATION = "POPTORCH_LOG_DEST"
_TRACE = 5
#: Ends a traceback that has been shortened.
HIDDEN_FRAMES = "(Frames of torch and poptorch are left out; POPTORCH_LOG_LEVEL=DEBUG shows them.)"

# Public names and the integers that setLogLevel accepts, with the level of Python's logging.
_NAMES = {
    "TRACE_ALL": _TRACE,
    "TRACE": _TRACE,
    "DEBUG": logging.DEBUG,
    "DEBUG_IR": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "OFF": logging.CRITICAL + 10,
}
_INTEGERS = {0: "TRACE", 1: "DEBUG", 2: "INFO", 3: "WARN", 4: "ERR", 6: "OFF"}
_COLOURS = {
    logging.DEBUG: "\033[36m",
    logging.WARNING: "\033[1;33m",
    logging.ERROR: "\033[1;31m",
    logging.CRITICAL: "\033[1;31m",
}

logger = logging.getLogger(LOGGER_NAME)


class _Formatter(logging.Formatter):
    """Formats log records as ``[12:34:56.789] [poptorch::python] [warning] text``, in colour."""

    def __init__(self):
        super().__init__("[%(asctime)s.%(msecs)03d] [%(name)s] [%(level)s] %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        record.level = record.levelname.lower()
        text = super().format(record)
        colour = _COLOURS.get(record.levelno)
        if colour and sys.stdout.isatty() and sys.stderr.isatty():
            return f"{colour}{text}\033[0m"
        return text


class _StandardHandler(logging.StreamHandler):
    """A log handler that writes to the current ``sys.stderr`` or ``sys.stdout``."""

    def __init__(self, name: str):
        super().__init__()
        self._name_in_sys = name

    @property
    def stream(self):
        return getattr(sys, self._name_in_sys)

    @stream.setter
    def stream(self, value: object) -> None:
        del value


def setLogLevel(level: str | int) -> None:
    """Set the level from which log messages of this package are shown.

    Args:
        level: TRACE, TRACE_ALL, DEBUG, DEBUG_IR, INFO, WARN, ERR or OFF; or 0 (trace), 1, 2,
            3 (warn), 4 (err), 6 (off).

    Raises:
        ValueError: the level does not exist.
    """
    if isinstance(level, int):
        if level not in _INTEGERS:
            raise ValueError(f"Invalid log level integer {level}. Valid are {sorted(_INTEGERS)}.")
        level = _INTEGERS[level]
    if level not in _NAMES:
        names = ", ".join(sorted(_NAMES))
        raise ValueError(f"Unknown log level: {level}. Valid values are {names}")
    logger.setLevel(_NAMES[level])


def _handler() -> logging.Handler:
    """Return a log handler for POPTORCH_LOG_DEST: stdout, stderr, or a file to append to."""
    destination = os.environ.get(_DESTINATION) or "stderr"
    if destination in ("stdout", "stderr"):
        return _StandardHandler(destination)
    return logging.FileHandler(destination, encoding="utf-8", errors="backslashreplace", delay=True)


def start() -> None:
    """Attach the log handler once and apply POPTORCH_LOG_LEVEL and POPTORCH_LOG_DEST."""
    logging.addLevelName(_TRACE, "trace")
    if not logger.handlers:
        handler = _handler()
        handler.setFormatter(_Formatter())
        logger.addHandler(handler)
    setLogLevel(os.environ.get(_ENVIRONMENT, "WARN"))
