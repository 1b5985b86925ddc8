"""How long a step takes: a range, from what its kernels compute and move and the machine's limits.

The lower end is what no machine with these limits can do faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from abele.fit import costs
from abele.fit.estimate import Interval
from abele.machine_limits import MachineLimits
from abele.program import Program
from abele.program.memory import MemoryUse
from abele.step import batching
from abele.step.config import StepConfig
from abele.targets.kernel_choice import Kernel

#: The upper end, in what is expected.
_AT_MOST = 2.0
#: Python around one run of a program, in calls of the smallest operator; all there is of a small
#: model's step.
_AROUND = 8.0


def of_program(
    program: Program,
    kernels: Sequence[Kernel],
    limits: MachineLimits,
    use: MemoryUse,
    *,
    compiled: bool,
) -> Interval:
    """Seconds of one run of a program.

    Args:
        program: after the passes of its lowering.
        kernels: what runs one after the other, as its lowering says.
        limits: of the machine.
        use: the memory of the program; what operators make inside is written and read once.
        compiled: it is not called operator by operator from Python.
    """
    inner: dict[torch.fx.Node | None, int] = {}
    for each in (*use.pieces, *use.inside):
        if each.inner:
            inner[each.node] = inner.get(each.node, 0) + 2 * each.size
    given = sum(
        torch.empty(slot.shape, dtype=slot.dtype, device="meta").nbytes for slot in program.inputs
    )
    memory = given + max(use.needed(), default=0)
    expected = sum(
        costs.of_kernel(
            kernel,
            limits,
            inner=sum(inner.get(node, 0) for node in kernel.nodes),
            memory=memory,
            called=not compiled,
        )
        for kernel in kernels
    )
    expected += _AROUND * limits.call_s
    least = sum(costs.at_least(kernel, limits) for kernel in kernels)
    low = max(least, given / limits.of_type(torch.float32).bytes_per_s(0))
    return Interval(min(low, expected), expected, _AT_MOST * expected)


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
