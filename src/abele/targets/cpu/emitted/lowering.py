"""The CPU lowering that generates C++ code for a program."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

import torch

from abele import arena
from abele._torch.copies import called_targets
from abele.ops.host_call import exchange
from abele.passes.cleanup import stacked_gradients
from abele.passes.of_lowerings.convolutions import patches_as_products
from abele.passes.of_lowerings.half import (
    arithmetic,
    biases_in_products,
    computed_in_float32,
    stored_for_generated_code,
)
from abele.passes.of_lowerings.recurrent import recurrent_loops
from abele.program import Program, has_effect, is_getitem, is_view, subgraphs
from abele.program.aliasing import lifetimes
from abele.program.memory import MemoryUse
from abele.targets.base import (
    Clocked,
    Compiled,
    Lowering,
    OfBatch,
    Repeated,
    Run,
    Source,
    require_code,
)
from abele.targets.cpu.compiler import kernel_problem, with_planned_places
from abele.targets.cpu.emitted import build, source
from abele.targets.cpu.emitted.calling import Calling, from_text, to_text
from abele.targets.cpu.emitted.calls import HANDLERS, attention, convolutions
from abele.targets.cpu.emitted.calls.constant_convolutions import packed_convolutions
from abele.targets.cpu.emitted.calls.sixteen_bits import rounded_by_calls
from abele.targets.cpu.emitted.channel_blocking import block_channels
from abele.targets.cpu.emitted.clocked import who, with_clocks
from abele.targets.cpu.emitted.gemm_epilogues import GemmWithEpilogue, fuse_gemm_epilogues
from abele.targets.cpu.emitted.memory import (
    memory_use,
    ordered,
    planned,
    until_code_ends,
    used_by,
)
from abele.targets.cpu.emitted.prepared import constant_slots, lasting, prepared_units
from abele.targets.cpu.emitted.rematerialized_norms import rematerialize_norms
from abele.targets.cpu.emitted.run import Runner
from abele.targets.cpu.emitted.source import Segment
from abele.targets.index_checks import checked
from abele.targets.translation.groups import Unit, grouped, kernel_choices
from abele.targets.translation.operations import Foreign
from abele.targets.translation.places import Buffer, Kind
from abele.targets.translation.pointwise import NAMES, RULES
from abele.targets.translation.translate import VIEWS, Translator

aten = torch.ops.aten


def _stored_in_16_bits(program: Program) -> Program:
    """Store large values of 16-bit programs in 16 bits, where generated code stores them."""
    return stored_for_generated_code(program, convolutions.is_fused_with_pool)


class Emitted(Lowering):
    """A lowering to generated C++, compiled in seconds."""

    name = "emitted"
    compiles = True
    certain = False
    passes = (
        recurrent_loops,
        patches_as_products,
        computed_in_float32,
        biases_in_products,
        packed_convolutions,
        stacked_gradients,
        _stored_in_16_bits,
    )

    def why(self, program: Program) -> str | None:
        """Return the reason to generate C++ code for a program, or None if it is not worth it."""
        reason = f"C++ of its own runs it, compiled in seconds{arithmetic(program)}"
        return None if self.why_not_chosen(program) else reason

    def why_not(self, program: Program) -> str | None:
        """Return why C++ code cannot be generated (loops, branches, side effects), or None."""
        if any(True for _ in subgraphs(program.graph)):
            return "it has loops or branches"
        if any(has_effect(n) and n.target is not exchange for n in program.graph.graph.nodes):
            return "it prints or calls the host"
        return build.unavailable()

    def compile(self, program: Program) -> Compiled:
        """Generate C++ code for a program and compile it."""
        return _compiled(program, conservative=False)

    def compile_conservatively(self, program: Program) -> Compiled:
        """Compile the same C++ code without vectorization."""
        return _compiled(program, conservative=True)

    def possible_kernels(self, program: Program) -> Collection[str]:
        """Return the library kernels for a program's operators, and the allocator."""
        operators = {str(each) for each in called_targets(program.graph.graph)}
        return {*build.kernels_for(operators), arena.NAME}

    def required_kernels(self, program: Program) -> Collection[str]:
        """Return the kernels that generated code calls, and the allocator for ATen calls."""
        plan = planned_code(program)
        return {*build.kernels_of(plan.source.text), *([arena.NAME] if plan.calls_torch else [])}

    def source(self, program: Program) -> Source:
        """Return a program's generated C++ code and the command that compiles it."""
        plan = planned_code(program)
        text = plan.source.text
        return Source(
            text=text,
            command=functools.partial(build.command, text),
            loaded=functools.partial(_runnable, program, plan.calling()),
        )

    def load(self, program: Program, payload: bytes) -> Compiled:
        """Load compiled code into this process and rebuild its call plan."""
        require_code(payload, "cpu")
        return _runnable(program, planned_code(program).calling(), payload)

    def load_planned(self, program: Program, payload: bytes, plan: str) -> Compiled | None:
        """Load compiled code into this process with a stored call plan."""
        require_code(payload, "cpu")
        calling = from_text(plan, program)
        return None if calling is None else _runnable(program, calling, payload)

    def memory(self, program: Program) -> MemoryUse:
        """Return a program's planned memory: the arena, tensors of ATen calls, and results."""
        plan = planned_code(program)
        use = plan.memory_use()
        if not plan.calls_torch:
            return use
        is_planned = with_planned_places()
        use = arena.with_inner(use, {use.nodes[step] for step in use.bare})
        return arena.placed(use) if is_planned else use

    def why_not_chosen(self, program: Program) -> str | None:
        """Return why no code is generated: loops, effects, or ATen calls alone; else None."""
        if (impossible := self.why_not(program)) is not None:
            return impossible
        if not any(_is_worth_code(node) for node in program.graph.graph.nodes):
            return "torch would compute all of it"
        return None

    def kernel_choices(self, program: Program) -> dict[torch.fx.Node, str]:
        """Return how each operator runs: fused loop, library kernel or ATen fallback."""
        return kernel_choices(program, planned_code(program).units, who)

    def clocked(self, program: Program) -> Clocked:
        """Compile an instrumented copy of the generated code that times each unit."""
        plan = planned_code(program)
        code = plan.written(clocked=True)
        library = build.loaded(build.compiled(program.name, code.text))
        return with_clocks(program, plan.calling(code), library, plan.units, plan.kept)


