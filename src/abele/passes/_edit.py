"""Editing a program's graph: passes copy, change the copy, and hand back a new program."""

from __future__ import annotations

import copy

import torch
from torch.fx.graph import CodeGen

from abele import _torch
from abele._torch import OpOverload
from abele.program import Program


def editable(program: Program) -> torch.fx.GraphModule:
    """A copy of the program's graph that shares constants but no nodes."""
    graph = _torch.graph_module(program.graph, copy.deepcopy(program.graph.graph))
    graph.graph.set_codegen(CodeGen())
    return graph


def finished(program: Program, graph: torch.fx.GraphModule) -> Program:
    """The program with ``graph`` in place of its own."""
    graph.graph.lint()
    graph.recompile()  # marks its code, which was not generated yet, as old
    return program.replace(graph=graph)


def substitute(node: torch.fx.Node, target: OpOverload, arguments: tuple) -> None:
    """Puts ``target(*arguments)`` in the place of ``node``, with all that is known about it."""
    with node.graph.inserting_before(node):
        new = node.graph.call_function(target, arguments)
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)
