"""Order of writes into state, for programs that torch runs operator by operator."""

from __future__ import annotations

import torch

from abele.passes._edit import editable, finished
from abele.program import Program, has_tag, is_getitem, is_view, node_argument, writes
from abele.program.aliasing import aliases_of_calls

aten = torch.ops.aten


def early_writes(program: Program) -> Program:
    """Write new state after the last use of the old one, once no operator can fail any more.

    At the end of a program all new state would be alive together: thrice the weights for Adam.
    """
    aliases, last, certain_from = aliases_of_calls(program.graph.graph), dict[object, int](), 0
    nodes = list(program.graph.graph.nodes)
    for index, node in enumerate(nodes):
        for each in node.all_input_nodes[int(writes(node)) :]:
            last[aliases.base(each)] = index
        if node.op == "call_function" and not _is_certain(node):
            certain_from = index
    position = {node: index for index, node in enumerate(nodes)}
    moves = list[tuple[int, int]]()
    for index, node in enumerate(nodes):
        if writes(node):
            slot, value = node_argument(node, 0), node_argument(node, 1)
            after = max(certain_from, position[value], last.get(slot, 0))
            if after < index:
                moves.append((after, index))
    if not moves:
        return program
    graph = editable(program)
    copied = list(graph.graph.nodes)
    for after, index in moves:
        copied[after].append(copied[index])
    return finished(program, graph)


def _is_certain(node: torch.fx.Node) -> bool:
    """Return whether no value of a node's arguments can make it fail, or have an effect."""
    casts = node.target is aten._to_copy.default
    known = casts or writes(node) or is_view(node) or is_getitem(node)
    return known or has_tag(node, torch.Tag.pointwise)
