"""Times of the parts of a call: transfers in, computation, transfers out.

Measured, never modelled. A call hands the rows of all its micro-batches over at once and gets all
results back at its end, so here a transfer in is what it takes until a micro-batch is ready to be
computed, and every result is home when the call returns.
"""

from __future__ import annotations

from collections.abc import Sequence

from abele.runtime.clock import CallRecord
from abele.step import batching
from abele.step.config import StepConfig

#: Kinds of moments, in the order in which they come.
INPUT, READY, DONE, OUT = KINDS = ("input", "input_complete", "output", "output_complete")
Counters = dict[str, list[list[float]]]


def no_counters() -> Counters:
    """Return the times before the first call: a tensor of each kind, without transfers."""
    return no_transfers(1, 1)


def no_transfers(inputs: int, outputs: int) -> Counters:
    """Return the times of tensors that are not transferred."""
    counts = {INPUT: inputs, READY: inputs, DONE: outputs, OUT: outputs}
    return {kind: [[] for _ in range(count)] for kind, count in counts.items()}


def cycles(call: CallRecord, config: StepConfig) -> int:
    """Nanoseconds in which the micro-steps of replica 0 ran.

    Args:
        call: its times.
        config: its schedule.
    """
    steps = zip(call.micro_steps(), batching.schedule(config), strict=True)
    return sum(end - begin for (begin, end), step in steps if step.replica == 0)


def counters(call: CallRecord, config: StepConfig, inputs: int, outputs: int) -> Counters:
    """Seconds by kind, tensor and transfer.

    Args:
        call: its times; it began when the wrapper was called and ended with results on the host.
        config: its schedule.
        inputs: tensors that go in; each has one transfer per micro-step.
        outputs: tensors that come out; each has one per micro-step whose rows come out.
    """
    steps = call.micro_steps()
    # Sums leave with the last micro-step of each replica, as final results do.
    leaving = steps[-batching.parts_out(config) :]
    if batching.parts_out(config) != config.replicas:
        kept = zip(steps, batching.schedule(config), strict=True)
        leaving = [step for step, micro in kept if micro.keeps]
    before = [call.began_ns, *(end for _, end in steps[:-1])]
    return {
        INPUT: _seconds(before, inputs),
        READY: _seconds([begin for begin, _ in steps], inputs),
        DONE: _seconds([end for _, end in leaving], outputs),
        OUT: _seconds([max(call.ended_ns, end) for _, end in leaving], outputs),
    }


def _seconds(moments: Sequence[int], tensors: int) -> list[list[float]]:
    return [[moment / 1e9 for moment in moments] for _ in range(tensors)]


def latency(moments: Counters, first: str, last: str) -> tuple[float, float, float]:
    """Shortest, longest and average time between two kinds of moments, in seconds.

    A step begins with its first transfer in (or when the last one is complete) and ends with its
    last transfer out. Where fewer steps come out than go in, those that go in are grouped evenly.

    Args:
        moments: as from ``counters``.
        first: one of ``KINDS``.
        last: a later one.
    """
    choose = max if first == READY else min
    starts = [choose(each) for each in zip(*moments[first], strict=True)]
    ends = [max(each) for each in zip(*moments[last], strict=True)]
    if not starts or not ends:
        return 0.0, 0.0, 0.0
    size = len(starts) // len(ends)
    grouped = [min(starts[i * size : (i + 1) * size]) for i in range(len(ends))]
    spans = [end - start for start, end in zip(grouped, ends, strict=True)]
    return min(spans), max(spans), sum(spans) / len(spans)
