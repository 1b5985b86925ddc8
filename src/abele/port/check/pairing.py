"""Pairs each model and each tensor of an original with the one of its port.

A port often has the model inside of another module, with the loss; then names have a prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Facts = Mapping[str, Mapping[str, Any]]


def pairs(
    original: Facts,
    port: Facts,
    digests: tuple[Mapping[str, str], Mapping[str, str]],
) -> dict[str, str]:
    """The name of each tensor in the port by its name in the original, for those that are in both.

    Args:
        original: shape and kind of each tensor by name.
        port: likewise.
        digests: of both at the start, as far as they are known.

    Returns:
        Tensors with values that no other one of the shape has, and those beside them; else with
        the same name, but for a prefix; else with the same values; else, among those of the same
        shape, in the same place of the order.
    """
    paired: dict[str, str] = {}
    here, there = digests

    def take(alike: Callable[[str, str], bool], *, only: bool) -> None:
        """Pair what is alike; where ``only``, if nothing else is."""
        free = [name for name in port if name not in paired.values()]
        for name, facts in original.items():
            if name in paired:
                continue
            places = (facts["shape"], facts["kind"])
            fits = [o for o in free if (port[o]["shape"], port[o]["kind"]) == places]
            fits = [other for other in fits if alike(name, other)]
            if fits and (len(fits) == 1 or not only):
                paired[name] = fits[0]
                free.remove(fits[0])

    def same_values(name: str, other: str) -> bool:
        return here.get(name, "") == there.get(other)

    # Two networks of one program may have the same names, each after another prefix.
    take(lambda name, other: same_values(name, other) and _prefixes(name, other) is not None,
         only=True)  # fmt: skip
    known = {_prefixes(name, other) for name, other in paired.items()}
    take(lambda name, other: _prefixes(name, other) in known, only=True)
    take(lambda name, other: name == other, only=True)
    take(_is_inside, only=True)
    take(same_values, only=True)
    take(lambda name, other: True, only=False)
    return paired


def models(original: Sequence[Facts], port: Sequence[Facts]) -> list[int]:
    """Which model of a port each model of its original is, where both have as many.

    Args:
        original: shape and kind of each model's tensors by name, in the order of first updates.
        port: likewise.

    Returns:
        The first one that is left of those with most of the model's tensors.
    """
    left = list(range(len(port)))
    taken: list[int] = []
    for facts in original:
        best = max(left, key=lambda number: (_alike(facts, port[number]), -number))
        left.remove(best)
        taken.append(best)
    return taken


def _alike(original: Facts, port: Facts) -> int:
    """How many tensors have one of the same shape, and of the same name but for a prefix."""
    return sum(
        any(
            other["shape"] == facts["shape"] and _prefixes(name, theirs) is not None
            for theirs, other in port.items()
        )
        for name, facts in original.items()
    )


def _prefixes(name: str, other: str) -> tuple[str, str] | None:
    """What is before the part that two names share at their end; None if they share none."""
    mine, theirs = name.split("."), other.split(".")
    while mine and theirs and mine[-1] == theirs[-1]:
        mine.pop()
        theirs.pop()
    before = ".".join(mine), ".".join(theirs)
    return None if before == (name, other) else before


def _is_inside(name: str, other: str) -> bool:
    return name.endswith(f".{other}") or other.endswith(f".{name}")
