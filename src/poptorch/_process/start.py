"""Effects of importing the package on the process, which programs of the original rely on.

Frames of this package are no lines of the user's. A crash prints its Python stack, forked children
may use verbs devices, Horovod can be imported, and an uncaught exception reaches the log.
"""

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
from pathlib import Path

from abele import libraries
from poptorch._logging import logger
from poptorch._process import horovod
from poptorch._process.uncaught import log_uncaught


def prepare() -> None:
    """Apply all of it; harmless when repeated."""
    libraries.register("poptorch", Path(__file__).parents[1])
    os.environ.setdefault("RDMAV_FORK_SAFE", "1")
    _report_crashes()
    horovod.provide()
    # Somebody else's hook (a debugger, a notebook) is worth more than ours.
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = log_uncaught
    atexit.register(poptorchAtExit)


def _report_crashes() -> None:
    # A stderr without a file behind it (captured, closed) cannot be written to in a crash; signals
    # can be handled by the main thread's interpreter only.
    with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):
        if not faulthandler.is_enabled():
            faulthandler.enable()
        faulthandler.register(signal.SIGTERM, chain=True)


def poptorchAtExit() -> None:
    """End what is left of the package's work in this process; run by itself at exit."""
    logger.debug("poptorch ends")
