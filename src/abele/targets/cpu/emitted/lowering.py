"""Lowering by C++ that is written for the program."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Collection, Sequence

import torch

from abele import arena
from abele._torch.copies import called_targets
from abele.passes.of_lowerings.convolutions import half_convolutions
from abele.passes.of_lowerings.gradients import kept_derivatives, stacked_gradients
from abele.passes.of_lowerings.recurrent import recurrent_loops
from abele.program import Program
from abele.program.aliasing import lifetimes
from abele.program.memory import MemoryUse
from abele.targets.base import Clocked, Compiled, Lowering, OfBatch, Repeated, Source, require_code
from abele.targets.cpu.compiler import kernel_problem, with_planned_places
from abele.targets.cpu.emitted import build, choice, source
from abele.targets.cpu.emitted.calling import Calling, from_text, to_text
from abele.targets.cpu.emitted.calls import HANDLERS
from abele.targets.cpu.emitted.calls.convolutions import few_channel_convolutions
from abele.targets.cpu.emitted.channel_blocking import block_channels
from abele.targets.cpu.emitted.clocked import who, with_clocks
from abele.targets.cpu.emitted.gemm_epilogues import GemmWithEpilogue, fuse_gemm_epilogues
from abele.targets.cpu.emitted.memory import (
    arranged,
    memory_use,
    ordered,
    until_code_ends,
    used_by,
)
from abele.targets.cpu.emitted.pad_leading_dimension import pad_leading_dimension
from abele.targets.cpu.emitted.rematerialized_norms import rematerialize_norms
from abele.targets.cpu.emitted.run import BoundRunner
from abele.targets.cpu.emitted.source import Segment
from abele.targets.index_checks import checked
from abele.targets.translation.groups import Unit, grouped
from abele.targets.translation.operations import Foreign, Translation, constants_of
from abele.targets.translation.places import Buffer, Kind
from abele.targets.translation.pointwise import TYPES
from abele.targets.translation.reasons import kernel_choices
from abele.targets.translation.translate import Dialect, translate

DIALECT = Dialect(handlers=HANDLERS, types=TYPES)


class Emitted(Lowering):
    """C++ of our own, compiled in seconds."""

    name = "emitted"
    compiles = True
    certain = False
    passes = (
        recurrent_loops,
        half_convolutions,
        few_channel_convolutions,
        stacked_gradients,
        kept_derivatives,
    )

    def why(self, program: Program) -> str | None:
        """Take programs of operators that mostly become code."""
        return choice.why(program)

    def why_not(self, program: Program) -> str | None:
        """Only straight code without effects can be written."""
        return choice.why_impossible(program)

    def compile(self, program: Program) -> Compiled:
        """Write the code and compile it."""
        return _compiled(program, conservative=False)

    def compile_conservatively(self, program: Program) -> Compiled:
        """Write the same code and compile it without vectorizers."""
        return _compiled(program, conservative=True)

    def possible_kernels(self, program: Program) -> Collection[str]:
        """Kernels by the kinds of operators that there are, and planned places."""
        operators = {str(each) for each in called_targets(program.graph.graph)}
        return {*build.kernels_for(operators), arena.NAME}

    def required_kernels(self, program: Program) -> Collection[str]:
        """Return the kernels that its code calls, and the allocator if it has ATen calls."""
        plan = planned_code(program)
        return {*build.kernels_of(plan.source.text), *([] if plan.torchs is None else [arena.NAME])}

    def source(self, program: Program) -> Source:
        """Return the code, and what compiles it."""
        plan = planned_code(program)
        text = plan.source.text
        return Source(
            text=text,
            command=functools.partial(build.command, text),
            loaded=functools.partial(_runnable, program, plan.calling()),
        )

    def load(self, program: Program, payload: bytes) -> Compiled:
        """Map the compiled code into this process, and plan again how it is called."""
        require_code(payload, "cpu")
        return _runnable(program, planned_code(program).calling(), payload)

    def load_planned(self, program: Program, payload: bytes, plan: str) -> Compiled | None:
        """Map the compiled code into this process; how it is called is known."""
        require_code(payload, "cpu")
        calling = from_text(plan, program)
        return None if calling is None else _runnable(program, calling, payload)

    def memory(self, program: Program) -> MemoryUse:
        """Return the memory of the plan: the arena, tensors of ATen calls, and results."""
        use = _memory_use(program, placed(program))
        if len(use.bare) == len(use.nodes):  # torch computes nothing
            return use
        is_planned = with_planned_places()
        use = arena.with_inner(
            use, {node for step, node in enumerate(use.nodes) if step in use.bare}
        )
        return arena.placed(use) if is_planned else use

    def why_not_chosen(self, program: Program) -> str | None:
        """Return why it was not chosen: loops, effects, or too many ATen calls."""
        return choice.why_not(program)

    def kernel_choices(self, program: Program) -> dict[torch.fx.Node, str]:
        """Loops, calls, and what torch computes."""
        return kernel_choices(program, placed(program).units, who)

    def clocked(self, program: Program) -> Clocked:
        """Write and compile the code again, with a look at the clock between its units."""
        units = placed(program)
        plan = _plan(program, units, clocked=True)
        library = build.loaded(build.compiled(program.name, plan.source.text))
        return with_clocks(program, plan.calling(), library, units.units, units.kept)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A program's code and memory before it is compiled.

    Attributes:
        torchs: what torch makes between pieces of code; None if it computes nothing.
    """

    translation: Translation
    source: source.Source
    offsets: dict[Buffer, int]
    size: int
    lives: dict[Buffer, tuple[int, int]]
    torchs: MemoryUse | None

    def calling(self) -> Calling:
        """Return the plan for calling the code."""
        translation, parts = self.translation, self.source.parts
        touched = {
            place.buffer
            for part in parts
            if isinstance(part, Foreign)
            for place in (*part.reads, *part.writes)
        }
        touched.update(place.buffer for place in translation.outputs)
        return Calling(
            parts=parts,
            table=self.source.table,
            inputs=translation.inputs,
            outputs=translation.outputs,
            constants=translation.constants,
            offsets={each: at for each, at in self.offsets.items() if each in touched},
            size=self.size,
            freed=self._freed(),
            places=None if self.torchs is None else arena.planned(self.torchs),
        )

    def _freed(self) -> list[list[Buffer]]:
        """After each part, the results of torch's that are not needed any more."""
        returned = {place.buffer for place in self.translation.outputs}
        parts = self.source.parts
        part_of: list[int] = []  # by unit
        for index, part in enumerate(parts):
            part_of += [index] * (part.calls if isinstance(part, Segment) else 1)
        freed: list[list[Buffer]] = [[] for _ in parts]
        for buffer, (_, last) in self.lives.items():
            if buffer.kind is Kind.FOREIGN and buffer not in returned:
                freed[part_of[last]].append(buffer)
        return freed


