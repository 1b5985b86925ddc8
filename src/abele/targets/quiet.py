"""Keeping what torch's compiler says of itself away from users."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import warnings
from collections.abc import Generator


@contextlib.contextmanager
def quiet_compiler() -> Generator[None]:
    """While open, torch's loggers and warnings are silent in this thread.

    Whoever sets ``TORCH_LOGS`` wants its logs and gets them.
    """
    with warnings.catch_warnings():
        # Deprecations inside torch's own compiler are no news to our users.
        warnings.simplefilter("ignore")
        if os.environ.get("TORCH_LOGS"):
            yield
            return
        here = threading.get_ident()

        def is_of_others(record: logging.LogRecord) -> bool:
            return record.thread != here or record.name.partition(".")[0] != "torch"

        handlers = _handlers()
        for handler in handlers:
            handler.addFilter(is_of_others)
        try:
            yield
        finally:
            for handler in handlers:
                handler.removeFilter(is_of_others)


def _handlers() -> set[logging.Handler]:
    """All that records of torch can reach; it attaches its own to many of its loggers."""
    loggers = [logging.getLogger()]
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger):
            loggers.append(logger)
    last = [logging.lastResort] if logging.lastResort is not None else []
    return {*last, *(handler for logger in loggers for handler in logger.handlers)}
