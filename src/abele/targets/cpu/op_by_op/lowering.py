"""Lowering operator by operator: nothing is compiled for the program."""

from __future__ import annotations

import ctypes
from collections.abc import Collection

import torch

from abele import arena
from abele.kernels import binding, build
from abele.passes.of_lowerings.channels_last import channels_last
from abele.passes.of_lowerings.convolutions import half_convolutions, pointwise_before_upsampling
from abele.passes.of_lowerings.fused_sums import fused_sums
from abele.passes.of_lowerings.fused_updates import fused_adam, fused_sgd, joined_counters
from abele.passes.of_lowerings.normalisation import folded_normalisation, fused_normalisation
from abele.program import Program
from abele.program.memory import MemoryUse
from abele.targets.base import Clocked, Compiled, Lowering, Run, require_code
from abele.targets.cpu.compiler import (
    compiler,
    instruction_set,
    kernel_problem,
    with_planned_places,
)
from abele.targets.cpu.op_by_op import choice
from abele.targets.cpu.op_by_op.build import kinds_of, with_clocks, with_kernels
from abele.targets.cpu.op_by_op.memory_use import memory_use
from abele.targets.index_checks import checked
from abele.targets.kernel_choice import KernelChoice


class OpByOp(Lowering):
    """The library's kernels and ours, called in the order of the graph."""

    name = "op_by_op"
    manner = "run operator by operator"
    passes = (
        half_convolutions,
        fused_normalisation,
        fused_sums,
        pointwise_before_upsampling,  # after the norms: they tell which gradients are zero
        folded_normalisation,
        fused_adam,
        fused_sgd,
        joined_counters,
        channels_last,  # last: it asks what each operator has become
    )

    def why(self, program: Program) -> str | None:
        """Take networks of large convolutions, and large updates."""
        return choice.why(program)

    def why_not_chosen(self, program: Program) -> str | None:
        """Return why it was not chosen: the share of its work in convolutions."""
        return choice.why_not(program)

    def also_measure(self, program: Program) -> bool:
        """Be measured where its kernels have work: the rest is torch's or code either way."""
        return choice.has_work(program)

    def possible_kernels(self, program: Program) -> Collection[str]:
        """All kernels, in one library, and planned places."""
        del program
        return {build.LIBRARY, arena.NAME}

    def required_kernels(self, program: Program) -> Collection[str]:
        """Return the library of all kernels, and the allocator."""
        return self.possible_kernels(program)

    def compile(self, program: Program) -> Compiled:
        """Compile the kernels, once per machine; seconds, later none."""
        code = build.shared_library(compiler() or "g++", instruction_set())
        with_planned_places()
        return self.load(program, code)

    def load(self, program: Program, payload: bytes) -> Compiled:
        """Map the kernels into this process; milliseconds."""
        require_code(payload, "cpu")
        memory = arena.Arena(arena.planned(memory_use(program)))
        library = binding.load(payload)
        run = with_kernels(program, library, memory)
        return checked(program, _OpByOp(run, payload, library, kinds_of(program)))

    def kernel_choices(self, program: Program) -> dict[torch.fx.Node, KernelChoice]:
        """Our kernels, and what torch computes."""
        return choice.kernel_choices(program)

    def clocked(self, program: Program) -> Clocked:
        """Look at the clock before and after each call."""
        code = build.shared_library(compiler() or "g++", instruction_set())
        return with_clocks(
            program, binding.load(code), arena.Arena(arena.planned(memory_use(program)))
        )

    def memory(self, program: Program) -> MemoryUse:
        """Return the memory of a program whose kernels overwrite dead arguments."""
        is_planned = with_planned_places()
        use = memory_use(program, with_inner=True)
        return arena.placed(use) if is_planned else use


class _OpByOp(Compiled):
    def __init__(self, run: Run, payload: bytes, library: ctypes.CDLL, kinds: Collection[str]):
        super().__init__(run, payload)
        self._library, self._kinds = library, kinds

    def kernel_problem(self, *, noted: bool) -> str | None:
        """Test the kernels that the program calls."""
        return kernel_problem(self._library, self._kinds, noted=noted)
