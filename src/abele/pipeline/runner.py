"""Runner of a session's micro-steps in a pipeline, with measurements of its stages."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from abele.compilation.executable import Executable
from abele.pipeline.cut import Cut
from abele.pipeline.running import (
    MicroBatch,
    Passage,
    Pipeline,
    Timed,
    WorkerPool,
    ideal_bubble,
    share_of_cores,
)
from abele.program import Program, Role, memory
from abele.runtime.device_state import DeviceState
from abele.runtime.micro_steps import Plan, Returned, Step, Update
from abele.runtime.observers import clock, nanoseconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageTimes:
    """Times and memory of one pipeline stage in one call.

    Attributes:
        forward_ns: time in its forward, summed over micro-batches.
        backward_ns: time in its backward, summed over micro-batches.
        held_bytes: peak bytes saved for its backward.
        held_micro_batches: peak number of micro-batches saved for its backward.
    """

    forward_ns: int
    backward_ns: int
    held_bytes: int
    held_micro_batches: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """The measurements of a pipeline in one call.

    Attributes:
        stages: times and memory of each stage.
        micro_batches: in each passage, from an empty pipeline to an empty one.
        passages: updates in training; 1 in inference.
        window_ns: from the beginning of a passage to its end, of all passages together.
        times: of every task, in ns of ``time.perf_counter_ns``, by passage.
    """

    stages: tuple[StageTimes, ...]
    micro_batches: int
    passages: int
    window_ns: int
    times: tuple[tuple[Timed, ...], ...]

    @property
    def busy_ns(self) -> int:
        """The time in tasks, of all stages together, in ns."""
        return sum(stage.forward_ns + stage.backward_ns for stage in self.stages)

    @property
    def bubble(self) -> float:
        """The idle share of all stages' time, from 0 to 1."""
        if not self.window_ns:
            return 0.0
        return max(0.0, 1 - self.busy_ns / (self.window_ns * len(self.stages)))

    @property
    def ideal_bubble(self) -> float:
        """The bubble of stages of equal duration: (p - 1) / (m + p - 1)."""
        return ideal_bubble(len(self.stages), self.micro_batches)

    @property
    def at_once(self) -> float:
        """The mean number of stages that worked in parallel; 1 is no overlap."""
        return self.busy_ns / self.window_ns if self.window_ns else 1.0


def measured(stages: int, passages: Sequence[Passage]) -> Measured:
    """Combine the measured passages of one call; times are in ns."""
    timings = [timed for passage in passages for timed in passage.times]

    def spent(stage: int, backward: bool) -> int:
        wanted = (stage, backward)
        return sum(
            timed.end - timed.begin
            for timed in timings
            if (timed.task.stage, timed.task.backward) == wanted
        )

    return Measured(
        stages=tuple(
            StageTimes(
                forward_ns=spent(stage, False),
                backward_ns=spent(stage, True),
                held_bytes=max(passage.most_bytes[stage] for passage in passages),
                held_micro_batches=max(passage.most_waiting[stage] for passage in passages),
            )
            for stage in range(stages)
        ),
        micro_batches=max(len(passage.outputs) for passage in passages),
        passages=len(passages),
        window_ns=sum(_window(passage) for passage in passages),
        times=tuple(tuple(passage.times) for passage in passages),
    )


def _window(passage: Passage) -> int:
    if not passage.times:
        return 0
    return max(t.end for t in passage.times) - min(t.begin for t in passage.times)


def state_bytes(cut: Cut) -> list[dict[str, int]]:
    """Return each stage's bytes of state by kind; shared state counts in the first stage."""
    seen: set[tuple[Role, str]] = set()
    by_stage: list[dict[str, int]] = []
    for stage in range(cut.stages):
        programs: list[Program] = []
        for part in cut.parts:
            if part.stage == stage and part.program is not None:
                unseen = [s for s in part.program.inputs if (s.role, s.name) not in seen]
                programs.append(dataclasses.replace(part.program, inputs=tuple(unseen)))
        by_stage.append(memory.state_bytes(programs))
        seen |= {(slot.role, slot.name) for program in programs for slot in program.inputs}
    return by_stage


