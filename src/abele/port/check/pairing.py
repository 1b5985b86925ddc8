"""Pairs each tensor of an original with the one of its port.

A port often has the model inside of another module, with the loss; then names have a prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        Tensors with the same name, but for a prefix; else with the same values; else, among those
        of the same shape, in the same place of the order.
    """
    paired: dict[str, str] = {}

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

    here, there = digests
    take(lambda name, other: name == other, only=True)
    take(_is_inside, only=True)
    take(lambda name, other: here.get(name, "") == there.get(other), only=True)
    take(lambda name, other: True, only=False)
    return paired


def _is_inside(name: str, other: str) -> bool:
    return name.endswith(f".{other}") or other.endswith(f".{name}")
