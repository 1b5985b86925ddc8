"""Waiting for what other processes do."""

import os
import time
from collections.abc import Callable


def alive(process: int) -> bool:
    """Whether a process of that number exists."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Waits until a condition holds; says whether it does."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()
