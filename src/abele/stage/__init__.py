"""Stages of a pipeline: what each needs, and how a model is divided so that they take equally long.

``read`` makes a chain of units of a captured program, ``partition`` divides it, and a ``Plan`` says
what that means for time and memory.
"""

from abele.stage.memory import Device, Span
from abele.stage.partition import partition
from abele.stage.plan import Plan
from abele.stage.reading import divided, read

__all__ = ["Device", "Plan", "Span", "divided", "partition", "read"]
