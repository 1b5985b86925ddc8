"""The oracle: interprets a program with torch's own kernels, bitwise equal to plain PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from abele import _torch
from abele.program import Program
from abele.targets.base import Compiled, Lowering, Target


class Interpreter(Lowering):
    """Runs the graph as Python, one operator after the other."""

    name = "interpreter"
    manner = "are interpreted"

    def why(self, program: Program) -> str | None:
        """Take every program."""
        del program
        return "the target interprets every program"

    def beside(self, program: Program) -> bool:
        """Be measured always: nothing is chosen that is slower than plain PyTorch."""
        del program
        return True

    def compile(self, program: Program) -> Compiled:
        """Wrap the graph's own generated code, which frees each value after its last use."""
        graph = _with_reshapes(program.graph)

        def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            with torch.no_grad():
                return list(graph(*inputs))

        return Compiled(run)


class Reference(Target):
    """Interprets programs on the host."""

    name = "reference"
    lowerings = (Interpreter(),)

    def device(self) -> torch.device:
        """Always the host."""
        return torch.device("cpu")

    def describe(self) -> Mapping[str, Any]:
        """Only torch decides what an interpreted program computes."""
        return {"target": self.name, "torch": torch.__version__}


def _with_reshapes(program: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph, whose views copy where a kernel's result is laid out in another way.

    A trace makes a view of what torch says of tensors without data; plain PyTorch copies there.
    """
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    output = graph.graph_copy(program.graph, copies)
    graph.output(output)
    for node in graph.nodes:
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    return _torch.graph_module(program, graph)


TARGET = Reference()
