"""Sums and maxima over ranges of units, for all ranges of a chain at once.

A table has a row for each begin and a column for each end, both from 0 to the number of units; the
range holds the units from begin up to, but not including, end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

#: Bytes or seconds, float64 ``[units + 1, units + 1]``.
Table = torch.Tensor


def total(each: Sequence[float]) -> Table:
    """Sum a number per unit over each range; 0 for an empty range."""
    before = torch.tensor([0.0, *each], dtype=torch.float64).cumsum(0)
    return (before[None, :] - before[:, None]).clamp(min=0)


def largest(each: Sequence[float]) -> Table:
    """Return the maximum of a number per unit over each range; 0 for an empty range."""
    units = len(each)
    table = torch.zeros(units + 1, units + 1, dtype=torch.float64)
    values = torch.tensor(each, dtype=torch.float64)
    for begin in range(units):
        table[begin, begin + 1 :] = values[begin:].cummax(0).values
    return table


def counted_once(
    units: int, items: Iterable[tuple[float, Sequence[int]]], producers: Iterable[int | None]
) -> Table:
    """Sum the sizes of the items that units of each range use, each item once.

    Args:
        units: number of units.
        items: a size, and the units that use it, ascending.
        producers: for each item the unit that computes it, so that only ranges after it count; None
            if all count.
    """
    # A use counts for ranges that begin behind the use before and hold it: a rectangle of ranges.
    edges = torch.zeros(units + 2, units + 2, dtype=torch.float64)
    for (size, uses), producer in zip(items, producers, strict=True):
        before = -1 if producer is None else producer
        for use in uses:
            if use > before:
                edges[before + 1, use + 1] += size
                edges[use + 1, use + 1] -= size
            before = max(before, use)
    return edges.cumsum(0).cumsum(1)[: units + 1, : units + 1]
