"""Units that read only constants, which run once for many calls.

    scale = weight / sqrt(var + eps)           first call, or constants have changed: scale, packed
    packed = pack(weight.T)               ->
    y = multiply(x, packed) * scale            each call: y

Constants are the parameters and buffers of a program that changes none of its state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from abele.passes.of_lowerings.constant_convolutions import has_constants
from abele.program import Program, Role
from abele.targets.cpu.emitted.memory import Lives, used_by
from abele.targets.translation.groups import Unit
from abele.targets.translation.operations import Foreign
from abele.targets.translation.places import Buffer, Kind, Place


def constant_slots(program: Program) -> list[int]:
    """Return the positions of a program's constants among its inputs; none if it has state."""
    if not has_constants(program):
        return []
    roles = Role.PARAMETER, Role.BUFFER
    return [index for index, slot in enumerate(program.inputs) if slot.role in roles]


def prepared_units(
    units: Sequence[Unit], program: Program, inputs: Sequence[Place]
) -> tuple[list[Unit], list[Unit]]:
    """Divide units into those that run once and the others, both in their order.

    Args:
        units: in execution order.
        program: whose constants they read.
        inputs: views of the program's arguments.
    """
    constants = {inputs[index].buffer for index in constant_slots(program)}
    if not constants:
        return [], list(units)
    once = [unit for unit in units if not _computes_results(unit)]
    changing = {place.buffer for place in inputs} - constants
    while True:  # what is written by others, too, changes with each call
        alone = set(once)
        for unit in units:
            if unit not in alone:
                changing.update(place.buffer for each in unit.operations for place in each.writes)
        kept = [unit for unit in once if changing.isdisjoint(used_by(unit))]
        if len(kept) == len(once):
            return once, [unit for unit in units if unit not in alone]
        once = kept


def _computes_results(unit: Unit) -> bool:
    """Return whether torch computes a unit, or a caller gets what it writes."""
    return isinstance(unit.operations[0], Foreign) or any(
        place.buffer.kind is not Kind.ARENA for each in unit.operations for place in each.writes
    )


def lasting(lives: Lives, prepared: Sequence[Unit], others: Sequence[Unit]) -> Lives:
    """Extend the lives of prepared values that other units read to all calls."""
    made: Collection[Buffer] = {buffer for unit in prepared for buffer in used_by(unit)}
    last = len(prepared) + len(others) - 1
    read = {buffer for unit in others for buffer in used_by(unit)} & made
    return {
        buffer: (first, last if buffer in read else end) for buffer, (first, end) in lives.items()
    }