def timeline(measured: Measured, width: int = 76) -> str:
    """Format the first passage of micro-batches through the pipeline as text; see ``picture``.

    Args:
        measured: the call.
        width: characters for the whole passage.
    """
    return picture(measured.times[0], len(measured.stages), width)


def picture(times: Sequence[Timed], stages: int, width: int = 76) -> str:
    """Format a pipeline's timeline as text: a row per stage, digits forward, letters backward.

    A micro-batch has the last digit of its number in forward and the letter of it in backward; a
    dot is time in which the stage waited.

    Args:
        times: of all tasks, in any whole unit.
        stages: how many there are.
        width: characters for the whole passage.
    """
    if not times:
        return ""
    first = min(timed.begin for timed in times)
    unit = max(1, max(timed.end for timed in times) - first) / width
    rows = [["."] * width for _ in range(stages)]
    for timed in times:
        begin, end = (int((moment - first) / unit) for moment in (timed.begin, timed.end))
        k = timed.task.micro_batch
        sign = chr(ord("a") + k % 26) if timed.task.backward else str(k % 10)
        for column in range(begin, min(max(end, begin + 1), width)):
            rows[timed.task.stage][column] = sign
    return "\n".join(f"stage {i}  {''.join(row)}" for i, row in enumerate(rows))


def pipelined(cut: Cut) -> Plan:
    """Return the plan of a session that runs the stages of a cut program in parallel.

    Results are as without a pipeline: every micro-batch sees the same weights,
    gradients are added in the same order, and random numbers are drawn in the same order.

    Args:
        cut: the parts; the session's executable has their programs, and ``apply`` for training.
    """
    return Plan(
        model=cut.whole,
        start=lambda executable, state, update: PipelineRunner(cut, executable, state, update),
    )


class PipelineRunner:
    """A runner that passes the micro-steps of an update through pipeline stages.

    Args:
        cut: the parts of the program.
        executable: has their programs.
        state: of the session.
        update: of the session.

    Attributes:
        cut: the parts of the program.
    """

    replays = False

    def __init__(self, cut: Cut, executable: Executable, state: DeviceState, update: Update):
        self.cut, self._update, self._device = cut, update, state.device
        self._crew = WorkerPool(cut.stages, share_of_cores(cut.stages))
        self._mark = clock(state.device)
        self._passages: list[Passage] = []
        self._pipeline = Pipeline(
            cut,
            {part.name: executable.compiled[part.name].of_stage() for part in cut.programs},
            lambda part: [state.arguments(part, r) for r in range(state.config.replicas)],
            state.stream,
            state.device,
            self._crew,
            self._mark,
        )

    @property
    def threads(self) -> int:
        """The number of torch's threads for each stage."""
        return self._crew.threads

    @property
    def measured(self) -> Measured | None:
        """Measurements of the latest call, even if incomplete; None before the first update."""
        return measured(self.cut.stages, self._passages) if self._passages else None

    def groups(self, steps: Iterable[Step], watched: bool) -> Iterator[Sequence[Step]]:
        """Yield the micro-steps of each update; all micro-steps of a call without updates."""
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
        """Pass the micro-steps of one update through the stages; see ``Runner``."""
        marks.append(time.perf_counter_ns())  # something has begun
        if group[0][0].index == 0:
            self._passages = []
        passage = self._pipeline.run(
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

    def alone(self) -> None:
        """Return None: even one micro-step passes through all stages."""
        return None

    def _timed(self, passage: Passage, count: int) -> tuple[Passage, list[int]]:
        """Return the passage with times in ns, and the end of each of ``count`` micro-steps.

        Micro-steps overlap; a micro-step's time begins when the previous one has left the pipeline.
        The last one's ends with the update.
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
        """End the worker threads of the pipeline; another call starts them again."""
        self._crew.close()
