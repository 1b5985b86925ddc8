"""Plan of the stages of a pipeline: their devices, memory and timing."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from abele.fit.estimate import Interval, Part, Verdict
from abele.fit.limits import Limit
from abele.pipeline import running
from abele.pipeline.runner import picture
from abele.pipeline.running import Task, Timed
from abele.stage.chain import Chain, Times
from abele.stage.memory import Device, Memory, Span

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
    make = running.one_forward_one_backward if training else running.forward_only
    left = [list(reversed(tasks)) for tasks in make(len(times), micro_batches)]
    free = [0.0] * (max(homes) + 1)
    done: dict[Task, tuple[float, float]] = {}
    while any(left):
        begins: list[tuple[float, Task]] = []
        for stage, tasks in enumerate(left):
            needed = running.needs(tasks[-1], len(times), training=training) if tasks else []
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
    """The work and memory of one device.

    Attributes:
        device: number of the device.
        stages: stages on the device.
        parts: bytes by role.
        verdict: whether the memory suffices.
        time: time of its stages for one micro-batch.
    """

    device: int
    stages: tuple[int, ...]
    parts: tuple[Part, ...]
    verdict: Verdict
    time: float

    @property
    def size(self) -> Interval:
        """Estimated memory of a stage in bytes."""
        return Interval.sum(part.size for part in self.parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Stages, their devices and what follows.

    Attributes:
        chain: the model; its times are those that ``measured`` says.
        spans: the units of each stage.
        homes: the device of each stage.
        limit: the memory of each device.
        device: what that is.
        micro_batches: that one update sees, or one call without training.
        measured: times are seconds of this machine, not modelled ones.
    """

    chain: Chain
    spans: tuple[Span, ...]
    homes: tuple[int, ...]
    limit: Limit
    device: Device
    micro_batches: int
    measured: bool = False

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.spans)

    @property
    def needed_micro_batches(self) -> int:
        """Number of micro-batches that fill the pipeline."""
        return 2 * self.stages - 1 if self.chain.training else self.stages

    @property
    def names(self) -> tuple[str, ...]:
        """The module at whose call each stage begins; empty for the model itself."""
        return tuple(self.chain.units[span.begin].name for span in self.spans)

    @property
    def times(self) -> tuple[Times, ...]:
        """Times of each stage for one micro-batch."""
        return tuple(
            Times(
                sum(unit.forward for unit in self.chain.units[span.begin : span.end]),
                sum(unit.backward for unit in self.chain.units[span.begin : span.end]),
            )
            for span in self.spans
        )

    @functools.cached_property
    def loads(self) -> tuple[Load, ...]:
        """Work and memory of each device."""
        memory = Memory(self.chain, self.device)
        return tuple(self._load(memory, device) for device in sorted(set(self.homes)))

    def _load(self, memory: Memory, device: int) -> Load:
        spans = [span for span in self.spans if self.homes[span.stage] == device]
        parts = memory.parts(spans, self.stages, self._filled)
        times = [self.times[span.stage] for span in spans]
        return Load(
            device=device,
            stages=tuple(span.stage for span in spans),
            parts=parts,
            verdict=_verdict(Interval.sum(part.size for part in parts), self.device.size),
            time=sum(each.forward + each.backward for each in times),
        )

    @property
    def verdict(self) -> Verdict:
        """Worst verdict of all devices."""
        return max((load.verdict for load in self.loads), key=list(Verdict).index)

    @property
    def fullest(self) -> Load:
        """The device whose memory is expected to be the fullest."""
        return max(self.loads, key=lambda load: load.size.expected)

    @property
    def computes_again(self) -> bool:
        """Backward computes activations again instead of keeping them."""
        marked = self.device.heeds_marks and any(value.marked for value in self.chain.values)
        return self.chain.training and (marked or (self.device.recomputes and self.stages > 1))

    @property
    def update_time(self) -> float:
        """Time of one update, or of one call for inference, in the unit of the chain's times.

        The pipeline is taken to be full; rematerialization counts as another forward.
        """
        one = self.pace.whole / self._filled * self.micro_batches
        forward = sum(time.forward for time in self.times)
        work = forward + sum(time.backward for time in self.times)
        return one * (work + forward) / work if self.computes_again and work else one

    @property
    def _filled(self) -> int:
        """A pipeline of less than one round is filled for the estimate."""
        return max(self.micro_batches, self.needed_micro_batches)

    @functools.cached_property
    def pace(self) -> Pace:
        """Simulated timing of the pipeline."""
        homes = [sorted(set(self.homes)).index(home) for home in self.homes]
        return pace(self.times, homes, self._filled, training=self.chain.training)

    def data(self) -> dict[str, Any]:
        """Everything as JSON values; bytes, shares from 0 to 1, measured times in seconds."""
        return {
            "version": 1,
            "verdict": self.verdict.value,
            "limit": dataclasses.asdict(self.limit),
            "micro_batches": self.micro_batches,
            "needed_micro_batches": self.needed_micro_batches,
            "measured": self.measured,
            "bubble": self.pace.bubble,
            "stages": self._stage_data(),
            "devices": [
                {
                    "device": load.device,
                    "stages": list(load.stages),
                    "verdict": load.verdict.value,
                    "bytes": dataclasses.asdict(load.size),
                    "parts": [dataclasses.asdict(part) for part in load.parts],
                    "waits": waits,
                }
                for load, waits in zip(self.loads, self.pace.waits, strict=True)
            ],
        }

    def _stage_data(self) -> Sequence[dict[str, Any]]:
        work = sum(time.forward + time.backward for time in self.times) or 1.0
        return [
            {
                "begins": name,
                "device": home,
                "share": (time.forward + time.backward) / work,
                **(dataclasses.asdict(time) if self.measured else {}),
            }
            for name, home, time in zip(self.names, self.homes, self.times, strict=True)
        ]


def _verdict(size: Interval, limit: int) -> Verdict:
    if size.high <= limit:
        return Verdict.FITS
    return Verdict.DOES_NOT_FIT if size.low > limit else Verdict.UNCERTAIN
