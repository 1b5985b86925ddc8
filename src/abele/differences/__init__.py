"""Where two ways to run a program part: the first operation, the user's line, and what is to blame.

One training step of a program is captured with its inputs. It is computed in both ways and, as a
yardstick, in float64; all from the same inputs and random numbers. Two runs that were recorded are
compared by what their records say; nothing is run for that.
"""

from abele.differences.answer import Answer, Blamed, Result, Worst
from abele.differences.finding import why_different
from abele.differences.runs import RunsAnswer, why_runs_differ
from abele.differences.settings import Setting, setting
from abele.differences.subject import Subject, of_script

__all__ = [
    "Answer",
    "Blamed",
    "Result",
    "RunsAnswer",
    "Setting",
    "Subject",
    "Worst",
    "of_script",
    "setting",
    "why_different",
    "why_runs_differ",
]
