"""Programs compiled ahead of time for this machine's processor."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from abele import _torch, kernels
from abele.errors import ForeignExecutable
from abele.passes.channels_last import channels_last
from abele.passes.explicit_alpha import explicit_alpha
from abele.passes.few_channel_convolutions import few_channel_convolutions
from abele.passes.folded_normalisation import folded_normalisation
from abele.passes.fused_adam import fused_adam
from abele.passes.fused_normalisation import fused_normalisation
from abele.passes.pointwise_before_upsampling import pointwise_before_upsampling
from abele.passes.unpadded_max_pools import unpadded_max_pools
from abele.program import Program
from abele.targets import aoti
from abele.targets.base import Compiled, Target
from abele.targets.cpu.index_checks import checked
from abele.targets.cpu.op_by_op import library as scheduled
from abele.targets.cpu.op_by_op.build import schedule
from abele.targets.cpu.op_by_op.choice import why_scheduled


class Cpu(Target):
    """AOTInductor's C++ code, called without Python in between; or a schedule of library calls."""

    name = "cpu"
    passes = (explicit_alpha, few_channel_convolutions, unpadded_max_pools)
    scheduled_passes = (
        fused_normalisation,
        pointwise_before_upsampling,  # after the norms: they tell which gradients are zero
        folded_normalisation,
        fused_adam,
        channels_last,  # last: it asks what each operator has become
    )
    cacheable = True

    def lowering(self, program: Program) -> tuple[Callable[[Program], Program], ...]:
        """Schedules and compiled programs call different kernels."""
        return self.passes if why_scheduled(program) is None else self.scheduled_passes

    def why_scheduled(self, program: Program) -> str | None:
        """Networks of large convolutions are not compiled; see ``abele.schedule``."""
        return why_scheduled(program)

    def device(self) -> torch.device:
        """The host."""
        return torch.device("cpu")

    def cannot_compile(self) -> str | None:
        """A C++ compiler is needed to compile; loading needs none."""
        if _compiler() is None:
            wanted = os.environ.get("CXX") or "g++ or clang++"
            return (
                f"no C++ compiler was found (looked for {wanted} on PATH). "
                "Install one (Debian: apt-get install g++) or set CXX to its path."
            )
        return None

    def describe(self) -> Mapping[str, Any]:
        """The compiled code uses every instruction this processor has."""
        return {
            "target": self.name,
            "torch": torch.__version__,
            "system": sys.platform,
            "machine": platform.machine(),
            "isa": _instruction_set(),
            "options": _torch.default_options_for_cpu(),
            "kernels": kernels.fingerprint(),
        }

    def compile(self, program: Program) -> Compiled:
        """Compiles with the C++ compiler; seconds to minutes."""
        compiler = _compiler() or "g++"
        if why_scheduled(program) is not None:
            code = kernels.scheduled_library(compiler, _instruction_set())
            return checked(program, Compiled(schedule(program, scheduled.load(code)), code))
        options = _torch.default_options_for_cpu() | _torch.option_for_compiler(compiler)
        if kernels.used_by(program):
            library = kernels.static_library(compiler, _instruction_set())
            options |= _torch.options_for_kernels(library, kernels.shims())
        compiled, _ = aoti.compile_program(program, self.device(), options)
        return checked(program, compiled)

    def load(self, program: Program, payload: bytes) -> Compiled:
        """Maps the compiled code into this process; milliseconds."""
        if not payload:
            raise ForeignExecutable("The executable holds no compiled code for target 'cpu'.")
        if why_scheduled(program) is not None:
            compiled = Compiled(schedule(program, scheduled.load(payload)), payload)
        else:
            compiled = aoti.load_program(payload, self.device())
        return checked(program, compiled)


def _compiler() -> str | None:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    return next((found for found in map(shutil.which, names) if found), None)


@functools.cache
def _instruction_set() -> str:
    capabilities = torch.cpu.get_capabilities()
    return " ".join(sorted(name for name, value in capabilities.items() if value is True))


TARGET = Cpu()
