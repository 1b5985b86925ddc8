"""Lowering by torch's compiler."""

from __future__ import annotations

from typing import Any

from abele.passes.of_lowerings.explicit_alpha import explicit_alpha
from abele.passes.of_lowerings.gpu_attention import gpu_attention
from abele.passes.of_lowerings.recurrent_steps import recurrent_steps
from abele.program import Program
from abele.targets import aoti
from abele.targets.base import Compiled, Lowering, require_code
from abele.targets.cuda.gpu import current_gpu, to_gpu
from abele.targets.replay import CudaGraphs, replayed

# Random numbers on the GPU are Inductor's own: matching torch's stream would cost fusion.
OPTIONS: dict[str, Any] = {}


class Inductor(Lowering):
    """AOTInductor's C++ host code around Triton kernels, replayed as one captured graph."""

    name = "inductor"
    compiles = True
    passes = (recurrent_steps, to_gpu, gpu_attention, explicit_alpha)

    def why(self, program: Program) -> str | None:
        """Take nothing unasked: compiling takes most of a minute, and gains little over kernels."""
        del program
        return None

    def declined(self, program: Program) -> str | None:
        """How to ask for it."""
        del program
        return "its compiler takes most of a minute; ABELE_LOWERING=inductor asks for it"

    def compile(self, program: Program) -> Compiled:
        """Compile kernels and host code; tens of seconds."""
        compiled, _ = aoti.compile_program(program, current_gpu(), OPTIONS)
        return replayed(program, compiled, CudaGraphs(), draws=False)

    def load(self, program: Program, payload: bytes) -> Compiled:
        """Load kernels and host code; no compiler needed."""
        require_code(payload, "cuda")
        compiled = aoti.load_program(payload, current_gpu())
        return replayed(program, compiled, CudaGraphs(), draws=False)
