"""Whether a port computes what its original computes: both are run, step by step.

The original and the port run as processes of their own, unchanged, from the same seeds. After each
update both tell their losses and digests of their parameters, and wait until these were compared;
so tensors can be looked at where they first differ. Nothing here knows a front-end: what a port
does is seen in its session.
"""

from abele.port.check.comparison import Comparison, Difference, StepPair
from abele.port.check.run import check

__all__ = ["Comparison", "Difference", "StepPair", "check"]
