"""The CUDA lowering that runs torch's own kernels one after the other."""

from __future__ import annotations

import torch

from abele.passes.of_lowerings.gpu import gpu_attention, gpu_norms, on_device
from abele.program import Program
from abele.targets.base import Compiled, Lowering, Run, Take
from abele.targets.interpreter import function_of
from abele.targets.kernel_choice import by_torch
from abele.targets.replay import CudaGraphs, replayed


def current_gpu() -> torch.device:
    """Return the current CUDA device."""
    return torch.device("cuda", torch.cuda.current_device())


def to_gpu(program: Program) -> Program:
    """Move a program that was captured on the host to the GPU."""
    return on_device(program, current_gpu())


def straight_run(program: Program, take: Take | None = None) -> Run:
    """Return a function that calls torch's kernels for a program's operators, in order.

    Args:
        program: on the GPU.
        take: gets new state, which is then not written.
    """
    function = function_of(program.graph, take=take)

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            return list(function(inputs))

    return run


class OpByOp(Lowering):
    """A lowering to torch's kernels, replayed as one CUDA graph; nothing is compiled."""

    name = "op_by_op"
    manner = "run with torch's own kernels"
    passes = (to_gpu, gpu_attention, gpu_norms)

    def why(self, program: Program) -> str | None:
        """Return the reason to choose this lowering, for every program."""
        del program
        return "torch's own kernels run every program"

    def compile(self, program: Program) -> Compiled:
        """Compile the graph to a Python function, replayed as a CUDA graph."""
        return replayed(program, Compiled(straight_run(program)), CudaGraphs())

    def kernel_choices(self, program: Program) -> dict[torch.fx.Node, str]:
        """Return torch as the backend of every operator; views have none."""
        return by_torch(program)
