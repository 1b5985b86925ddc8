"""Compares the losses and tensors of a port and its original program, step by step.

The original and the port run unchanged in processes of their own, from the same seeds. After each
update both record their losses, inputs and digests of their parameters; the records are compared.
"""

from abele.port.check.comparison import Comparison, Difference, StepPair
from abele.port.check.side_by_side import check, checked

__all__ = ["Comparison", "Difference", "StepPair", "check", "checked"]
