"""The graph of a program, each operator replaced by what computes it here."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import torch

from abele import _torch
from abele._torch.copies import copied_graph
from abele.arena.running import Arena, kept
from abele.program import Program
from abele.targets.base import Clocked, GraphClocks, Run
from abele.targets.cpu.op_by_op.overwriting import IN_PLACE, Lifetimes, overwritten
from abele.targets.cpu.op_by_op.registry import own_kernel
from abele.targets.cpu.op_by_op.updates import copies_back, erase_copies, is_update
from abele.targets.interpreter import function_of

_Node = torch.fx.Node


def with_kernels(program: Program, library: ctypes.CDLL, arena: Arena | None = None) -> Run:
    """Return the program as a function of its input tensors; state is updated in place.

    Args:
        program: after the passes of its lowering.
        library: the kernels.
        arena: has places for its tensors; without it they come from the C library.
    """
    return _run(_replaced(program, library), arena)


def kinds_of(program: Program) -> set[str]:
    """Return the kinds of kernels that a program calls, as ``kernels.sources`` names them.

    Args:
        program: after the passes of its lowering.
    """
    kernels = map(own_kernel, program.graph.graph.nodes)
    return {kernel.kind for kernel in kernels if kernel is not None}


def with_clocks(program: Program, library: ctypes.CDLL, arena: Arena | None = None) -> Clocked:
    """Return the program with reads of the clock before and after each call."""
    clocks = GraphClocks({node.name: node for node in program.graph.graph.nodes})
    return clocks.clocked(_run(_replaced(program, library), arena, clocks))


def _replaced(program: Program, library: ctypes.CDLL) -> torch.fx.GraphModule:
    """Return the graph with each operator replaced by the function that computes it."""
    graph = _torch.graph_module(program.graph, copied_graph(program.graph.graph))
    lifetimes = Lifetimes(graph.graph)
    copies = {node: copies_back(node) for node in graph.graph.nodes if is_update(node)}
    for node in list(graph.graph.nodes):
        kernel = own_kernel(node)
        if kernel is None:
            _use_in_place(node, lifetimes)
            continue
        overwrite = overwritten(node, lifetimes) is not None
        if node in copies:
            overwrite = copies[node] is not None
            erase_copies(copies[node] or ())
        function: Any = kernel.function(node, library, overwrite)
        function.__name__ = kernel.name  # as clocks and reports call it
        node.target = function
    graph.graph.lint()
    return graph


def _run(
    graph: torch.fx.GraphModule, arena: Arena | None, clocks: GraphClocks | None = None
) -> Run:
    planned = contextlib.nullcontext if arena is None else arena.used
    function = function_of(graph, clocks, frees_inputs=True)

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad(), kept(), planned():
            return list(function(inputs))

    return run


def _use_in_place(node: _Node, lifetimes: Lifetimes) -> None:
    index = overwritten(node, lifetimes)
    if index is not None:
        if index:
            node.args = (node.args[index], node.args[0], *node.args[2:])
        node.target = IN_PLACE[node.target][0]
