"""Finds the user's variables in the frames of a running call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from abele.program.core import is_library


def variable(fits: Callable[[Any], bool]) -> tuple[str, Any] | None:
    """The name and value of the user's nearest variable that fits; None if there is none.

    Args:
        fits: says so of a value.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            kept = getattr(frame.f_locals.get("self"), "__dict__", {})
            attributes = {f"self.{name}": each for name, each in kept.items()}
            for name, value in {**frame.f_globals, **frame.f_locals, **attributes}.items():
                if fits(value):
                    return name, value
        frame = frame.f_back
    return None
