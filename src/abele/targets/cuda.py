"""Programs compiled ahead of time for this machine's NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from abele.passes.of_lowerings.explicit_alpha import explicit_alpha
from abele.passes.of_lowerings.lstm_steps import lstm_steps
from abele.passes.of_lowerings.on_device import on_device
from abele.program import Program
from abele.targets import aoti
from abele.targets.base import Compiled, Lowering, Target, require_code
from abele.targets.quiet import quiet_compiler
from abele.targets.replay import CudaGraphs, replayed


def to_gpu(program: Program) -> Program:
    """Capture runs on the host; the first lowering step is to move to the GPU."""
    return on_device(program, _device())


class Inductor(Lowering):
    """AOTInductor's C++ host code around Triton kernels, replayed as one captured graph."""

    name = "inductor"
    passes = (lstm_steps, to_gpu, explicit_alpha)

    def why(self, program: Program) -> str | None:
        """Take every program."""
        del program
        return "the target compiles every program"

    def compile(self, program: Program) -> Compiled:
        """Compile kernels and host code; tens of seconds."""
        compiled, _ = aoti.compile_program(program, _device(), _options())
        return replayed(program, compiled, CudaGraphs())

    def load(self, program: Program, payload: bytes) -> Compiled:
        """Load kernels and host code; no compiler needed."""
        require_code(payload, "cuda")
        return replayed(program, aoti.load_program(payload, _device()), CudaGraphs())


class Cuda(Target):
    """The current GPU."""

    name = "cuda"
    lowerings = (Inductor(),)
    cacheable = True

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
        return _device()

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


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def _options() -> dict[str, Any]:
    # Random numbers on the GPU are Inductor's own: matching torch's stream would cost fusion.
    return {}


TARGET = Cuda()
