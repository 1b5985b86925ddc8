"""The CPU lowering that runs programs operator by operator, without compiling them."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Collection, Sequence
from typing import Any

import torch

from abele import _torch, arena
from abele._torch.copies import copied_graph
from abele.arena.running import Arena, kept
from abele.kernels import binding, build
from abele.ops.constant_convolution import operator as CONSTANT  # noqa: N812
from abele.ops.memory_layout import in_layout
from abele.passes.of_lowerings.channels_last import channels_last
from abele.passes.of_lowerings.constant_convolutions import constant_convolutions
from abele.passes.of_lowerings.convolutions import pointwise_before_upsampling
from abele.passes.of_lowerings.fused_sums import fused_sums
from abele.passes.of_lowerings.fused_updates import fused_adam, fused_sgd
from abele.passes.of_lowerings.half import arithmetic, stored_in_16_bits, with_bfloat16_images
from abele.passes.of_lowerings.normalisation import folded_normalisation, fused_normalisation
from abele.program import Program, is_view
from abele.program.memory import MemoryUse
from abele.targets.base import Clocked, Compiled, GraphClocks, Lowering, Run, require_code
from abele.targets.cpu.compiler import (
    compiler,
    instruction_set,
    kernel_problem,
    with_planned_places,
)
from abele.targets.cpu.op_by_op import choice
from abele.targets.cpu.op_by_op.constants import ConstantConvolution, Holding, slots_of
from abele.targets.cpu.op_by_op.memory_use import memory_use
from abele.targets.cpu.op_by_op.registry import Lifetimes, overwritten, own_kernel
from abele.targets.cpu.op_by_op.updates import copies_back, erase_copies, is_update
from abele.targets.index_checks import checked
from abele.targets.interpreter import function_of
from abele.targets.kernel_choice import NOBODY, TORCH, operators_of


class OpByOp(Lowering):
    """A lowering that calls torch's and abele's library kernels in graph order."""

    name = "op_by_op"
    manner = "run operator by operator"
    passes = (
        with_bfloat16_images,
        fused_normalisation,
        fused_sums,
        pointwise_before_upsampling,  # after the norms: they tell which gradients are zero
        constant_convolutions,
        folded_normalisation,
        fused_adam,
        fused_sgd,
        stored_in_16_bits,
        channels_last,  # last: it asks what each operator has become
    )

    def why(self, program: Program) -> str | None:
        """Return why large convolutions or updates favour op-by-op execution, or None."""
        reason = choice.why(program)
        return None if reason is None else reason + arithmetic(program, images=True)

    def why_not_chosen(self, program: Program) -> str | None:
        """Return why a program does not run operator by operator by default, or None."""
        return None if choice.why(program) is not None else choice.WHY_NOT

    def also_measure(self, program: Program) -> bool:
        """Return whether abele's library kernels have enough work in a program."""
        return choice.has_work(program)

    def possible_kernels(self, program: Program) -> Collection[str]:
        """Return the names of the library of all kernels and of the allocator."""
        del program
        return {build.LIBRARY, arena.NAME}

    def required_kernels(self, program: Program) -> Collection[str]:
        """Return the names of the library of all kernels and of the allocator."""
        return self.possible_kernels(program)

    def compile(self, program: Program) -> Compiled:
        """Compile the kernel library, once per machine, and load it."""
        code = build.shared_library(compiler() or "g++", instruction_set())
        with_planned_places()
        return self.load(program, code)

    def load(self, program: Program, payload: bytes) -> Compiled:
        """Load the kernel library into this process (milliseconds)."""
        require_code(payload, "cpu")
        library = binding.load(payload)
        nodes = program.graph.graph.nodes
        kinds = {kernel.kind for kernel in map(own_kernel, nodes) if kernel is not None}
        kinds |= {"checksums" for node in nodes if node.target is CONSTANT}
        return checked(program, _OpByOp(program, payload, library, kinds))

    def kernel_choices(self, program: Program) -> dict[torch.fx.Node, str]:
        """Return the backend of each operator: library kernel, torch or none."""
        choices = {node: _backend(node) for node in operators_of(program)}
        for node in filter(is_update, choices):  # it writes over its arguments: nothing is copied
            choices |= dict.fromkeys(copies_back(node) or (), NOBODY)
        return choices

    def clocked(self, program: Program) -> Clocked:
        """Return the program with a timestamp before and after each operator call."""
        library = binding.load(build.shared_library(compiler() or "g++", instruction_set()))
        clocks = GraphClocks({node.name: node for node in program.graph.graph.nodes})
        return clocks.clocked(with_kernels(program, library, _arena(program), clocks))

    def memory(self, program: Program) -> MemoryUse:
        """Return the memory of an op-by-op program, whose kernels overwrite dead arguments."""
        is_planned = with_planned_places()
        use = memory_use(program, with_inner=True)
        return arena.placed(use) if is_planned else use


