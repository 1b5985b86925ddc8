"""How long a step takes: a range, from what operators compute and move and the machine's limits.

The lower end is what no machine with these limits can do faster. For the others every operator
reaches a stated share of the limits.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from abele.fit.estimate import Interval
from abele.machine_limits import MachineLimits
from abele.program import Program, is_getitem
from abele.program.memory import MemoryUse
from abele.report.operators import moved_bytes, operations
from abele.step import batching
from abele.step.config import StepConfig

#: Shares of the machine's limits that operators reach: expected, and at least.
_COMPUTING = (0.7, 0.2)
_MOVING = (0.8, 0.25)


def of_program(
    program: Program, limits: MachineLimits, use: MemoryUse, *, compiled: bool
) -> Interval:
    """Seconds of one run of a program.

    Args:
        program: after the passes of its lowering.
        limits: of the machine.
        use: the memory of the program; what operators make inside is written and read once.
        compiled: it is not called operator by operator from Python.
    """
    inner: dict[torch.fx.Node | None, int] = {}
    for each in (*use.pieces, *use.inside):
        if each.inner:
            inner[each.node] = inner.get(each.node, 0) + 2 * each.size
    work = [
        (operations(node), moved_bytes(node) + inner.get(node, 0))
        for node in program.graph.graph.nodes
        if node.op == "call_function" and not is_getitem(node)
    ]
    computing = sum(count for count, _ in work) / limits.operations_per_s
    given = sum(
        torch.empty(slot.shape, dtype=slot.dtype, device="meta").nbytes for slot in program.inputs
    )
    called = 0.0 if compiled else limits.call_s * len(work)
    expected, high = (
        sum(_seconds(*each, limits, *shares) for each in work) + called
        for shares in zip(_COMPUTING, _MOVING, strict=True)
    )
    low = max(computing, given / limits.bytes_per_s(0))
    return Interval(min(low, expected), expected, high)


def _seconds(
    count: int, size: int, limits: MachineLimits, computing: float, moving: float
) -> float:
    moved_s = size / (limits.bytes_per_s(size) * moving)
    return max(count / (limits.operations_per_s * computing), moved_s)


def of_call(programs: Iterable[Interval], config: StepConfig) -> Interval:
    """Seconds of one call of a model.

    Args:
        programs: seconds of each; the first is the model, another one applies gradients.
        config: how a call consumes its batch.
    """
    model, *others = programs
    micro_steps = sum(1 for _ in batching.schedule(config))
    updates = (each.scaled(config.device_iterations) for each in others)
    return Interval.sum([model.scaled(micro_steps), *updates])


def fastest(ways: Iterable[Interval]) -> Interval:
    """Seconds of the way that will be chosen, where several are measured beside each other."""
    several = list(ways)
    return Interval(
        min(each.low for each in several),
        min(each.expected for each in several),
        min(each.high for each in several),
    )
