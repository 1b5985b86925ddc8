"""Programs compiled ahead of time for this machine's processor."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from typing import Any

import torch

from abele import _torch, kernels
from abele.errors import ForeignExecutable
from abele.passes.explicit_alpha import explicit_alpha
from abele.passes.few_channel_convolutions import few_channel_convolutions
from abele.passes.unpadded_max_pools import unpadded_max_pools
from abele.program import Program
from abele.targets import _aoti
from abele.targets._base import Compiled, Target


class Cpu(Target):
    """AOTInductor's C++ code, called without Python in between."""

    name = "cpu"
    passes = (explicit_alpha, few_channel_convolutions, unpadded_max_pools)
    cacheable = True

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
        options = _torch.default_options_for_cpu() | _torch.option_for_compiler(compiler)
        if kernels.used_by(program):
            library = kernels.static_library(compiler, _instruction_set())
            options |= _torch.options_for_kernels(library, kernels.shims())
        compiled, _ = _aoti.compile_program(program, self.device(), options)
        return compiled

    def load(self, program: Program, payload: bytes) -> Compiled:
        """Maps the compiled code into this process; milliseconds."""
        if not payload:
            raise ForeignExecutable("The executable holds no compiled code for target 'cpu'.")
        return _aoti.load_program(payload, self.device())


def _compiler() -> str | None:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    return next((found for found in map(shutil.which, names) if found), None)


@functools.cache
def _instruction_set() -> str:
    capabilities = torch.cpu.get_capabilities()
    return " ".join(sorted(name for name, value in capabilities.items() if value is True))


TARGET = Cpu()
