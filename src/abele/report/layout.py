"""Layered drawing of acyclic graphs: each node is below all that it reads.

The steps are those of Sugiyama, Tagawa and Toda (1981): layers by the longest way, points where an
edge passes through layers, an order in each layer that has few crossings, and then the coordinates.
Nothing is random, so the same graph is always drawn alike.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

_SWEEPS = 6
_BEND = 18.0  # what an edge takes where it passes a layer
_GAP = 22.0


@dataclasses.dataclass(frozen=True)
class Layout:
    """Coordinates of a drawn graph.

    Attributes:
        width: width of the drawing.
        layers: number of layers.
        centers: center of each node, from the left.
        layer: layer of each node, from 0.
        ways: for each edge, its centers in the layers between its endpoints.
    """

    width: float
    layers: int
    centers: tuple[float, ...]
    layer: tuple[int, ...]
    ways: dict[tuple[int, int], tuple[float, ...]]


def layered(widths: Sequence[float], edges: Sequence[tuple[int, int]]) -> Layout:
    """Return where nodes are drawn.

    Args:
        widths: of the nodes.
        edges: from and to; a node only leads to later ones.
    """
    layer = [0] * len(widths)
    for begin, end in sorted(edges, key=lambda each: each[1]):
        layer[end] = max(layer[end], layer[begin] + 1)
    points = list(widths)
    rows: dict[int, list[int]] = defaultdict(list)
    for node, row in enumerate(layer):
        rows[row].append(node)
    links: list[tuple[int, int]] = []
    chains: dict[tuple[int, int], list[int]] = {}
    for begin, end in edges:
        bends: list[int] = []
        for row in range(layer[begin] + 1, layer[end]):
            bends.append(len(points))
            rows[row].append(len(points))
            points.append(_BEND)
        chains[begin, end] = bends
        way = [begin, *bends, end]
        links += itertools.pairwise(way)
    ordered = _ordered([rows[row] for row in sorted(rows)], links)
    at = _centers(ordered, points, links, len(widths))
    left = min((at[i] - points[i] / 2 for i in at), default=0.0)
    return Layout(
        width=max((at[i] + points[i] / 2 for i in at), default=0.0) - left,
        layers=len(ordered),
        centers=tuple(at[i] - left for i in range(len(widths))),
        layer=tuple(layer),
        ways={edge: tuple(at[i] - left for i in bends) for edge, bends in chains.items()},
    )


def _neighbours(links: Sequence[tuple[int, int]]) -> tuple[dict[int, list[int]], ...]:
    """Return the neighbours of each point above and below."""
    above: dict[int, list[int]] = defaultdict(list)
    below: dict[int, list[int]] = defaultdict(list)
    for begin, end in links:
        above[end].append(begin)
        below[begin].append(end)
    return above, below


def _ordered(rows: list[list[int]], links: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Rows in an order in which points are near the middle of their neighbours, down and up."""
    above, below = _neighbours(links)
    place = {point: float(i) for row in rows for i, point in enumerate(row)}
    for sweep in range(_SWEEPS):
        others, listed = (above, rows) if sweep % 2 == 0 else (below, rows[::-1])
        for row in listed:
            middle = {point: _mean(place, others.get(point, ()), place[point]) for point in row}
            row.sort(key=middle.__getitem__)
            place.update((point, float(i)) for i, point in enumerate(row))
    return rows


def _mean(at: Mapping[int, float], points: Sequence[int], otherwise: float) -> float:
    return sum(at[each] for each in points) / len(points) if points else otherwise


def _centers(
    rows: Sequence[Sequence[int]],
    widths: Sequence[float],
    links: Sequence[tuple[int, int]],
    nodes: int,
) -> dict[int, float]:
    """Centers near the middle of neighbours, in order and without overlaps.

    Nodes come first, so that rows of them are straight; edges bend beside them.
    """
    above, below = _neighbours(links)
    near = {p: [*above.get(p, ()), *below.get(p, ())] for row in rows for p in row}
    at = dict.fromkeys(near, 0.0)
    for points, among in ((nodes, range(nodes)), (len(widths), range(nodes, len(widths)))):
        others = {p: [o for o in near[p] if o < points] for p in near}
        for sweep in range(2 * _SWEEPS):
            for row in rows if sweep % 2 == 0 else rows[::-1]:
                wanted = {p: _mean(at, others[p], at[p]) for p in row}
                at.update(_row(row, wanted, at, widths, among))
    return at


def _row(
    row: Sequence[int],
    wanted: Mapping[int, float],
    at: Mapping[int, float],
    widths: Sequence[float],
    among: range,
) -> dict[int, float]:
    """Centers of some points of a row, close to what is wanted, far enough from all others.

    The mean of two ways, from the left and from the right; points that came before stay.
    """
    offset, offsets = 0.0, [0.0]
    for left, right in itertools.pairwise(row):
        offset += (widths[left] + widths[right]) / 2 + _GAP
        offsets.append(offset)
    placed = [p if p in among else None for p in row]
    fixed = [at[p] - offsets[i] if p < among.start else None for i, p in enumerate(row)]
    aim = [wanted[p] - offsets[i] for i, p in enumerate(row)]
    # Where neighbours touch, they have the same place here.
    right = _rising(aim, placed, fixed, max)
    left = _rising(aim[::-1], placed[::-1], fixed[::-1], min)[::-1]
    return {
        p: (a + b) / 2 + offsets[i]
        for i, (p, a, b) in enumerate(zip(row, right, left, strict=True))
        if p in among
    }


def _rising(
    aim: Sequence[float],
    placed: Sequence[int | None],
    fixed: Sequence[float | None],
    further: Callable[[float, float], float],
) -> list[float]:
    """Places along a row that never go back; ``further`` is ``max``, or ``min`` from its end."""
    nearer = min if further is max else max
    places: list[float] = []
    last: float | None = None
    for i, wanted in enumerate(aim):
        stays = fixed[i]
        if stays is not None:
            last = stays
        elif placed[i] is not None:
            last = wanted if last is None else further(wanted, last)
            ahead = next((each for each in fixed[i:] if each is not None), None)
            last = last if ahead is None else nearer(last, ahead)
        places.append(wanted if last is None else last)
    return places
