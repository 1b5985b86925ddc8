"""Memory estimates: intervals, parts by role, possible peaks, and the verdict on a limit."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from abele.fit.limits import Limit, bytes_text, shown
from abele.program import Program
from abele.report import words
from abele.targets import Target


def as_json(value: Any) -> dict[str, Any]:
    """Return a dataclass, which may contain further dataclasses, as JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(value)))


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimated number with a lower and an upper bound.

    Attributes:
        low: lower bound.
        expected: most likely value.
        high: upper bound.
    """

    low: float
    expected: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Interval:
        """Return the interval of a number that is known exactly."""
        return cls(value, value, value)

    @classmethod
    def sum(cls, intervals: Iterable[Interval]) -> Interval:
        """Return the sum of independent intervals."""
        several = list(intervals)
        return cls(
            sum(each.low for each in several),
            sum(each.expected for each in several),
            sum(each.high for each in several),
        )

    def texts(self) -> tuple[str, str, str]:
        """Format lower bound, expected value and upper bound as bytes."""
        return bytes_text(self.low), bytes_text(self.expected), bytes_text(self.high)

    def scaled(self, factor: float) -> Interval:
        """Multiply bounds and expected value by a factor."""
        return Interval(self.low * factor, self.expected * factor, self.high * factor)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """The bytes of one role, such as parameters, in a memory estimate.

    Attributes:
        role: use of the memory: ``parameters``, ``kept for backward``.
        size: bytes.
        always: whether the memory is in use during the entire run.
    """

    role: str
    size: Interval
    always: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moment:
    """A moment of a run at which memory use may be at its peak.

    Attributes:
        name: ``start``, or the name of a program and its activity.
        operation: description of the operation that runs.
        parts: live memory by role.
        lines: bytes of computed values by line of the user's source, the most first.
    """

    name: str
    operation: str
    parts: tuple[Part, ...]
    lines: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])

    @property
    def size(self) -> Interval:
        """Bytes of live memory at this moment."""
        return Interval.sum(part.size for part in self.parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """FLOPs and bytes moved by one call of lowered programs.

    Attributes:
        operations: FLOPs of the operators for which torch has a formula.
        bytes: bytes of all tensors that operators read and write, each once per use.
    """

    operations: int
    bytes: int

    def ratios(self, before: Work) -> dict[str, float]:
        """Return the ratios of FLOPs and bytes to those of other work, except divisions by 0."""
        pairs = {
            "FLOPs": (self.operations, before.operations),
            "bytes moved": (self.bytes, before.bytes),
        }
        return {name: now / then for name, (now, then) in pairs.items() if then}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimated memory of a run.

    Attributes:
        target: name of the target.
        lowerings: lowering and reason of each program by name.
        moments: possible peaks, at least one; moments of the same name are alternatives.
        work: work of a call of the model.
    """

    target: str
    lowerings: Mapping[str, str]
    moments: tuple[Moment, ...]
    work: Work

    @property
    def peak(self) -> Moment:
        """The moment at which the most memory is expected to be in use."""
        return max(self.moments, key=lambda moment: moment.size.expected)

    @property
    def size(self) -> Interval:
        """Bytes at the peak, with each bound taken at the moment where it is largest.

        Of moments of the same name, which are alternatives, the smallest gives the lower bound.
        """
        ways: dict[str, list[Interval]] = {}
        for moment in self.moments:
            ways.setdefault(moment.name, []).append(moment.size)
        sizes = [size for several in ways.values() for size in several]
        return Interval(
            max(min(size.low for size in several) for several in ways.values()),
            max(size.expected for size in sizes),
            max(size.high for size in sizes),
        )

    def data(self) -> dict[str, Any]:
        """Return the estimate as JSON values."""
        moments = [{**as_json(each), "bytes": as_json(each.size)} for each in self.moments]
        return {
            "target": self.target,
            "lowerings": dict(self.lowerings),
            "bytes": as_json(self.size),
            "work": as_json(self.work),
            "peak": self.peak.name,
            "moments": moments,
        }


class Verdict(enum.StrEnum):
    """Verdicts on whether a program fits into memory."""

    FITS = "fits"
    UNCERTAIN = "uncertain"
    DOES_NOT_FIT = "does not fit"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """The comparison of a memory estimate with a limit.

    Attributes:
        size: bytes at the peak, with ``beside``.
        beside: memory of the process itself, in addition to the programs.
        estimate: estimate of the programs.
    """

    verdict: Verdict
    limit: Limit
    size: Interval
    beside: tuple[Part, ...]
    estimate: Estimate

    def sentence(self) -> str:
        """Return a sentence that says whether the program fits into the limit."""
        limit = shown(self.limit.name, self.limit.size)
        needs = f"{bytes_text(self.size.low)} to {bytes_text(self.size.high)}"
        if bytes_text(self.size.low) == bytes_text(self.size.high):
            needs = bytes_text(self.size.high)
        if self.verdict is Verdict.FITS:
            left = bytes_text(self.limit.size - self.size.high)
            return f"It fits into {limit}: it needs {needs}, so that {left} are left."
        if self.verdict is Verdict.DOES_NOT_FIT:
            missing = bytes_text(self.size.low - self.limit.size)
            return f"It does not fit into {limit}: it needs {needs}, {missing} more than there are."
        return f"It is uncertain whether it fits into {limit}: it needs {needs}."

    def data(self) -> dict[str, Any]:
        """Return the estimate and its verdict as JSON values."""
        return {
            "version": 1,
            "verdict": self.verdict.value,
            "sentence": self.sentence(),
            "limit": as_json(self.limit),
            "bytes": as_json(self.size),
            "beside": [as_json(part) for part in self.beside],
            "estimate": self.estimate.data(),
        }


