"""The CUDA target: programs on an NVIDIA GPU, replayed as CUDA graphs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from abele import passes
from abele.program import Program
from abele.targets.base import Run, Take, Target
from abele.targets.cuda.emitted import nvrtc
from abele.targets.cuda.emitted.lowering import Emitted
from abele.targets.cuda.op_by_op import OpByOp, current_gpu, straight_run
from abele.targets.streams import on_capture_stream


class Cuda(Target):
    """The target that runs programs on the current NVIDIA GPU."""

    name = "cuda"
    lowerings = (Emitted(), OpByOp())
    cacheable = True
    measures = False  # the clock of the host does not see how long a GPU takes

    def unavailable(self) -> str | None:
        """Return why no GPU is usable, or None with a CUDA build of torch and a GPU."""
        if torch.version.cuda is None:
            return "this torch is built without CUDA. Install a CUDA build of torch."
        with warnings.catch_warnings():  # of a missing driver, which the reason says anyway
            warnings.simplefilter("ignore")
            usable = torch.cuda.is_available()
        if not usable:
            return "no CUDA device was found. Check the driver with nvidia-smi."
        return None

    def device(self) -> torch.device:
        """Return the current CUDA device."""
        return current_gpu()

    def interpreted(self, program: Program, take: Take | None = None) -> tuple[Program, Run]:
        """Return the program with operators that GPUs have, and a callable that runs it by torch.

        Captured programs contain attention of processors, and half norms with float32 weights.
        """
        lowered = passes.run_only(program, OpByOp.passes)
        run = straight_run(lowered, take)
        # As emitted code does: cuBLAS keeps 32 MiB for each stream.
        return lowered, lambda inputs: on_capture_stream(lambda: run(inputs))

    def toolchain(self) -> str:
        """Return the NVRTC version, which may differ for the same CUDA version of torch."""
        return nvrtc.version()

    def describe(self) -> Mapping[str, Any]:
        """Return the GPU's compute capability and library versions, for cache keys."""
        major, minor = torch.cuda.get_device_capability()
        return {
            "target": self.name,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "capability": f"{major}.{minor}",
            "headers": nvrtc.fingerprint(),
        }


TARGET = Cuda()
