"""Capture: a module, an update rule and one example micro-batch become programs."""

from abele.capture.core import (
    Call,
    Captured,
    capture,
)

__all__ = [
    "Call",
    "Captured",
    "capture",
]
