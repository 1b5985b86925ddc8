"""Compare what a port computes with what its original computes, step by step.

The original and the port run unchanged in processes of their own, from the same seeds. After each
update both send their losses and digests of their parameters, and wait for the answer.
"""

from abele.port.check.comparison import Comparison, Difference, StepPair
from abele.port.check.side_by_side import check, checked

__all__ = ["Comparison", "Difference", "StepPair", "check", "checked"]
