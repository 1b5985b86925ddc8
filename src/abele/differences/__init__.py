"""Compares two settings of a program, to find the first operation that diverges.

One training step is captured, and computed in both settings and in float64 from the same inputs
and random numbers. ``abele.report.comparison`` compares recorded runs.
"""

from abele.differences.finding import why_different
from abele.differences.subject import Setting, Subject, of_script, setting
from abele.report.comparison import why_runs_differ

__all__ = ["Setting", "Subject", "of_script", "setting", "why_different", "why_runs_differ"]
