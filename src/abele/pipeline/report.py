"""What a pipeline's call took: each stage's time and memory, and how long stages had nothing to do.

Times are measured, wall time on the host's clock; where stages share a core, a stage's time holds
what it waited for the core. Bytes of state are read off the programs; what waits for backward is
counted while it waits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from abele.pipeline.cut import Cut
from abele.pipeline.running import Passage, Timed
from abele.pipeline.schedule import ideal_bubble
from abele.program import Program, Role, summary


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageTimes:
    """One stage in one call.

    Attributes:
        forward_ns: time in its forward, of all micro-batches together.
        backward_ns: likewise in its backward.
        held_bytes: the most that waited for its backward at once.
        held_micro_batches: of how many micro-batches that was, at most.
    """

    forward_ns: int
    backward_ns: int
    held_bytes: int
    held_micro_batches: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """One call.

    Attributes:
        stages: each stage's.
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
        """Time in tasks, of all stages together."""
        return sum(stage.forward_ns + stage.backward_ns for stage in self.stages)

    @property
    def bubble(self) -> float:
        """The share of all stages' time in which they waited, from 0 to 1."""
        if not self.window_ns:
            return 0.0
        return max(0.0, 1 - self.busy_ns / (self.window_ns * len(self.stages)))

    @property
    def ideal_bubble(self) -> float:
        """The bubble of stages that take equally long: (p - 1) / (m + p - 1)."""
        return ideal_bubble(len(self.stages), self.micro_batches)

    @property
    def at_once(self) -> float:
        """How many stages worked at the same time, on average; 1 is no overlap."""
        return self.busy_ns / self.window_ns if self.window_ns else 1.0


def measured(stages: int, passages: Sequence[Passage]) -> Measured:
    """Sums up the passages of one call; their times are in ns."""
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
    """Bytes of each stage's state by kind; what several stages use counts where it comes first."""
    seen: set[tuple[Role, str]] = set()
    by_stage: list[dict[str, int]] = []
    for stage in range(cut.stages):
        programs: list[Program] = []
        for part in cut.parts:
            if part.stage == stage and part.program is not None:
                unseen = [s for s in part.program.inputs if (s.role, s.name) not in seen]
                programs.append(dataclasses.replace(part.program, inputs=tuple(unseen)))
        by_stage.append(summary.state_bytes(programs))
        seen |= {(slot.role, slot.name) for program in programs for slot in program.inputs}
    return by_stage


def timeline(measured: Measured, width: int = 76) -> str:
    """The first passage as a ``picture``.

    Args:
        measured: the call.
        width: characters for the whole passage.
    """
    return picture(measured.times[0], len(measured.stages), width)


def picture(times: Sequence[Timed], stages: int, width: int = 76) -> str:
    """A passage as text: a row per stage, forwards as digits, backwards as letters.

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
