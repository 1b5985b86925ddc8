"""The first Ctrl-C or SIGTERM lets a run end in order, the second one ends it at once."""

import os
import signal
from types import FrameType
from typing import Any

from cosmictagger.records import logger

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Context manager that keeps the first signal for the loop to see.

    Attributes:
        signal: the number of the signal that came, or None.
    """

    def __init__(self):
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._came)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.signal = number
        name = signal.Signals(number).name
        logger.warning(f"{name}: ending after this step, with a checkpoint. Again: at once.")