def _is_worth_code(node: torch.fx.Node) -> bool:
    """Return whether generated code or another lowering may beat torch on an operator."""
    if node.op != "call_function" or _is_no_work(node):
        return False
    return _is_expressible(node) or node.target in (*convolutions.OPERATORS, *attention.HANDLERS)


def _is_no_work(node: torch.fx.Node) -> bool:
    """Return whether an operator only picks a result or is a view."""
    return is_getitem(node) or is_view(node) or node.target in VIEWS


def _is_expressible(node: torch.fx.Node) -> bool:
    """Return whether generated code probably computes an operator without ATen."""
    if _is_no_work(node):
        return True
    if node.target in convolutions.OPERATORS:
        return convolutions.is_ours(node)
    if node.target in attention.HANDLERS:
        return attention.is_ours(node)
    known = node.target in RULES or node.target in HANDLERS or node.target is aten.copy_.default
    return known and all(value.dtype in NAMES for value in _values(node))


def _values(node: torch.fx.Node) -> Iterator[torch.Tensor]:
    for each in (node, *node.all_input_nodes):
        value: Any = each.meta.get("val")
        several = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
        for one in several:
            if isinstance(one, torch.Tensor):
                yield one


class Plan:
    """A program's fused units with their memory plan and C++ code, before compilation.

    Args:
        program: after the passes of the lowering.

    Attributes:
        translation: the program as operations on buffers.
        units: in execution order; the first are those that run once, see ``prepared``.
        kept: buffers that are written to memory.
        lives: first and last unit that uses each buffer.
        offsets: byte offset of each buffer in the arena.
        size: bytes of the arena.
    """

    def __init__(self, program: Program):
        self._program = program
        self.translation = Translator(program, HANDLERS, NAMES, constant_slots(program))
        self._returned = returned = {place.buffer for place in self.translation.outputs}
        operations = rounded_by_calls(self.translation.operations, returned)
        operations = rematerialize_norms(operations, returned)
        units = fuse_gemm_epilogues(grouped(operations))
        units = ordered(units)
        once, units = prepared_units(units, program, self.translation.inputs)
        self._prepared = len(once)
        self.kept = _kept([*once, *units], returned)
        units = block_channels(units, returned)
        self.units = [*once, *units]
        lives = lifetimes([b for b in used_by(unit) if b in self.kept] for unit in self.units)
        self.lives = until_code_ends(self.units, lasting(lives, once, units))
        self.offsets, self.size = planned(self.lives)

    @functools.cached_property
    def source(self) -> source.Source:
        """The generated C++ code of the program."""
        return self.written()

    def written(self, *, clocked: bool = False) -> source.Source:
        """Generate the C++ code, with clock reads between units if ``clocked``."""
        subnormals = self.translation.subnormals
        units = self.units[: self._prepared], self.units[self._prepared :]
        return source.write(*units, self.offsets, self.kept, clocked=clocked, subnormals=subnormals)

    @property
    def calls_torch(self) -> bool:
        """True if the program has ATen fallbacks between parts of generated code."""
        return any(isinstance(unit.operations[0], Foreign) for unit in self.units)

    def memory_use(self) -> MemoryUse:
        """Return the memory of the program, including each result of an ATen call."""
        output = self._program.graph.graph.output_node()
        return memory_use(self.units, self.lives, self.size, self._returned, output)

    def calling(self, code: source.Source | None = None) -> Calling:
        """Return the plan for calling the generated code, or other code of the same units."""
        parts, table = (code or self.source).parts, (code or self.source).table
        called = [part for part in parts if isinstance(part, Foreign)]
        touched = {place.buffer for part in called for place in (*part.reads, *part.writes)}
        touched |= self._returned
        return Calling(
            parts=parts,
            table=table,
            inputs=self.translation.inputs,
            outputs=self.translation.outputs,
            constants=self.translation.constants,
            offsets={each: at for each, at in self.offsets.items() if each in touched},
            size=self.size,
            freed=self._freed(parts),
            places=arena.planned(self.memory_use()) if called else None,
        )

    def _freed(self, parts: Sequence[Segment | Foreign]) -> list[list[Buffer]]:
        """Return the ATen results that are freed after each part."""
        part_of: list[int] = []  # by unit
        for index, part in enumerate(parts):
            part_of += [index] * (part.calls if isinstance(part, Segment) else 1)
        freed: list[list[Buffer]] = [[] for _ in parts]
        for buffer, (_, last) in self.lives.items():
            if buffer.kind is Kind.FOREIGN and buffer not in self._returned:
                freed[part_of[last]].append(buffer)
        return freed