class _OpByOp(Compiled):
    def __init__(
        self, program: Program, payload: bytes, library: ctypes.CDLL, kinds: Collection[str]
    ):
        super().__init__(with_kernels(program, library, _arena(program)), payload)
        self._program, self._library, self._kinds = program, library, kinds

    def with_state(self, arguments: Sequence[torch.Tensor], *, adopted: bool = False) -> Run:
        """Return a callable that packs weights once, until they change."""
        del arguments  # each call has them
        nodes = [n for n in self._program.graph.graph.nodes if n.target is CONSTANT]
        if not nodes:
            return self.run
        held = list[ConstantConvolution]()
        run = with_kernels(self._program, self._library, _arena(self._program), held=held)
        positions = {node: index for index, node in enumerate(self._program.placeholders())}
        slots = [slots_of(node, positions) for node in nodes]
        checksum = self._library.abele_checksum if adopted else None
        return Holding(run, list(zip(held, slots, strict=True)), checksum)

    def kernel_problem(self, *, noted: bool) -> str | None:
        """Run the self-test of the library kernels that the program calls."""
        return kernel_problem(self._library, self._kinds, noted=noted)


def _arena(program: Program) -> Arena:
    return Arena(arena.planned(memory_use(program)))


def _backend(node: torch.fx.Node) -> str:
    kernel = own_kernel(node)
    if kernel is not None:
        return kernel.name
    if node.target is in_layout:
        return "in_layout"
    return NOBODY if is_view(node) else TORCH


def with_kernels(
    program: Program,
    library: ctypes.CDLL,
    arena: Arena | None = None,
    clocks: GraphClocks | None = None,
    held: list[ConstantConvolution] | None = None,
) -> Run:
    """Return a function that runs a program with library kernels, updating state in place.

    Args:
        program: after the passes of its lowering.
        library: the loaded kernel library.
        arena: planned memory of its tensors; without it they are allocated by torch.
        clocks: timestamps around each call, if any.
        held: gets the convolutions of constant weights, in graph order.
    """
    planned = contextlib.nullcontext if arena is None else arena.used
    function = function_of(_replaced(program, library, held), clocks, frees_inputs=True)

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad(), kept(), planned():
            return list(function(inputs))

    return run


def _replaced(
    program: Program, library: ctypes.CDLL, held: list[ConstantConvolution] | None
) -> torch.fx.GraphModule:
    """Return the graph with operators replaced by library kernel functions."""
    graph = _torch.graph_module(program.graph, copied_graph(program.graph.graph))
    lifetimes = Lifetimes(graph.graph)
    copies = {node: copies_back(node) for node in graph.graph.nodes if is_update(node)}
    for node in list(graph.graph.nodes):
        kernel = own_kernel(node)
        if kernel is None:
            continue
        overwrite = overwritten(node, lifetimes) is not None
        if node in copies:
            overwrite = copies[node] is not None
            erase_copies(copies[node] or ())
        function: Any = kernel.function(node, library, overwrite)
        if held is not None and isinstance(function, ConstantConvolution):
            held.append(function)
        function.__name__ = kernel.name  # as clocks and reports call it
        node.target = function
    graph.graph.lint()
    return graph
