"""The graph of a program, each operator replaced by what computes it here."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

import torch

from abele import _torch
from abele._torch.copies import copied_graph
from abele.arena.running import Arena, kept
from abele.kernels.convolutions import kernel_of
from abele.ops import adam, norm_activation
from abele.program import Program
from abele.targets.base import Clocked, GraphClocks, Run
from abele.targets.cpu.op_by_op import calls, pools, upsampling
from abele.targets.cpu.op_by_op.convolutions import own_convolution
from abele.targets.cpu.op_by_op.lifetimes import Lifetimes
from abele.targets.cpu.op_by_op.pools import own_pool
from abele.targets.cpu.op_by_op.updates import copies_back, is_update, own_update
from abele.targets.cpu.op_by_op.upsampling import own_upsampling
from abele.targets.interpreter import function_of

aten = torch.ops.aten

_Node = torch.fx.Node

#: Our kernel for each operator, and which argument it may overwrite.
OURS: dict[Any, tuple[Callable[..., Callable[..., Any]], int]] = {
    norm_activation.forward: (calls.norm_activation, 0),
    norm_activation.backward: (calls.norm_activation_backward, 0),
    norm_activation.of_sum: (calls.norm_sum_activation, 5),
    norm_activation.of_sum_backward: (calls.norm_sum_activation_backward, 0),
    norm_activation.evaluation: (calls.scale_shift_activation, 0),
}

# Operators whose result may take the place of an argument of the same shape and type.
_IN_PLACE: dict[Any, tuple[Any, tuple[int, ...]]] = {
    aten.add.Tensor: (aten.add_.Tensor, (0, 1)),
    aten.relu.default: (aten.relu_.default, (0,)),
    aten.leaky_relu.default: (aten.leaky_relu_.default, (0,)),
}


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
    return {kind for node in program.graph.graph.nodes for kind in [_kind_of(node)] if kind}


def _kind_of(node: _Node) -> str | None:
    kernel = kernel_of(node)
    if kernel is not None:
        return kernel.kind
    if pools.is_ours(node):
        return "pools"
    if upsampling.is_ours(node):
        return "upsampling"
    if node.target in OURS:
        return "norms"
    return None if not is_update(node) else "adam" if node.target is adam.update else "sgd"


def with_clocks(program: Program, library: ctypes.CDLL, arena: Arena | None = None) -> Clocked:
    """Return the program with reads of the clock before and after each call."""
    clocks = GraphClocks({node.name: node for node in program.graph.graph.nodes})
    return clocks.clocked(_run(_replaced(program, library), arena, clocks))


def _replaced(program: Program, library: ctypes.CDLL) -> torch.fx.GraphModule:
    """Return the graph with each operator replaced by the function that computes it."""
    graph = _torch.graph_module(program.graph, copied_graph(program.graph.graph))
    lifetimes = Lifetimes(graph.graph)
    spared = {node: copies_back(node) for node in graph.graph.nodes if is_update(node)}
    for node in list(graph.graph.nodes):
        kernel = (
            own_convolution(node, library)
            or own_pool(node, library)
            or own_upsampling(node, library)
        )
        if kernel is not None:
            node.target = kernel
        elif node.target in OURS:
            make, _ = OURS[node.target]
            node.target = make(library, overwrite=overwritten(node, lifetimes) is not None)
        elif node in spared:
            node.target = own_update(node, library, spared[node])
        elif node.target in _IN_PLACE:
            _use_in_place(node, lifetimes)
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


def overwritten(node: _Node, lifetimes: Lifetimes) -> int | None:
    """Index of the argument over which a node's first result is written; None if over none."""
    if node.target in OURS:
        _, index = OURS[node.target]
        argument = node.args[index]
        assert isinstance(argument, _Node)
        return index if lifetimes.may_overwrite(node, argument) else None
    if node.target not in _IN_PLACE or node.kwargs:
        return None
    result = node.meta["val"]
    for index in _IN_PLACE[node.target][1]:
        value = node.args[index]
        if not isinstance(value, _Node) or not lifetimes.may_overwrite(node, value):
            continue
        argument = value.meta["val"]
        if argument.shape == result.shape and argument.dtype == result.dtype:
            return index
    return None


def _use_in_place(node: _Node, lifetimes: Lifetimes) -> None:
    index = overwritten(node, lifetimes)
    if index is not None:
        if index:
            node.args = (node.args[index], node.args[0], *node.args[2:])
        node.target = _IN_PLACE[node.target][0]
