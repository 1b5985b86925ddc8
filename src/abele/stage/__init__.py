"""Divides a model into pipeline stages of equal time, and estimates their memory.

``read`` converts a captured program to a chain of units, ``partition`` divides it, and a ``Plan``
estimates time and memory.
"""

from abele.stage.memory import Device, Span
from abele.stage.partition import partition
from abele.stage.plan import Plan
from abele.stage.reading import divided, read

__all__ = ["Device", "Plan", "Span", "divided", "partition", "read"]
