"""Removal of operations that nothing reads and that write nothing.

    a = relu(x); b = tanh(x); return [b]   ->   a is gone

A random operation goes too if nothing reads it: the stream of a program is its own.
"""

from __future__ import annotations

from abele.passes._edit import editable, finished
from abele.program import Program
from abele.program.dead_nodes import erase_dead_nodes, stays_in_program


def dead_code(program: Program) -> Program:
    """Keep inputs, outputs, writes and what they need."""
    if all(node.users or stays_in_program(node) for node in program.graph.graph.nodes):
        return program
    graph = editable(program)
    erase_dead_nodes(graph, stays_in_program)
    return finished(program, graph)
