"""Estimate of whether a program fits into a memory, before it runs.

``estimate`` adds up what lives all the time and what a program needs at each step, as its lowering
plans it; ``decide`` compares that with a limit.
"""

from abele.fit.estimate import Estimate, Interval, Moment, Part, Tensor
from abele.fit.limits import Limit, bytes_text, parse_bytes
from abele.fit.run import Calls, estimate
from abele.fit.verdict import Answer, Verdict, decide

__all__ = [
    "Answer",
    "Calls",
    "Estimate",
    "Interval",
    "Limit",
    "Moment",
    "Part",
    "Tensor",
    "Verdict",
    "bytes_text",
    "decide",
    "estimate",
    "parse_bytes",
]