def verdict_on(size: Interval, limit: float) -> Verdict:
    """Return whether estimated bytes fit within a limit for certain, possibly or not at all."""
    if size.high <= limit:
        return Verdict.FITS
    return Verdict.DOES_NOT_FIT if size.low > limit else Verdict.UNCERTAIN


def decide(estimate: Estimate, limit: Limit, beside: tuple[Part, ...] = ()) -> Answer:
    """Return the verdict on a memory estimate and a limit.

    Args:
        estimate: estimate of the programs.
        limit: memory limit.
        beside: memory in use in addition to the programs.
    """
    size = Interval.sum((estimate.size, *(part.size for part in beside)))
    verdict = verdict_on(size, limit.size)
    return Answer(verdict=verdict, limit=limit, size=size, beside=beside, estimate=estimate)


# Python's own memory, threads and libraries may grow by this share while programs run, and by bytes
# for each operation: what Python knows of it, and code that libraries write for it.
_GROWTH = (0.0, 0.05, 0.15)
_OF_OPERATION = (0, 6 * 2**10, 24 * 2**10)


def compare(
    estimated: Estimate, limit: Limit, programs: Sequence[Program], target: Target, *, counted: int
) -> Answer:
    """Compare a memory estimate with a limit, including this process if it shares the memory.

    Args:
        estimated: estimate of the programs.
        limit: memory limit.
        programs: captured programs.
        target: target that would run them.
        counted: bytes of this process's tensors that the estimate includes.
    """
    if not limit.of_process or target.device().type != "cpu":
        return decide(estimated, limit)
    operations = sum(len(each.graph.graph.nodes) for each in programs)
    private = max(0, _status("RssAnon") - counted)  # what the system cannot drop
    size = Interval(
        *(
            private * (1 + share) + each * operations
            for share, each in zip(_GROWTH, _OF_OPERATION, strict=True)
        )
    )
    process = Part(role="Python, torch and what else this process holds", size=size)
    return decide(estimated, limit, (process,))


def growth(device: torch.device) -> int:
    """Return the bytes that this process has used beyond its present memory, at its peak."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    return _status("VmHWM") - _status("VmRSS")


def _status(wanted: str) -> int:
    """Return a size in bytes of this process by its name in ``/proc``; 0 if unknown."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:  # another system than Linux
        return 0
    lines = (line.partition(":") for line in status.splitlines())
    return next((int(v.split()[0]) * 1024 for name, _, v in lines if name == wanted), 0)


_LINES = 8


def part_rows(parts: Iterable[Part]) -> list[tuple[str, ...]]:
    """Return a table row for each role of memory, permanent memory first, then by size."""
    sizes: dict[tuple[bool, str], list[Interval]] = {}
    for part in parts:
        sizes.setdefault((part.always, part.role), []).append(part.size)
    summed = [(*key, Interval.sum(several)) for key, several in sizes.items()]
    summed.sort(key=lambda each: (not each[0], -each[2].expected))
    return [
        (role, *size.texts(), "always" if always else "")
        for always, role, size in summed
        if size.high
    ]


def table(answer: Answer) -> str:
    """Format a memory estimate: verdict, live memory at the peak, and the largest user lines."""
    peak, work = answer.estimate.peak, answer.estimate.work
    rows = [
        ("what", "at least", "expected", "at most", ""),
        *part_rows((*answer.beside, *peak.parts)),
        ("at the peak", *answer.size.texts(), ""),
    ]
    lines = [
        answer.sentence(),
        f"A call computes {words.large(work.operations)}FLOP and moves {bytes_text(work.bytes)}.",
        "",
        f"Most is in use in {peak.name}: {peak.operation}.",
        "",
        *words.aligned(rows, left=(0, 4)),
        "",
    ]
    if peak.lines:
        most = list(peak.lines.items())[:_LINES]
        listed = [("", bytes_text(size), line or "(no line)") for line, size in most]
        lines += ["Lines that take most of it:", *words.aligned(listed, left=(0, 2)), ""]
    lines += [f"{name} runs {why}." for name, why in answer.estimate.lowerings.items()]
    return "\n".join(lines)
