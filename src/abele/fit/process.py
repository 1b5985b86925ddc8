"""Memory of the process itself, in addition to what an estimate counts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from abele.fit.estimate import Estimate, Interval, Part
from abele.fit.limits import Limit
from abele.fit.verdict import Answer, decide
from abele.program import Program
from abele.targets import Target

# Python's own memory, threads and libraries may grow by this while programs run.
_GROWTH = (0.0, 0.05, 0.15)
# Likewise for each operation: what Python knows of it, and code that libraries write for it.
_OF_OPERATION = (0, 6 * 2**10, 24 * 2**10)


def default_limit(target: Target) -> str:
    """Return the name of the memory of a target's device."""
    return "cuda:0" if target.device().type == "cuda" else "cpu"


def compare(
    estimated: Estimate, limit: Limit, programs: Sequence[Program], target: Target, *, counted: int
) -> Answer:
    """Compare an estimate with a limit, with the process beside it where they share a memory.

    Args:
        estimated: of the programs.
        limit: how much memory there is.
        programs: as captured.
        target: what would run them.
        counted: bytes of tensors that this process has, and the estimate counts.
    """
    parts = ()
    if limit.of_process and target.device().type == "cpu":
        operations = sum(len(each.graph.graph.nodes) for each in programs)
        parts = (beside(counted, operations),)
    return decide(estimated, limit, parts)


def beside(counted: int, operations: int) -> Part:
    """Memory of this process that is in use now, but for tensors that an estimate counts.

    Args:
        counted: bytes of these tensors.
        operations: of the programs, which are to be prepared yet.
    """
    size = max(0, _private() - counted)
    return Part(
        role="Python, torch and what else this process holds", size=_grown(size, operations)
    )


def _grown(size: int, operations: int) -> Interval:
    low, expected, high = (
        size * (1 + share) + each * operations
        for share, each in zip(_GROWTH, _OF_OPERATION, strict=True)
    )
    return Interval(low, expected, high)


def _private() -> int:
    """Bytes in use that no file backs; the others can be dropped where memory is short."""
    for line in _status().splitlines():
        name, _, value = line.partition(":")
        if name == "RssAnon":
            return int(value.split()[0]) * 1024
    return 0


def _status() -> str:
    try:
        return Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:  # another system than Linux
        return ""
