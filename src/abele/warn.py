"""Warnings that point at the user's line, however deep inside the engine they arise."""

from __future__ import annotations

import sys
import warnings

from abele.printing import is_library


def warn_user(message: str, category: type[Warning]) -> None:
    """Warns from the innermost frame that belongs neither to torch nor to this project."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
