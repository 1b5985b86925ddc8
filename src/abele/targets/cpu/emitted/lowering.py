"""Lowering by C++ that is written for the program."""

from __future__ import annotations

import dataclasses

from abele.passes.of_lowerings.few_channel_convolutions import few_channel_convolutions
from abele.passes.of_lowerings.summed_products import summed_products
from abele.program import Program
from abele.targets.base import Compiled, Lowering, require_code
from abele.targets.cpu.emitted import build, choice, source
from abele.targets.cpu.emitted.groups import Unit, grouped
from abele.targets.cpu.emitted.memory import planned
from abele.targets.cpu.emitted.operations import Translation
from abele.targets.cpu.emitted.order import lifetimes, ordered
from abele.targets.cpu.emitted.places import Buffer, Kind
from abele.targets.cpu.emitted.run import Runner
from abele.targets.cpu.emitted.translate import translate
from abele.targets.cpu.index_checks import checked


class Emitted(Lowering):
    """C++ of our own, compiled in seconds."""

    name = "emitted"
    compiles = True
    passes = (few_channel_convolutions, summed_products)

    def why(self, program: Program) -> str | None:
        """Take programs of operators that mostly become code."""
        return choice.why(program)

    def compile(self, program: Program) -> Compiled:
        """Write the code and compile it."""
        plan = planned_code(program)
        return _runnable(program, plan, build.compiled(program.name, plan.source.text))

    def load(self, program: Program, payload: bytes) -> Compiled:
        """Map the compiled code into this process, and plan again how it is called."""
        require_code(payload, "cpu")
        return _runnable(program, planned_code(program), payload)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is known about a program's code before it is compiled."""

    translation: Translation
    source: source.Source
    offsets: dict[Buffer, int]
    size: int


def planned_code(program: Program) -> Plan:
    """Translate, group, order, place in memory and write a program."""
    translation = translate(program)
    units = ordered(grouped(translation.operations))
    kept = _kept(units, translation)
    lives = lifetimes(units)
    offsets, size = planned({buffer: life for buffer, life in lives.items() if buffer in kept})
    return Plan(translation, source.write(units, offsets, kept), offsets, size)


def _kept(units: list[Unit], translation: Translation) -> set[Buffer]:
    """The memory that has to be written: that of other results stays in registers."""
    users: dict[Buffer, set[Unit]] = {}
    for unit in units:
        for operation in unit.operations:
            for place in (*operation.reads, *operation.writes):
                users.setdefault(place.buffer, set()).add(unit)
    returned = {place.buffer for place in translation.outputs}
    written = {
        place.buffer
        for unit in units
        if not unit.elementwise
        for each in unit.operations
        for place in each.writes
    }
    return written | {
        buffer
        for buffer, using in users.items()
        if buffer.kind is not Kind.ARENA or len(using) > 1 or buffer in returned
    }


def _runnable(program: Program, plan: Plan, payload: bytes) -> Compiled:
    library = build.loaded(payload)
    runner = Runner(program, plan.source, library, plan.translation, plan.offsets, plan.size)
    return checked(program, Compiled(runner.run, payload))
