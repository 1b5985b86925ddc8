"""The oracle: interprets a program with torch's own kernels, bitwise equal to plain PyTorch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from abele import arena
from abele.program import Program
from abele.program.memory import MemoryUse, of_graph
from abele.targets import index_checks
from abele.targets.base import Clocked, Compiled, GraphClocks, Lowering, Run, Target
from abele.targets.interpreter import function_of
from abele.targets.kernel_choice import by_torch

# By the graph, which nobody edits any more, and whether tensors have planned places. Whoever runs a
# function keeps it, and its memory.
_Runs = weakref.WeakValueDictionary[bool, Run]
_runs: weakref.WeakKeyDictionary[torch.fx.GraphModule, _Runs] = weakref.WeakKeyDictionary()


class Interpreter(Lowering):
    """Runs the graph as Python, one operator after the other."""

    name = "interpreter"
    manner = "are interpreted"
    trusted = True
    certain = False

    def why(self, program: Program) -> str | None:
        """Take every program."""
        del program
        return "every program can be interpreted"

    def also_measure(self, program: Program) -> bool:
        """Be measured always: nothing is chosen that is slower than plain PyTorch."""
        del program
        return True

    def compile(self, program: Program) -> Compiled:
        """Write the graph as one function of Python, unless that of earlier steps is there."""
        known = _runs.setdefault(program.graph, weakref.WeakValueDictionary())
        planned = arena.available()  # it may have been made since
        run = known.get(planned)
        if run is None:
            run = known[planned] = _run(program, function_of(program.graph))
        return Compiled(run)

    def kernel_choices(self, program: Program) -> dict[torch.fx.Node, str]:
        """Return torch as the backend of every operator; views have none."""
        return by_torch(program)

    def clocked(self, program: Program) -> Clocked:
        """Look at the clock before and after each operator."""
        clocks = GraphClocks()
        return clocks.clocked(_run(program, function_of(program.graph, clocks)))

    def memory(self, program: Program) -> MemoryUse:
        """Every result until its last use; at planned places where that can be done."""
        use = arena.with_inner(of_graph(program))
        return arena.placed(use) if arena.available() else use


def _run(program: Program, function: Callable[[list[torch.Tensor]], Any]) -> Run:
    places = arena.Arena(arena.planned(of_graph(program)))

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        try:
            with torch.no_grad(), places.used():
                return list(function(inputs))
        except (IndexError, RuntimeError):
            index_checks.look(program, inputs)
            raise

    return run


class HostTarget(Target):
    """A target whose tensors are the host's, so that torch can interpret its programs there."""

    def device(self) -> torch.device:
        """Return the host."""
        return torch.device("cpu")

    def interpreted(self, program: Program) -> tuple[Program, Run]:
        """Return the program as it is, and what calls torch's kernels for its operators."""
        return program, Interpreter().compile(program).run


class Reference(HostTarget):
    """The target that interprets programs on the host."""

    name = "reference"
    lowerings = (Interpreter(),)

    def describe(self) -> Mapping[str, Any]:
        """Only torch decides what an interpreted program computes."""
        return {"target": self.name, "torch": torch.__version__}


TARGET = Reference()
