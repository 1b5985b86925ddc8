"""Programs compiled ahead of time for this machine's NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from abele.errors import ForeignExecutable
from abele.passes.explicit_alpha import explicit_alpha
from abele.passes.on_device import on_device
from abele.program import Program
from abele.targets import aoti
from abele.targets.base import Compiled, Target
from abele.targets.quiet import quiet_compiler


class Cuda(Target):
    """AOTInductor's C++ host code around Triton kernels."""

    name = "cuda"
    cacheable = True

    @property
    def passes(self) -> tuple[Callable[[Program], Program], ...]:
        """Capture runs on the host; the first lowering step is to move there."""

        def to_gpu(program: Program) -> Program:
            return on_device(program, self.device())

        return (to_gpu, explicit_alpha)

    def unavailable(self) -> str | None:
        """Needs a CUDA build of torch and a GPU."""
        if torch.version.cuda is None:
            return "this torch is built without CUDA. Install a CUDA build of torch 2.13."
        with quiet_compiler():  # it warns of a missing driver, which the reason says anyway
            usable = torch.cuda.is_available()
        if not usable:
            return "no CUDA device was found. Check the driver with nvidia-smi."
        return None

    def device(self) -> torch.device:
        """The current GPU."""
        return torch.device("cuda", torch.cuda.current_device())

    def describe(self) -> Mapping[str, Any]:
        """Kernels are built for one compute capability."""
        major, minor = torch.cuda.get_device_capability()
        return {
            "target": self.name,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "capability": f"{major}.{minor}",
            "options": dict(_options()),
        }

    def compile(self, program: Program) -> Compiled:
        """Compiles kernels and host code; tens of seconds."""
        compiled, _ = aoti.compile_program(program, self.device(), _options())
        return compiled

    def load(self, program: Program, payload: bytes) -> Compiled:
        """Loads kernels and host code; no compiler needed."""
        if not payload:
            raise ForeignExecutable("The executable holds no compiled code for target 'cuda'.")
        return aoti.load_program(payload, self.device())


def _options() -> dict[str, Any]:
    # Random numbers on the GPU are Inductor's own: matching torch's stream would cost fusion.
    return {}


TARGET = Cuda()
