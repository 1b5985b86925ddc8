"""Counts of a program's operators, and bytes by role.

Read off the graph alone, so it costs no run. A compiler may fuse operations and reuse memory, so
the peak of intermediate values is an upper estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from abele.program import memory
from abele.program.core import Program, Role, is_getitem, node_phase

ROLES = (Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE, Role.ACCUMULATOR, Role.HYPER)


def state_bytes(programs: Sequence[Program]) -> dict[str, int]:
    """Bytes of one copy of each kind of state; programs share what has the same name."""
    slots = {(slot.role, slot.name): slot for program in programs for slot in program.inputs}
    total = {role.value: 0 for role in ROLES}
    for (role, _), slot in slots.items():
        if role in ROLES:
            total[role.value] += torch.empty(slot.shape, dtype=slot.dtype, device="meta").nbytes
    return total


def given_bytes(program: Program) -> dict[str, int]:
    """Bytes of the inputs of a program by role, without the roles that it has none of."""
    total: Counter[str] = Counter()
    for slot in program.inputs:
        total[slot.role.value] += torch.empty(slot.shape, dtype=slot.dtype, device="meta").nbytes
    return dict(total)


def operators(program: Program) -> dict[str, dict[str, int]]:
    """Count the occurrences of each operator, by phase, most frequent first."""
    by_phase: dict[str, Counter[str]] = {}
    for node in program.graph.graph.nodes:
        if node.op == "call_function" and not is_getitem(node):
            counts = by_phase.setdefault(node_phase(node) or "program", Counter())
            counts[str(node.target)] += 1
    return {phase: dict(counts.most_common()) for phase, counts in by_phase.items()}


def peak_intermediate_bytes(program: Program) -> int:
    """Most bytes of intermediate values alive at once, if every operation keeps its result.

    Values live from the operation that makes them to the last that reads them or a view of them;
    what is returned lives to the end. A loop or a branch needs the memory of its body as well.
    """
    return max(memory.of_graph(program).alive())
