"""Editing a program's graph: passes copy, change the copy, and hand back a new program."""

from __future__ import annotations

import copy

import torch
from torch.fx.graph import CodeGen

from abele.program import Program


def editable(program: Program) -> torch.fx.GraphModule:
    """A copy of the program's graph that shares constants but no nodes."""
    graph = torch.fx.GraphModule(program.graph, copy.deepcopy(program.graph.graph))
    graph.graph.set_codegen(CodeGen())
    return graph


def finished(program: Program, graph: torch.fx.GraphModule) -> Program:
    """The program with ``graph`` in place of its own."""
    graph.graph.lint()
    graph.recompile()
    return program.replace(graph=graph)
