"""How much of the time of steps is left to a compiler beside them, and how long it then takes.

Between threads that wait for each other all the time another process gets next to nothing, or else
holds all of them up at each of their meetings. So steps pause for it. Nobody knows how many steps
follow: a short run loses least where pauses are short, and a long one gains most from what is
compiled. With steps of compiled programs three times as fast, a run of twice the time that
compiling takes is over sooner if nothing is interpreted; so pauses become long before that.
"""

from __future__ import annotations

import os

#: Of the time in which steps compute, so much is left to the compiler at first.
FIRST, FIRST_OF_ONE_CORE = 0.1, 0.3
#: From so many times on as compiling takes, it is half. That is sooner where it compiles what all
#: later runs need, too.
LONG, LONG_ONCE, HALF = 4.0, 1.0, 0.5
#: What takes no longer, in seconds, gets nearly all, and sooner: a run that stands still for that
#: long once is better than one that is slower for several times as long. That ends after
#: QUICK_UNTIL times as long as was expected: it may take longer.
QUICK_S, QUICK_FROM, QUICK_UNTIL, NEARLY_ALL = 10.0, 0.25, 4.0, 0.95


def share(passed_s: float, cpu_s: float | None, *, once: bool = False) -> float:
    """Of the time in which steps compute, what is left to a compiler.

    Args:
        passed_s: since it was started, in seconds.
        cpu_s: processor time that it was expected to take; None if nobody could tell.
        once: most of it is for what is compiled once per machine.
    """
    first = _first()
    if cpu_s is None or passed_s <= long_s(cpu_s, once=once):
        return first
    quick = _is_quick(cpu_s, once=once) and passed_s <= QUICK_UNTIL * cpu_s
    return max(first, NEARLY_ALL if quick else HALF)


def long_s(cpu_s: float, *, once: bool = False) -> float:
    """From when on pauses are long, in seconds after the compiler's start; see ``share``."""
    if _is_quick(cpu_s, once=once):
        return cpu_s * QUICK_FROM
    return cpu_s * (LONG_ONCE if once else LONG)


def wall_s(cpu_s: float, *, once: bool = False) -> float:
    """How long a compiler takes beside steps, in seconds; see ``share``."""
    first, long = _first(), long_s(cpu_s, once=once)
    if first * long >= cpu_s:
        return cpu_s / first
    later = NEARLY_ALL if _is_quick(cpu_s, once=once) else HALF
    return long + (cpu_s - first * long) / later


def _is_quick(cpu_s: float, *, once: bool) -> bool:
    return cpu_s <= QUICK_S and not once


def _first() -> float:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return FIRST if cores is None or cores > 1 else FIRST_OF_ONE_CORE
