"""Removal of operations that nothing reads and that write nothing.

    a = relu(x); b = tanh(x); return [b]   ->   a is gone

A random operation goes too if nothing reads it: the stream of a program is its own.
"""

from __future__ import annotations

import torch

from abele.passes._edit import editable, finished
from abele.program import Program, writes


def dead_code(program: Program) -> Program:
    """Keep inputs, outputs, writes and what they need."""
    if all(node.users or _stays(node) for node in program.graph.graph.nodes):
        return program
    graph = editable(program)
    graph.graph.eliminate_dead_code(_stays)
    return finished(program, graph)


def _stays(node: torch.fx.Node) -> bool:
    return node.op in ("placeholder", "output") or writes(node)
