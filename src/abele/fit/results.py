"""Memory of the results of calls: of micro-batches until a call ends, and of the previous call.

Those that the micro-batch that runs returns are part of what its program needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import torch

from abele.fit.estimate import Interval
from abele.fit.workspaces import returned
from abele.program import Program, Role
from abele.step import batching
from abele.step.config import OutputMode, StepConfig

_NOTHING = Interval.exact(0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """Bytes of results on the device, at different moments of a call.

    Attributes:
        earlier: of earlier micro-batches of the same call, at most, while the model's program runs.
        at_update: of all micro-batches so far while a program of its own updates the weights.
        joining: of all micro-batches, and what they are joined to; None where nothing is joined.
        before: of the call before, which the caller may still have.
    """

    earlier: Interval
    at_update: Interval
    joining: Interval | None
    before: Interval


def of_calls(
    model: Program,
    config: StepConfig,
    *,
    on_host: bool,
    returned: Collection[str] | None = None,
) -> Results:
    """Return the memory of the results of calls.

    Args:
        model: program of a micro-batch.
        config: partition of a call's batch.
        on_host: the device is the host; otherwise the caller's results are in other memory.
        returned: outputs that the caller gets; None for all.
    """
    outputs = [
        slot
        for slot in model.outputs
        if slot.role is not Role.MAGNITUDES and (returned is None or slot.name in returned)
    ]
    sizes = [torch.empty(s.shape, dtype=s.dtype, device="meta").nbytes for s in outputs]
    one, steps = _taken(sizes, on_host), list(batching.schedule(config))
    kept, earlier, at_update = 0, _NOTHING, _NOTHING
    for index, step in enumerate(steps):
        # What nobody keeps is there until the next micro-batch has returned, or shares its memory.
        loose = index > 0 and not steps[index - 1].keeps
        most = one.scaled(kept + loose)
        now = Interval(kept * one.low, most.expected, most.high)
        earlier = max(earlier, now, key=lambda each: each.high)
        if step.updates:
            at_update = Interval.sum((now, one))
        kept += step.keeps
    whole = _taken([size * batching.parts_out(config) for size in sizes], on_host)
    joining = None
    if len(steps) > 1 and (kept > 1 or config.output_mode is OutputMode.SUM):
        joining = Interval.sum((one.scaled(kept), _joined(sizes, kept, whole, config)))
    before = Interval(0, whole.expected, whole.high) if on_host else _NOTHING
    return Results(earlier=earlier, at_update=at_update, joining=joining, before=before)


def _taken(sizes: list[int], on_host: bool) -> Interval:
    """Bytes of the process for tensors of these sizes."""
    return Interval.sum(returned(size) if on_host else Interval.exact(size) for size in sizes)


def _joined(sizes: list[int], kept: int, whole: Interval, config: StepConfig) -> Interval:
    """Return the bytes of what ``runtime.session.assemble`` makes of micro-batches' results."""
    if config.output_mode is not OutputMode.SUM:
        return whole
    # Each output is stacked before it is summed; sums of several replicas are joined then.
    together = kept // config.replicas * max(sizes, default=0)
    beside = max(together, whole.high if config.replicas > 1 else 0)
    return Interval(whole.low, whole.expected + beside, whole.high + beside)
