"""A difference between two runs, and when numbers that scatter differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """Something that differs.

    Attributes:
        kind: ``optimizer``, ``options``, ``programs``, ``kernels``, ``kernel time``, ``time`` or
            ``memory``.
        what: what it is.
        first: in the first run.
        second: in the second one.
        change: how much more the second has, in parts of the first; None where that means nothing.
        weight: how large that is, for their order; of a part of something, in parts of the whole.
    """

    kind: str
    what: str
    first: str
    second: str
    change: float | None = None
    weight: float = 0.0


def of_numbers(
    kind: str,
    what: str,
    first: float,
    second: float,
    say: Callable[[float], str],
    *,
    whole: float = 0.0,
) -> Difference:
    """Return the difference of two numbers.

    Args:
        kind: as of ``Difference``.
        what: likewise.
        first: in the first run.
        second: in the second one.
        say: a number in words.
        whole: what they are a part of, if they are.
    """
    change = (second - first) / first if first else None
    weight = abs(second - first) / (whole or abs(first) or abs(second) or 1.0)
    return Difference(
        kind=kind, what=what, first=say(first), second=say(second), change=change, weight=weight
    )


def apart(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return whether three quarters of each lie beyond three quarters of the other.

    Args:
        first: quartiles.
        second: likewise.
    """
    return first[2] < second[0] or second[2] < first[0]
