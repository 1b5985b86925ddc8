"""Estimates whether a program fits into a memory, before it runs.

``estimate`` adds up permanent state and the memory that a program's lowering plans for each step;
``decide`` compares the sum with a limit.
"""

from abele.fit.estimate import Answer, Estimate, Interval, Verdict, decide
from abele.fit.limits import Limit
from abele.fit.run import Calls, estimate

__all__ = ["Answer", "Calls", "Estimate", "Interval", "Limit", "Verdict", "decide", "estimate"]
