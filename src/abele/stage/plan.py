"""Plan of pipeline stages: their devices, memory and share of the time."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from abele.fit.estimate import Interval, Part, Verdict, as_json, part_rows, verdict_on
from abele.fit.limits import Limit, bytes_text, shown
from abele.report import words
from abele.stage.memory import Chain, Device, Memory, Span

_ANSWERS = {
    Verdict.FITS: "It fits into",
    Verdict.UNCERTAIN: "It is uncertain whether it fits into",
    Verdict.DOES_NOT_FIT: "It does not fit into",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
    """The time and memory of one pipeline device.

    Attributes:
        device: number of the device.
        stages: stages on the device.
        parts: bytes by role.
        verdict: whether the memory suffices.
        time: modelled time of the stages for one micro-batch.
    """

    device: int
    stages: tuple[int, ...]
    parts: tuple[Part, ...]
    verdict: Verdict
    time: float

    @property
    def size(self) -> Interval:
        """Estimated memory of the pipeline device in bytes."""
        return Interval.sum(part.size for part in self.parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan of pipeline stages on devices, with their memory.

    Attributes:
        chain: the model.
        spans: the units of each stage.
        device: the memory of each device, and how programs use it.
        micro_batches: number of micro-batches in one update, or in one call without training.
    """

    chain: Chain
    spans: tuple[Span, ...]
    homes: tuple[int, ...]
    limit: Limit
    device: Device
    micro_batches: int

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return len(self.spans)

    @property
    def needed_micro_batches(self) -> int:
        """Number of micro-batches that fill the pipeline."""
        return 2 * self.stages - 1 if self.chain.training else self.stages

    @property
    def names(self) -> tuple[str, ...]:
        """Path of the module at whose call each stage begins; empty for the model itself."""
        return tuple(self.chain.units[span.begin].name for span in self.spans)

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of each pipeline stage in the modelled time, from 0 to 1."""
        times = [self._time(span) for span in self.spans]
        return tuple(time / (sum(times) or 1.0) for time in times)

    def _time(self, span: Span) -> float:
        return sum(unit.time for unit in self.chain.units[span.begin : span.end])

    @functools.cached_property
    def loads(self) -> tuple[Load, ...]:
        """Time and memory of each pipeline device."""
        memory = Memory(self.chain, self.device)
        return tuple(self._load(memory, device) for device in sorted(set(self.homes)))

    def _load(self, memory: Memory, device: int) -> Load:
        spans = [span for span in self.spans if self.homes[span.stage] == device]
        # A pipeline that is not filled is refused; the estimate is of one that is.
        count = max(self.micro_batches, self.needed_micro_batches)
        parts = memory.parts(spans, self.stages, count)
        return Load(
            device=device,
            stages=tuple(span.stage for span in spans),
            parts=parts,
            verdict=verdict_on(Interval.sum(part.size for part in parts), self.device.size),
            time=sum(map(self._time, spans)),
        )

    @property
    def verdict(self) -> Verdict:
        """Worst memory verdict of all devices."""
        return max((load.verdict for load in self.loads), key=list(Verdict).index)

    @property
    def fullest(self) -> Load:
        """The device with the largest expected memory."""
        return max(self.loads, key=lambda load: load.size.expected)

    def data(self) -> dict[str, Any]:
        """Return the plan as JSON values: bytes, and shares from 0 to 1."""
        stages = zip(self.names, self.homes, self.shares, strict=True)
        return {
            "version": 1,
            "verdict": self.verdict.value,
            "limit": as_json(self.limit),
            "micro_batches": self.micro_batches,
            "needed_micro_batches": self.needed_micro_batches,
            "stages": [{"begins": n, "device": home, "share": share} for n, home, share in stages],
            "devices": [{**as_json(load), "bytes": as_json(load.size)} for load in self.loads],
        }

    def text(self) -> str:
        """Format the plan: verdict, a row per stage, and memory of the fullest device."""
        return "\n\n".join([self._sentence(), self._table(), self._memory_table()])

    def _sentence(self) -> str:
        count = len(self.loads)
        memory = shown(self.limit.name, self.device.size)
        place = memory if count == 1 else f"{count} times {memory}"
        fullest = self.fullest
        size = f"{bytes_text(fullest.size.low)} to {bytes_text(fullest.size.high)}"
        where = "it" if count == 1 else f"device {fullest.device}, the fullest,"
        return f"{_ANSWERS[self.verdict]} {place}: {where} needs {size}."

    def _table(self) -> str:
        head = ("device", "stage", "begins at", "time", "at least", "expected", "at most", "")
        rows: list[tuple[str, ...]] = [head]
        for load in self.loads:
            device = [str(load.device), *load.size.texts(), load.verdict.value]
            for stage in load.stages:
                name, share = self.names[stage] or "(the model)", f"{self.shares[stage]:.1%}"
                rows.append((device[0], str(stage), name, share, *device[1:]))
                device = [""] * len(device)
        return "\n".join(words.aligned(rows, left=(2, 7)))

    def _memory_table(self) -> str:
        fullest = self.fullest
        head = (f"device {fullest.device}", "at least", "expected", "at most", "")
        return "\n".join(words.aligned([head, *part_rows(fullest.parts)], left=(0, 4)))