@dataclasses.dataclass(frozen=True)
class Placed:
    """A program as units in their order, and where their results lie.

    Attributes:
        translation: the program as operations.
        units: in the order in which they run.
        kept: memory that is written.
        lives: first and last unit that uses each piece of it.
        offsets: where each piece of the arena lies, in bytes.
        size: of the arena, in bytes.
    """

    translation: Translation
    units: list[Unit]
    kept: set[Buffer]
    lives: dict[Buffer, tuple[int, int]]
    offsets: dict[Buffer, int]
    size: int


def planned_code(program: Program) -> Plan:
    """Translate, group, order, place in memory and write a program."""
    return _plan(program, placed(program), clocked=False)


def _plan(program: Program, plan: Placed, *, clocked: bool) -> Plan:
    constants = constants_of(program, plan.translation.constants)
    text = source.write(
        plan.units,
        plan.offsets,
        plan.kept,
        clocked=clocked,
        subnormals=choice.are_meant(program, constants),
    )
    foreign = any(isinstance(each, Foreign) for each in text.parts)
    torchs = _memory_use(program, plan) if foreign else None
    return Plan(plan.translation, text, plan.offsets, plan.size, plan.lives, torchs)


def placed(program: Program) -> Placed:
    """Translate, group and order a program, and place it in memory."""
    translation = translate(program, DIALECT)
    returned = {place.buffer for place in translation.outputs}
    units = fuse_gemm_epilogues(grouped(rematerialize_norms(translation.operations, returned)))
    pad_leading_dimension(units, returned)
    units = ordered(units)
    kept = _kept(units, translation)
    units = block_channels(units, returned)
    lives = lifetimes([each for each in used_by(unit) if each in kept] for unit in units)
    lives = until_code_ends(units, lives)
    offsets, size = arranged(lives)
    return Placed(translation, units, kept, lives, offsets, size)


def _memory_use(program: Program, plan: Placed) -> MemoryUse:
    returned = {place.buffer for place in plan.translation.outputs}
    output = program.graph.graph.output_node()
    return memory_use(plan.units, plan.lives, plan.size, returned, output)


def _kept(units: list[Unit], translation: Translation) -> set[Buffer]:
    """Return the buffers that are written to memory: other results stay in registers."""
    users: dict[Buffer, set[Unit]] = {}
    for unit in units:
        for buffer in used_by(unit):
            users.setdefault(buffer, set()).add(unit)
    returned = {place.buffer for place in translation.outputs}
    written = {
        place.buffer
        for unit in units
        if not unit.elementwise and not isinstance(unit, GemmWithEpilogue)
        for each in unit.operations
        for place in each.writes
    }
    return written | {
        buffer
        for buffer, using in users.items()
        if buffer.kind is not Kind.ARENA or len(using) > 1 or buffer in returned
    }


def _compiled(program: Program, *, conservative: bool) -> Compiled:
    plan = planned_code(program)
    code = build.compiled(program.name, plan.source.text, conservative=conservative)
    return _runnable(program, plan.calling(), code)


def _runnable(program: Program, calling: Calling, payload: bytes) -> Compiled:
    library = build.loaded(payload)
    runner = BoundRunner(program, calling, library)
    return checked(program, _Emitted(runner, library, payload, to_text(calling)))


class _Emitted(Compiled):
    def __init__(self, runner: BoundRunner, library: ctypes.CDLL, payload: bytes, plan: str | None):
        super().__init__(runner.run, payload, plan)
        self._runner, self._library = runner, library

    def kernel_problem(self, *, noted: bool) -> str | None:
        """Test the kernels that were linked to the code."""
        return kernel_problem(self._library, noted=noted)

    def repeated(self) -> Repeated | None:
        """Return a call for many micro-batches; None if the code has ATen calls."""
        return self._runner.repeated if self._runner.repeats else None

    def bound(self, arguments: Sequence[torch.Tensor], batch: Sequence[int]) -> OfBatch | None:
        """Return a call with its state bound; None if the code has ATen calls."""
        return self._runner.bound(arguments, batch)
