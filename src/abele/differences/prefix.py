"""The beginning of a program as a program of its own, so that its compiled values can be seen."""

from __future__ import annotations

import dataclasses

import torch

from abele.program import Program, Role, Slot, is_getitem, writes
from abele.program.dead_nodes import erase_dead_nodes
from abele.program.ownership import own_outputs

Node = torch.fx.Node


def operations(program: Program) -> list[Node]:
    """The nodes that prefixes may end with."""
    nodes = program.graph.graph.nodes
    return [n for n in nodes if n.op == "call_function" and not is_getitem(n) and not writes(n)]


def prefix(program: Program, count: int) -> tuple[Program, tuple[str, ...]]:
    """What a program computes up to some operation.

    Args:
        program: the whole.
        count: how many of ``operations`` are in it.

    Returns:
        The prefix, which returns every value that the rest or the caller needs and writes nothing;
        and the names of these values' nodes in the whole.
    """
    inside = set(operations(program)[:count])
    graph, copies = torch.fx.Graph(), dict[Node, Node]()
    slots = dict(zip(program.placeholders(), program.inputs, strict=True))
    inputs: list[Slot] = []
    for node in program.graph.graph.nodes:
        picked = is_getitem(node) and node.all_input_nodes[0] in inside
        read = node.op == "placeholder" and any(user in inside for user in node.users)
        if read:
            inputs.append(dataclasses.replace(slots[node], mutated=False))
        if read or picked or node in inside or node.op == "get_attr":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    returned = [node for node in copies if _is_needed(node, copies)]
    graph.output([copies[node] for node in returned])
    module = torch.fx.GraphModule(program.graph, graph)
    erase_dead_nodes(module)
    own_outputs(module)
    outputs = tuple(_slot(node) for node in returned)
    made = program.replace(graph=module, inputs=tuple(inputs), outputs=outputs, checks=())
    return made.verify(), tuple(node.name for node in returned)


def _is_needed(node: Node, copies: dict[Node, Node]) -> bool:
    """Whether somebody outside reads a node's value, which is a tensor with elements."""
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.Tensor) or not value.numel():
        return False
    return not node.users or any(user not in copies for user in node.users)


def _slot(node: Node) -> Slot:
    value = node.meta["val"]
    shape = tuple(value.shape)
    return Slot(name=node.name, role=Role.OUTPUT, shape=shape, dtype=value.dtype)
