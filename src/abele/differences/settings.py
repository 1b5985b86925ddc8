"""The ways in which a program may be run, by the names that people give them."""

from __future__ import annotations

import dataclasses

import torch

from abele.compile import verdict
from abele.errors import DifferenceError
from abele.targets import NAMES, Lowering, Target, get_target
from abele.targets.interpretation import Types

_TYPES = {
    "float32": None,  # as it was captured
    "reference": None,
    "half": torch.float16,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting(Types):
    """One way to run a program.

    Attributes:
        name: as given.
        dtype: the type that takes the place of float32 in an interpreted program; None for none.
        target: what compiles the program; None if it is interpreted.
        lowering: the way in which it does; None for the one it would choose.
    """

    name: str
    target: Target | None = None
    lowering: Lowering | None = None

    @property
    def tolerance(self) -> float:
        """How far a tensor may be off, relative to its norm."""
        return verdict.tolerance(self.dtype or torch.float32)


TRUTH = Setting(name="float64", dtype=torch.float64)
PLAIN = Setting(name="reference")


def setting(name: str) -> Setting:
    """The setting called ``name``.

    Args:
        name: ``reference`` (or ``float32``, which is the same), ``cpu`` or ``cuda``, one of their
            lowerings as ``cpu:emitted``, or a type: ``half``, ``bfloat16``, ``float64``.

    Raises:
        DifferenceError: there is none of that name, or it cannot be used here.
    """
    if name in _TYPES:
        return Setting(name=name, dtype=_TYPES[name])
    target_name, _, lowering_name = name.partition(":")
    compiled = [each for each in NAMES if each not in ("reference", "null")]
    if target_name not in compiled:
        ways = ", ".join((*_TYPES, *compiled))
        raise DifferenceError(
            f"{name!r} is no way to run a program. Choose two of {ways}, or a lowering such as "
            "cpu:emitted."
        )
    target = get_target(target_name)
    problem = target.cannot_compile()
    if problem is not None:
        raise DifferenceError(f"{name!r} cannot be used here: {problem}")
    lowering = None
    if lowering_name:
        known = {each.name: each for each in target.lowerings}
        if lowering_name not in known:
            raise DifferenceError(
                f"Target {target_name!r} has no lowering {lowering_name!r}, but {', '.join(known)}."
            )
        lowering = known[lowering_name]
    return Setting(name=name, target=target, lowering=lowering)
