"""Micro-steps of a session that pass through the stages of a pipeline."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from abele.compile.executable import Executable
from abele.pipeline.cut import Cut
from abele.pipeline.lanes import lanes
from abele.pipeline.report import Measured, measured
from abele.pipeline.running import MicroBatch, Passage, Pipeline
from abele.pipeline.workers import WorkerPool, share_of_cores
from abele.runtime.clock import clock, nanoseconds
from abele.runtime.device_state import DeviceState
from abele.runtime.micro_steps import Plan, Returned, Step, Update


def pipelined(cut: Cut) -> Plan:
    """The plan of a session that runs the parts of a program, stages at the same time.

    Numbers are those of a session that runs the whole: every micro-batch sees the same weights,
    gradients are added in the same order, and random numbers are drawn in the same order.

    Args:
        cut: the parts; the session's executable has their programs, and ``apply`` for training.
    """
    return Plan(
        model=cut.whole,
        start=lambda executable, state, update: PipelineRunner(cut, executable, state, update),
    )


class PipelineRunner:
    """Runs the micro-steps of an update together; a ``Runner``.

    Args:
        cut: the parts of the program.
        executable: has their programs.
        state: of the session.
        update: of the session.

    Attributes:
        cut: as given.
        one_at_a_time: a micro-batch begins when the one before has left, so that no stage shares
            cores with another while its time is measured.
    """

    replays = False

    def __init__(self, cut: Cut, executable: Executable, state: DeviceState, update: Update):
        self.cut, self._update, self._device = cut, update, state.device
        self._crew = WorkerPool(cut.stages, share_of_cores(cut.stages))
        self._mark = clock(state.device)
        self._passages: list[Passage] = []
        self.one_at_a_time = False
        self._pipeline = Pipeline(
            cut,
            {part.name: executable.compiled[part.name].of_stage() for part in cut.programs},
            lambda part: [state.arguments(part, r) for r in range(state.config.replicas)],
            state.stream,
            lanes(state.device, cut.stages),
            self._crew,
            self._mark,
        )

    @property
    def threads(self) -> int:
        """Threads of torch for each stage."""
        return self._crew.threads

    @property
    def measured(self) -> Measured | None:
        """What the latest call took, as far as it came; None before its first update."""
        return measured(self.cut.stages, self._passages) if self._passages else None

    def groups(self, steps: Iterable[Step], watched: bool) -> Iterator[Sequence[Step]]:
        """The micro-steps of one update after those of another; all of a call without updates."""
        del watched  # stages work on several at once
        waiting: list[Step] = []
        for step in steps:
            waiting.append(step)
            if step[0].updates:
                yield waiting
                waiting = []
        if waiting:
            yield waiting

    def run(self, group: Sequence[Step], marks: list[Any], wanted: bool) -> Sequence[Returned]:
        """Passes the micro-steps of one update through the stages; see ``Runner``."""
        marks.append(time.perf_counter_ns())  # something has begun
        if group[0][0].index == 0:
            self._passages = []
        passage = self._passed(
            [MicroBatch(step.replica, rows, step.keeps or wanted) for step, rows in group]
        )
        applied = self._update.apply() if group[-1][0].updates else None
        passage, last = self._timed(passage, len(group))
        begin = marks.pop()
        for end in last:
            end = max(begin, end)
            marks += [begin, end]
            begin = end
        # Results are the caller's and may be freed while the times are still there to be read.
        self._passages.append(dataclasses.replace(passage, outputs=[None] * len(group)))
        return [
            (outputs or [], applied if step.updates else None)
            for (step, _), outputs in zip(group, passage.outputs, strict=True)
        ]

    def _passed(self, micro_batches: Sequence[MicroBatch]) -> Passage:
        if not self.one_at_a_time:
            return self._pipeline.run(micro_batches)
        whole = [self._pipeline.run([each]) for each in micro_batches]
        times = [
            dataclasses.replace(timed, task=dataclasses.replace(timed.task, micro_batch=k))
            for k, passage in enumerate(whole)
            for timed in passage.times
        ]
        most = [passage.most_bytes for passage in whole], [p.most_waiting for p in whole]
        return Passage(
            [passage.outputs[0] for passage in whole],
            times,
            *([max(each) for each in zip(*several, strict=True)] for several in most),
        )

    def alone(self) -> None:
        """None: even one micro-step passes through all stages."""
        return None

    def _timed(self, passage: Passage, count: int) -> tuple[Passage, list[int]]:
        """The passage with its times in ns, and when each of ``count`` micro-steps has left.

        Micro-steps overlap; when one has left is when the next one's time begins. The last one's
        ends with the update.
        """
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        raw = [moment for timed in passage.times for moment in (timed.begin, timed.end)]
        moments = nanoseconds([*raw, self._mark()])
        pairs = zip(moments[::2], moments[1::2], strict=False)
        times = [
            dataclasses.replace(timed, begin=begin, end=end)
            for timed, (begin, end) in zip(passage.times, pairs, strict=True)
        ]
        last = [
            max((timed.end for timed in times if timed.task.micro_batch == k), default=moments[-1])
            for k in range(count)
        ]
        last[-1] = moments[-1]
        return dataclasses.replace(passage, times=times), last

    def close(self) -> None:
        """Ends the workers; another call starts them again."""
        self._crew.close()
