"""What a program consists of, in numbers: operators, and bytes by role.

Read off the graph alone, so it costs no run. A compiler may fuse operations and reuse memory, so
the peak of intermediate values is an upper estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from abele.program.core import (
    Program,
    Role,
    is_getitem,
    is_view,
    returned_nodes,
    writes,
)
from abele.program.printing import node_phase

ROLES = (Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE, Role.ACCUMULATOR, Role.HYPER)


def state_bytes(programs: Sequence[Program]) -> dict[str, int]:
    """Bytes of one copy of each kind of state; programs share what has the same name."""
    slots = {(slot.role, slot.name): slot for program in programs for slot in program.inputs}
    total = {role.value: 0 for role in ROLES}
    for (role, _), slot in slots.items():
        if role in ROLES:
            total[role.value] += torch.empty(slot.shape, dtype=slot.dtype, device="meta").nbytes
    return total


def operators(program: Program) -> dict[str, dict[str, int]]:
    """How often each operator occurs, by phase, most frequent first."""
    found: dict[str, Counter[str]] = {}
    for node in program.graph.graph.nodes:
        if node.op == "call_function" and not is_getitem(node):
            counts = found.setdefault(node_phase(node) or "program", Counter())
            counts[str(node.target)] += 1
    return {phase: dict(counts.most_common()) for phase, counts in found.items()}


def peak_intermediate_bytes(program: Program) -> int:
    """Most bytes of intermediate values alive at once, if every operation keeps its result.

    Values live from the operation that makes them to the last that reads them or a view of them;
    what is returned lives to the end.
    """
    nodes = list(program.graph.graph.nodes)
    last = {node: index for index, node in enumerate(nodes)}
    for index in reversed(range(len(nodes))):
        node = nodes[index]
        for source in node.all_input_nodes:
            end = last[node] if is_view(node) or is_getitem(node) else index
            last[source] = max(last[source], end)
    last |= dict.fromkeys(returned_nodes(program.graph), len(nodes))
    freed: dict[int, int] = {}
    alive = peak = 0
    for index, node in enumerate(nodes):
        size = 0 if _owns_nothing(node) else _bytes(node.meta.get("val"))
        alive += size
        peak = max(peak, alive)
        freed[last[node]] = freed.get(last[node], 0) + size
        alive -= freed.pop(index, 0)
    return peak


def _owns_nothing(node: torch.fx.Node) -> bool:
    return node.op != "call_function" or is_view(node) or is_getitem(node) or writes(node)


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(map(_bytes, value)) if isinstance(value, list | tuple) else 0
