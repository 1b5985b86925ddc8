"""Estimates of memory: intervals, parts by role, moments of a run, and the verdict on a limit."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from abele.fit.limits import Limit, bytes_text, shown
from abele.program import Program
from abele.report import words
from abele.targets import Target


@dataclasses.dataclass(frozen=True)
class Interval:
    """Between two numbers, and what is most likely.

    Attributes:
        low: it takes this at least.
        expected: the likeliest; between the other two.
        high: it takes this at most.
    """

    low: float
    expected: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Interval:
        """Return the interval of one known number."""
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

    def scaled(self, factor: float) -> Interval:
        """Every number times a factor."""
        return Interval(self.low * factor, self.expected * factor, self.high * factor)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A share of the memory at some moment.

    Attributes:
        role: what it is for, in words: ``parameters``, ``kept for backward``.
        size: bytes.
        always: it lives for the whole run.
    """

    role: str
    size: Interval
    always: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tensor:
    """A buffer at the peak.

    Attributes:
        name: name of the operation that computes it.
        role: role of its ``Part``.
        size: bytes.
        module: path of the module that computes it; empty outside all.
        line: ``FILE:LINE in FUNCTION`` of the user's source, or empty.
    """

    name: str
    role: str
    size: int
    module: str
    line: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moment:
    """A moment of the run that may be the peak.

    Attributes:
        name: ``start``, or the name of a program and what it does.
        operation: what runs then, in words.
        parts: everything that is alive, by role.
        tensors: what programs have made of it, the largest first.
    """

    name: str
    operation: str
    parts: tuple[Part, ...]
    tensors: tuple[Tensor, ...] = ()

    @property
    def size(self) -> Interval:
        """Bytes of all parts of an estimate together."""
        return Interval.sum(part.size for part in self.parts)

    def by_line(self) -> dict[str, int]:
        """Bytes of what programs have made, by line of the user's source, the largest first."""
        lines: dict[str, int] = {}
        for each in self.tensors:
            lines[each.line] = lines.get(each.line, 0) + each.size
        return dict(sorted(lines.items(), key=lambda item: -item[1]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Work of one call, as its programs are lowered.

    Attributes:
        operations: floating-point operations of those operators that torch has a formula for.
        bytes: of all tensors that operators read and make, each once per use.
    """

    operations: int
    bytes: int

    def ratios(self, before: Work) -> dict[str, float]:
        """Return the quotients by other work, by name; without those that have nothing below."""
        pairs = {
            "FLOPs": (self.operations, before.operations),
            "bytes moved": (self.bytes, before.bytes),
        }
        return {name: now / then for name, (now, then) in pairs.items() if then}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """The memory of a run.

    Attributes:
        target: where the programs run.
        lowerings: how each program is lowered and why, by its name.
        basis: where the numbers of each program come from, in words.
        moments: those that may be the peak; at least one. Of several with one name only one will
            be.
        work: of a call of the model.
    """

    target: str
    lowerings: Mapping[str, str]
    basis: Mapping[str, str]
    moments: tuple[Moment, ...]
    work: Work

    @property
    def peak(self) -> Moment:
        """The moment at which most is expected to be in use."""
        return max(self.moments, key=lambda moment: moment.size.expected)

    @property
    def size(self) -> Interval:
        """Bytes at the peak; each end is that of the moment with most there.

        Moments of one name are ways of which only one will be: the least of them counts below.
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
        """Return all fields as JSON values."""
        moments = [
            {
                "name": moment.name,
                "operation": moment.operation,
                "bytes": dataclasses.asdict(moment.size),
                "parts": [dataclasses.asdict(part) for part in moment.parts],
                "tensors": [dataclasses.asdict(tensor) for tensor in moment.tensors[:20]],
            }
            for moment in self.moments
        ]
        return {
            "target": self.target,
            "lowerings": dict(self.lowerings),
            "basis": dict(self.basis),
            "bytes": dataclasses.asdict(self.size),
            "work": dataclasses.asdict(self.work),
            "peak": self.peak.name,
            "moments": moments,
        }


class Verdict(enum.StrEnum):
    """The answer in a word."""

    FITS = "fits"
    UNCERTAIN = "uncertain"
    DOES_NOT_FIT = "does not fit"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer and what it rests on.

    Attributes:
        verdict: the answer.
        limit: what it was compared with.
        size: bytes at the peak, with ``beside``.
        beside: what takes memory beside the programs: the process itself.
        estimate: of the programs.
    """

    verdict: Verdict
    limit: Limit
    size: Interval
    beside: tuple[Part, ...]
    estimate: Estimate

    def sentence(self) -> str:
        """Return the verdict in a sentence."""
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
        """Return all fields as JSON values."""
        return {
            "version": 1,
            "verdict": self.verdict.value,
            "sentence": self.sentence(),
            "limit": dataclasses.asdict(self.limit),
            "bytes": dataclasses.asdict(self.size),
            "beside": [dataclasses.asdict(part) for part in self.beside],
            "estimate": self.estimate.data(),
        }


def decide(estimate: Estimate, limit: Limit, beside: tuple[Part, ...] = ()) -> Answer:
    """Compare an estimate with a limit.

    Args:
        estimate: of the programs.
        limit: how much memory there is.
        beside: what takes memory of ``limit`` beside them.
    """
    size = Interval.sum((estimate.size, *(part.size for part in beside)))
    verdict = Verdict.UNCERTAIN
    if size.high <= limit.size:
        verdict = Verdict.FITS
    elif size.low > limit.size:
        verdict = Verdict.DOES_NOT_FIT
    return Answer(verdict=verdict, limit=limit, size=size, beside=beside, estimate=estimate)


# Python's own memory, threads and libraries may grow by this while programs run.
_GROWTH = (0.0, 0.05, 0.15)
# Likewise for each operation: what Python knows of it, and code that libraries write for it.
_OF_OPERATION = (0, 6 * 2**10, 24 * 2**10)


def default_limit(target: Target) -> str:
    """Return the name of the memory of a target's device."""
    return "cuda:0" if target.device().type == "cuda" else "cpu"


def compare(
    estimated: Estimate, limit: Limit, programs: Sequence[Program], target: Target, *, counted: int
) -> Answer:
    """Compare an estimate with a limit, with the process beside it where they share a memory.

    Args:
        estimated: of the programs.
        limit: how much memory there is.
        programs: as captured.
        target: what would run them.
        counted: bytes of tensors that this process has, and the estimate counts.
    """
    parts = ()
    if limit.of_process and target.device().type == "cpu":
        operations = sum(len(each.graph.graph.nodes) for each in programs)
        parts = (beside(counted, operations),)
    return decide(estimated, limit, parts)


def beside(counted: int, operations: int) -> Part:
    """Memory of this process that is in use now, but for tensors that an estimate counts.

    Args:
        counted: bytes of these tensors.
        operations: of the programs, which are to be prepared yet.
    """
    size = max(0, _private() - counted)
    return Part(
        role="Python, torch and what else this process holds", size=_grown(size, operations)
    )


def _grown(size: int, operations: int) -> Interval:
    low, expected, high = (
        size * (1 + share) + each * operations
        for share, each in zip(_GROWTH, _OF_OPERATION, strict=True)
    )
    return Interval(low, expected, high)


def _private() -> int:
    """Bytes in use that no file backs; the others can be dropped where memory is short."""
    for line in _status().splitlines():
        name, _, value = line.partition(":")
        if name == "RssAnon":
            return int(value.split()[0]) * 1024
    return 0


def _status() -> str:
    try:
        return Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:  # another system than Linux
        return ""


_LINES = 8


def table(answer: Answer) -> str:
    """Format the verdict, the live memory at the peak, and the user's lines with the most bytes."""
    peak, work = answer.estimate.peak, answer.estimate.work
    parts = _by_role([*answer.beside, *peak.parts])
    rows = [_row(part) for part in sorted(parts, key=_order) if part.size.high]
    rows.append(("at the peak", *_sizes(answer.size), ""))
    head = ("what", "at least", "expected", "at most", "")
    lines = [
        answer.sentence(),
        f"A call computes {words.large(work.operations)}FLOP and moves {bytes_text(work.bytes)}.",
        "",
        f"Most is in use in {peak.name}: {peak.operation}.",
        "",
    ]
    lines += words.aligned([head, *rows], left=(0, 4))
    lines += _by_line(answer)
    lines += ["", *(f"{name} runs {why}." for name, why in answer.estimate.lowerings.items())]
    return "\n".join(lines)


def _by_role(parts: list[Part]) -> list[Part]:
    """Sum the memory of parts (such as weights or activations) by their role."""
    sizes: dict[tuple[str, bool], list[Interval]] = {}
    for part in parts:
        sizes.setdefault((part.role, part.always), []).append(part.size)
    return [
        Part(role=role, size=Interval.sum(several), always=always)
        for (role, always), several in sizes.items()
    ]


def _order(part: Part) -> tuple[bool, float]:
    return not part.always, -part.size.expected


def _row(part: Part) -> tuple[str, ...]:
    return part.role, *_sizes(part.size), "always" if part.always else ""


def _sizes(size: Interval) -> tuple[str, str, str]:
    return bytes_text(size.low), bytes_text(size.expected), bytes_text(size.high)


def _by_line(answer: Answer) -> list[str]:
    lines = answer.estimate.peak.by_line()
    if not lines:
        return []
    rows = [(bytes_text(size), line or "(no line)") for line, size in list(lines.items())[:_LINES]]
    width = max(len(size) for size, _ in rows)
    texts = [f"  {size:>{width}}  {line}" for size, line in rows]
    more = len(lines) - len(rows)
    return [
        "",
        "Lines that take most of it:",
        *texts,
        *([f"  and {more} more"] if more > 0 else []),
    ]
