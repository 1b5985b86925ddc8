"""Formats bytes, durations, shares, counts and numbers for people."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence


def size(count: float) -> str:
    """Format a number of bytes with a unit, in one to four digits."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count:,.0f} B"


def seconds(value: float) -> str:
    """Format a duration in seconds with a suitable unit."""
    if value >= 86400:
        return f"{value / 86400:.1f} d"
    if value >= 3600:
        return f"{value / 3600:.1f} h"
    if value >= 120:
        return f"{value / 60:.1f} min"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= scale:
            return f"{_three_digits(value / scale)} {unit}"
    return f"{value * 1e9:.0f} ns" if value else "0 s"


def _three_digits(value: float) -> str:
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{decimals}f}"


def share(part: float, whole: float) -> str:
    """Format a fraction of a total in per cent."""
    return f"{100 * part / whole:.1f} %" if whole else "0.0 %"


def count(value: int, noun: str) -> str:
    """Format a count with its noun: ``1 call``, ``2 calls``, ``3 batches``."""
    plural = noun[:-1] + "ies" if noun.endswith("y") else f"{noun}s"
    if noun.endswith("ch"):
        plural = f"{noun}es"
    return f"{value:,} {noun if value == 1 else plural}"


def number(value: float) -> str:
    """Format a number such as a loss with four digits."""
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def setting(value: float) -> str:
    """Format a hyperparameter or other number that the user set, with six digits."""
    return f"{value:.6g}"


def aligned(rows: Sequence[tuple[str, ...]], left: Collection[int] | None = None) -> list[str]:
    """Format a table of texts as lines of aligned columns.

    Args:
        rows: rows of cells.
        left: columns aligned to the left, others to the right; None aligns all to the left.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if left is None or index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def large(value: float) -> str:
    """Format a number of operations with an SI prefix."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.1f} {prefix}"
    return f"{value:.0f} "
