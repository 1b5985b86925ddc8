"""Memory of running units, in addition to state and to values saved for backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import torch

from abele.fit.estimate import Interval
from abele.program import is_getitem, is_view, writes
from abele.program.printing import node_phase
from abele.stage.sizes import bytes_of

Node = torch.fx.Node

#: What libraries need inside, over what the operators of the program need.
_MOST = 1.25


def of_units(
    parts: Mapping[Node, int],
    order: Sequence[Node],
    kept: Set[Node],
    units: int,
    widest: int | None,
) -> list[Interval]:
    """Bytes of each unit: the largest value at least, what its order of operations needs at most.

    Args:
        parts: of each operation, from forward of the first unit to backward of the first unit.
        order: all operations, part by part.
        kept: values that are counted elsewhere.
        units: how many there are.
        widest: as for ``bytes_of``.
    """
    largest, most = [0] * (2 * units), [0] * (2 * units)
    sizes = {node: _made_by(node, widest) for node in parts}
    uses = _last_uses(order)
    alive, ending = 0, dict[int, int]()
    part = -1
    for position, node in enumerate(order):
        if parts[node] != part:
            # Sums and results leave a part by its end, and what the next one takes comes with it.
            part, alive, ending = parts[node], _taken(sizes, parts, order, position, kept), {}
        size = sizes[node]
        if node not in kept and size:
            alive += size
            last = uses.get(node, position)
            ending[last] = ending.get(last, 0) + size
        if node_phase(node) != "update":
            largest[part] = max(largest[part], size)
            most[part] = max(most[part], alive)
        alive -= ending.pop(position, 0)
    pairs = zip(range(units), reversed(range(units, 2 * units)), strict=True)
    return [
        Interval(
            max(largest[one], largest[two]),
            max(most[one], most[two], largest[one], largest[two]),
            _MOST * max(most[one], most[two], largest[one], largest[two]),
        )
        for one, two in pairs
    ]


def _last_uses(order: Sequence[Node]) -> dict[Node, int]:
    """Return for each value the position of the last operation that reads it or a view of it."""
    last: dict[Node, int] = {}
    for position, node in enumerate(order):
        waiting = list(node.all_input_nodes)
        while waiting:
            each = waiting.pop()
            last[each] = position
            if is_view(each) or is_getitem(each):
                waiting += each.all_input_nodes
    return last


def _taken(
    sizes: Mapping[Node, int],
    parts: Mapping[Node, int],
    order: Sequence[Node],
    begin: int,
    kept: Set[Node],
) -> int:
    """Bytes of the values that the part which begins there takes from the one before."""
    taken: set[Node] = set()
    part = parts[order[begin]]
    for each in order[begin:]:
        if parts[each] != part:
            break
        before = (n for n in each.all_input_nodes if parts.get(n, part) < part)
        taken.update(n for n in before if n not in kept)
    return sum(sizes[node] for node in taken)


def _made_by(node: Node, widest: int | None) -> int:
    value = node.meta.get("val")
    if is_view(node) or writes(node) or not isinstance(value, torch.Tensor):
        return 0
    return bytes_of(value, widest)
