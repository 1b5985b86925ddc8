"""Time of a pipeline, and the idle share of its devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from abele.pipeline import schedule
from abele.pipeline.report import picture
from abele.pipeline.running import Timed
from abele.pipeline.schedule import Task
from abele.stage.chain import Times

#: Micro-batches of the picture: as many as fill a pipeline and empty it again.
_SHOWN = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pace:
    """The timing of one update, or of one call for inference.

    Attributes:
        whole: duration, in the unit of the stages' times.
        waits: idle share of each device, from 0 to 1.
        picture: the first micro-batches as text.
    """

    whole: float
    waits: tuple[float, ...]
    picture: str

    @property
    def bubble(self) -> float:
        """The share of all devices' time in which they wait, from 0 to 1."""
        return sum(self.waits) / len(self.waits)


def pace(
    times: Sequence[Times], homes: Sequence[int], micro_batches: int, *, training: bool
) -> Pace:
    """Simulate a pipeline.

    Args:
        times: times of each stage for one micro-batch.
        homes: device of each stage; a device does one task at a time.
        micro_batches: number of micro-batches.
        training: micro-batches have a backward.
    """
    few = min(micro_batches, 2 * len(times))
    shown = _simulated(times, homes, min(micro_batches, _SHOWN * len(times)), training)
    first, again = (_end(_simulated(times, homes, n, training)) for n in (few, 2 * few))
    # Once it is full, each further micro-batch takes as long as the one before.
    whole = first + (again - first) / few * (micro_batches - few)
    busy = [0.0] * (max(homes) + 1)
    for home, time in zip(homes, times, strict=True):
        busy[home] += micro_batches * (time.forward + time.backward)
    waits = tuple(max(0.0, 1 - each / whole) if whole else 0.0 for each in busy)
    return Pace(whole=whole, waits=waits, picture=_drawn(shown, len(times)))


def _simulated(
    times: Sequence[Times], homes: Sequence[int], micro_batches: int, training: bool
) -> dict[Task, tuple[float, float]]:
    """Return begin and end of each task; a device first does the task that can begin first."""
    make = schedule.one_forward_one_backward if training else schedule.forward_only
    left = [list(reversed(tasks)) for tasks in make(len(times), micro_batches)]
    free = [0.0] * (max(homes) + 1)
    done: dict[Task, tuple[float, float]] = {}
    while any(left):
        begins: list[tuple[float, Task]] = []
        for stage, tasks in enumerate(left):
            needed = schedule.needs(tasks[-1], len(times), training=training) if tasks else []
            if tasks and all(task in done for task in needed):
                ready = [free[homes[stage]], *(done[task][1] for task in needed)]
                begins.append((max(ready), tasks[-1]))
        begin, task = min(begins)
        time = times[task.stage]
        end = begin + (time.backward if task.backward else time.forward)
        done[task] = begin, end
        free[homes[task.stage]] = end
        left[task.stage].pop()
    return done


def _end(done: dict[Task, tuple[float, float]]) -> float:
    return max(end for _, end in done.values())


def _drawn(done: dict[Task, tuple[float, float]], stages: int) -> str:
    unit = (_end(done) or 1.0) / 10**6
    tasks = [Timed(task, int(b / unit), int(e / unit)) for task, (b, e) in done.items()]
    return picture(tasks, stages)
