"""The reference target: interprets programs with torch kernels, bitwise equal to plain PyTorch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from abele import arena
from abele.passes.of_lowerings.early_writes import early_writes
from abele.program import Program
from abele.program.memory import MemoryUse, of_graph
from abele.targets import index_checks
from abele.targets.base import Clocked, Compiled, GraphClocks, Lowering, Run, Take, Target
from abele.targets.interpreter import function_of
from abele.targets.kernel_choice import by_torch

# By the graph, which nobody edits any more, and whether tensors have planned places. Whoever runs a
# function keeps it, and its memory.
_Runs = weakref.WeakValueDictionary[bool, Run]
_runs: weakref.WeakKeyDictionary[torch.fx.GraphModule, _Runs] = weakref.WeakKeyDictionary()


class Interpreter(Lowering):
    """A lowering that runs the graph as Python, operator by operator."""

    name = "interpreter"
    manner = "are interpreted"
    trusted = True
    certain = False

    def why(self, program: Program) -> str | None:
        """Return the reason to choose this lowering, for every program."""
        del program
        return "every program can be interpreted"

    def also_measure(self, program: Program) -> bool:
        """Return True: no lowering slower than plain PyTorch may be chosen."""
        del program
        return True

    def compile(self, program: Program) -> Compiled:
        """Compile the graph to a Python function, cached per graph."""
        known = _runs.setdefault(program.graph, weakref.WeakValueDictionary())
        planned = arena.available()  # it may have been made since
        run = known.get(planned)
        if run is None:
            early = early_writes(program)
            run = known[planned] = _run(early, function_of(early.graph))
        return Compiled(run)

    def kernel_choices(self, program: Program) -> dict[torch.fx.Node, str]:
        """Return torch as the backend of every operator; views have none."""
        return by_torch(program)

    def clocked(self, program: Program) -> Clocked:
        """Compile the graph to a Python function that times each operator."""
        clocks = GraphClocks()
        return clocks.clocked(_run(program, function_of(program.graph, clocks)))

    def memory(self, program: Program) -> MemoryUse:
        """Return memory use with every result alive until its last use."""
        use = arena.with_inner(of_graph(early_writes(program)))
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
    """A target whose tensors are on the host, so that torch can interpret its programs."""

    def device(self) -> torch.device:
        """Return the CPU device."""
        return torch.device("cpu")

    def interpreted(self, program: Program, take: Take | None = None) -> tuple[Program, Run]:
        """Return the program unchanged, and a callable that runs torch's kernels."""
        if take is not None:
            early = early_writes(program)
            return program, _run(early, function_of(early.graph, take=take))
        return program, Interpreter().compile(program).run


class Reference(HostTarget):
    """The target that interprets programs on the host."""

    name = "reference"
    lowerings = (Interpreter(),)

    def describe(self) -> Mapping[str, Any]:
        """Return target name and torch version, which decide interpreted results."""
        return {"target": self.name, "torch": torch.__version__}


TARGET = Reference()
