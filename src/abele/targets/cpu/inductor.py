"""Lowering by torch's compiler: a program becomes C++ code, called without Python in between."""

from __future__ import annotations

from collections.abc import Collection

import torch

from abele import _torch, kernels
from abele.kernels import build
from abele.passes.of_lowerings import few_channel_convolutions
from abele.passes.of_lowerings.explicit_alpha import explicit_alpha
from abele.passes.of_lowerings.half_convolutions import half_convolutions
from abele.passes.of_lowerings.recurrent_steps import recurrent_steps
from abele.passes.of_lowerings.unpadded_max_pools import unpadded_max_pools
from abele.program import Program, is_view
from abele.targets import aoti
from abele.targets.base import Compiled, Lowering, require_code
from abele.targets.cpu.compiler import compiler, instruction_set
from abele.targets.cpu.index_checks import checked
from abele.targets.kernel_choice import VIEW, KernelChoice, operators_of

aten = torch.ops.aten

_HOST = torch.device("cpu")
_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)


class Inductor(Lowering):
    """AOTInductor's C++ code, which fuses operators."""

    name = "inductor"
    compiles = True
    certain = False
    why_unclocked = (
        "torch's compiler fuses operators to functions that do not say which these were, and would "
        "need minutes to compile them with clocks; under ABELE_LOWERING=emitted or op_by_op "
        "operators are timed"
    )
    passes = (
        recurrent_steps,
        explicit_alpha,
        half_convolutions,
        few_channel_convolutions.few_channel_convolutions,
        unpadded_max_pools,
    )

    def why(self, program: Program) -> str | None:
        """Take every program."""
        del program
        return "compiled code fuses its operators"

    def kernel_choices(self, program: Program) -> dict[torch.fx.Node, KernelChoice]:
        """Our kernels where passes have put them; the rest is up to torch's compiler."""
        return {each: _choice(each) for each in operators_of(program)}

    def may_need(self, program: Program) -> Collection[str]:
        """All kernels: what it links is one archive."""
        del program
        return {build.ARCHIVE}

    def needs(self, program: Program) -> Collection[str]:
        """The same where the code calls any."""
        return {build.ARCHIVE} if kernels.used_by(program) else ()

    def compile(self, program: Program) -> Compiled:
        """Compile with the C++ compiler; seconds to minutes."""
        path = compiler() or "g++"
        options = _torch.default_options_for_cpu() | _torch.option_for_compiler(path)
        options |= _torch.option_for_threads()
        if kernels.used_by(program):
            library = build.static_library(path, instruction_set())
            options |= _torch.options_for_kernels(library, kernels.shims())
        compiled, _ = aoti.compile_program(program, _HOST, options)
        return checked(program, compiled)

    def load(self, program: Program, payload: bytes) -> Compiled:
        """Map the compiled code into this process; milliseconds."""
        require_code(payload, "cpu")
        return checked(program, aoti.load_program(payload, _HOST))


def _choice(node: torch.fx.Node) -> KernelChoice:
    name = str(node.target)
    if name.startswith("abele."):
        function = name.removeprefix("abele.").removesuffix(".default")
        return KernelChoice(function, "our kernel, called from torch's compiled code")
    if node.target in _CONVOLUTIONS:
        why = few_channel_convolutions.why_not(node)
        return KernelChoice("torch", why or "torch's call from compiled code")
    if is_view(node):
        return VIEW
    return KernelChoice(
        "inductor", "torch's compiler joins it with its neighbours, or calls torch for it"
    )
