"""Estimates of compile time from earlier compiles, and the compiler's share of processor time.

Threads that synchronise often leave another process next to nothing, or are delayed by it at each
barrier. So steps pause for the compiler. A short run loses least with short pauses, and a long one
gains most from compiled programs; if these are three times as fast, a run of twice the compile time
ends sooner if nothing is interpreted, so pauses become long before that.

Times are processor time of the compiling process and its compilers, as their wall time depends on
other processes. Each compile is recorded in one small file per kind of machine in the user's cache.
Without a file, fitted rates per graph node are used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from abele import processor
from abele.kernels.build import cache_folder
from abele.program import Program, all_nodes
from abele.storage import atomic

_KEPT = 24  # recorded compiles of each lowering, the latest
# Seconds, and seconds per node: a median over the rows of the benchmarks' table.
_RATES = {"emitted": (0.7, 0.0003)}
_LATEST = 3  # compiles of equal node count, of which the median is used


def nodes(program: Program) -> int:
    """Return the number of graph nodes of a program, loop bodies included; at least 1."""
    return max(1, sum(1 for _ in all_nodes(program.graph)))


def expected_s(
    programs: Sequence[Program],
    lowerings: Mapping[str, Sequence[str]],
    machine: Mapping[str, Any],
) -> float | None:
    """Estimate the processor time that compiling will take, in seconds.

    Returns:
        An estimate, often wrong by half; None for a lowering without rates that has not compiled
        such a program.
    """
    known, total = _noted(_file(machine)), 0.0
    for program, name in ((each, name) for each in programs for name in lowerings[each.name]):
        size, compiles = nodes(program), known.get(name, [])
        same = [seconds for count, seconds in compiles if count == size]
        if same:
            total += statistics.median(same[-_LATEST:])
        elif name in _RATES:
            base, rate = _RATES[name]
            # This machine may be slow; that other programs were cheap says little of this one.
            ratios = [seconds / (base + rate * count) for count, seconds in compiles]
            total += (base + rate * size) * max(1.0, statistics.median(ratios or [1.0]))
        else:
            return None
    return total


@contextlib.contextmanager
def noted(program: Program, lowering: str, machine: Mapping[str, Any]) -> Generator[None]:
    """Record the processor time of compiling a program in a ``with`` block, unless it fails."""
    began = _cpu_s()
    yield
    note(program, lowering, machine, _cpu_s() - began)


def note(program: Program, lowering: str, machine: Mapping[str, Any], took: float) -> None:
    """Record the processor time of compiling a program."""
    file = _file(machine)
    known = _noted(file)
    known[lowering] = [*known.get(lowering, []), (nodes(program), round(took, 3))][-_KEPT:]
    with contextlib.suppress(OSError):  # an estimate is not worth a message
        atomic.write_text(file, json.dumps(known))


def _cpu_s() -> float:
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def _file(machine: Mapping[str, Any]) -> Path:
    text = json.dumps(dict(machine), sort_keys=True)
    return cache_folder() / f"compile-times-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _noted(file: Path) -> dict[str, list[tuple[int, float]]]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return {
            str(name): [(max(1, int(count)), float(seconds)) for count, seconds in compiles]
            for name, compiles in data.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # not there yet, or damaged: estimates begin anew


def about(seconds: float) -> str:
    """Format a duration in rounded words, such as ``about 20 s``."""
    if seconds < 10:
        return f"about {max(1, round(seconds))} s"
    if seconds < 90:
        return f"about {5 * round(seconds / 5)} s"
    return f"about {round(seconds / 60)} min"


#: The compiler's initial share of the steps' computing time.
FIRST, FIRST_OF_ONE_CORE = 0.1, 0.3
#: After this many times the compile time, the share is HALF; sooner if most of the compilation is
#: needed by all later runs, too.
LONG, LONG_ONCE, HALF = 4.0, 1.0, 0.5
#: A compilation of at most QUICK_S seconds gets nearly all the time, and sooner: one short pause is
#: better than slower steps for several times as long. This ends after QUICK_UNTIL times the
#: expected time, as the compilation may take longer.
QUICK_S, QUICK_FROM, QUICK_UNTIL, NEARLY_ALL = 10.0, 0.25, 4.0, 0.95


def share(passed_s: float, cpu_s: float | None, *, once: bool = False) -> float:
    """Return the share of computing time that steps cede to a background compiler.

    Args:
        passed_s: seconds since the compiler was started.
        cpu_s: expected processor time of the compiler, in seconds; None if unknown.
        once: most of the time is for kernels that are compiled once per machine.
    """
    first = _first()
    if cpu_s is None or passed_s <= long_s(cpu_s, once=once):
        return first
    quick = _is_quick(cpu_s, once=once) and passed_s <= QUICK_UNTIL * cpu_s
    return max(first, NEARLY_ALL if quick else HALF)


def long_s(cpu_s: float, *, once: bool = False) -> float:
    """Return the seconds from the compiler's start to the first long pause; see ``share``."""
    if _is_quick(cpu_s, once=once):
        return cpu_s * QUICK_FROM
    return cpu_s * (LONG_ONCE if once else LONG)


def wall_s(cpu_s: float, *, once: bool = False) -> float:
    """Return the wall time of a compiler in parallel with steps, in seconds; see ``share``."""
    first, long = _first(), long_s(cpu_s, once=once)
    if first * long >= cpu_s:
        return cpu_s / first
    later = NEARLY_ALL if _is_quick(cpu_s, once=once) else HALF
    return long + (cpu_s - first * long) / later


def _is_quick(cpu_s: float, *, once: bool) -> bool:
    return cpu_s <= QUICK_S and not once


def _first() -> float:
    return FIRST if processor.cores() > 1 else FIRST_OF_ONE_CORE
