"""Capture of a module, an update rule and one example micro-batch as programs."""

from abele.capture.core import Captured, capture
from abele.capture.recipe import Call

__all__ = [
    "Call",
    "Captured",
    "capture",
]
