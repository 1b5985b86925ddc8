"""The GPU that programs run on."""

from __future__ import annotations

import torch

from abele.passes.of_lowerings.gpu import on_device
from abele.program import Program


def current_gpu() -> torch.device:
    """Return the current GPU."""
    return torch.device("cuda", torch.cuda.current_device())


def to_gpu(program: Program) -> Program:
    """Capture runs on the host; the first lowering step is to move to the GPU."""
    return on_device(program, current_gpu())