def planned_code(program: Program) -> Plan:
    """Lower a program to fused units, a memory plan and C++ code."""
    return Plan(program)


def _kept(units: list[Unit], returned: Collection[Buffer]) -> set[Buffer]:
    """Return the buffers that are written to memory: other results stay in registers."""
    users: dict[Buffer, set[Unit]] = {}
    for unit in units:
        for buffer in used_by(unit):
            users.setdefault(buffer, set()).add(unit)
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
    runner = Runner(program, calling, library)
    return checked(program, _Emitted(runner, library, payload, to_text(calling)))


class _Emitted(Compiled):
    def __init__(self, runner: Runner, library: ctypes.CDLL, payload: bytes, plan: str | None):
        super().__init__(runner.run, payload, plan)
        self._runner, self._library, self.release = runner, library, runner.release
        self.prepares = runner.prepares

    def kernel_problem(self, *, noted: bool) -> str | None:
        """Run the self-test of the library kernels linked to the code."""
        return kernel_problem(self._library, noted=noted)

    def with_state(self, arguments: Sequence[torch.Tensor], *, adopted: bool = False) -> Run:
        """Return a callable that prepares constants once, until they change."""
        del arguments  # each call has them
        sums = adopted and self.prepares
        return self._runner.with_constants(self._library.abele_checksum if sums else None)

    def repeated(self) -> Repeated | None:
        """Return a callable that runs many micro-batches; None with ATen calls."""
        return self._runner.repeated if self._runner.repeats else None

    def bound(
        self, arguments: Sequence[torch.Tensor], batch: Sequence[int], *, adopted: bool = False
    ) -> OfBatch | None:
        """Return a callable with bound state; None if the program has ATen calls."""
        return self._runner.bound(arguments, batch, adopted=adopted)
