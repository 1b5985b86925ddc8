"""Estimates of memory: intervals, parts by role, moments of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any


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
        """Bytes of all parts."""
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
