"""Bytes of programs by role, read off their slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from abele.program.core import Program, Role

ROLES = (Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE, Role.ACCUMULATOR, Role.HYPER)


def state_bytes(programs: Sequence[Program]) -> dict[str, int]:
    """Bytes of one copy of each kind of state; programs share what has the same name."""
    slots = {(slot.role, slot.name): slot for program in programs for slot in program.inputs}
    total = {role.value: 0 for role in ROLES}
    for (role, _), slot in slots.items():
        if role in ROLES:
            total[role.value] += torch.empty(slot.shape, dtype=slot.dtype, device="meta").nbytes
    return total


def given_bytes(program: Program) -> dict[str, int]:
    """Bytes of the inputs of a program by role, without the roles that it has none of."""
    total: Counter[str] = Counter()
    for slot in program.inputs:
        total[slot.role.value] += torch.empty(slot.shape, dtype=slot.dtype, device="meta").nbytes
    return dict(total)
