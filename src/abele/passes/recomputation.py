"""Rematerialization: recomputes activations between checkpoints in backward.

    a = relu(x); b = checkpoint(mm(a, w)); ...; g = mm(d, t(a))
->  a = relu(x); b = mm(a, w);             ...; a2 = relu(x); g = mm(d, t(a2))

Marked are the arguments of ``abele.ops.checkpoint`` and the values that pass from one segment to
another: from a node with ``scopes.mark(SEGMENT, 0)`` to one with ``scopes.mark(SEGMENT, 1)``.

What forward computed before the last mark is freed when forward has used it. Where backward needs
it, it is computed again from what is kept: inputs, weights, marked values, results of the program,
and whatever must not run twice - random numbers, prints and host calls. What follows the last mark
is needed as soon as forward ends, so computing it again would save nothing. Clones stand right
before their first reader; each is computed once. Bits stay.

The order of a graph is all that the reference looks at. Compilers have an order of their own, and
join kernels that read the same values, so clones also depend on what backward computed last.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from abele.containers import traverse
from abele.ops import checkpoint
from abele.passes._edit import editable, finished
from abele.program import (
    Program,
    has_effect,
    has_tag,
    is_getitem,
    is_view,
    marks_of,
    node_argument,
    returned_nodes,
    writes,
)
from abele.program.aliasing import kept_alive
from abele.program.core import node_phase

#: Key of the mark with a node's segment; values that cross segments are saved.
SEGMENT = "segment"

Nodes = set[torch.fx.Node]
aten = torch.ops.aten


def recomputation(program: Program) -> Program:
    """Rematerialize activations between checkpoints or segments, and remove the marks."""
    marks = program.graph.graph.find_nodes(op="call_function", target=checkpoint.operator)
    if not marks and not _borders(program.graph):
        return program
    graph = editable(program)
    marked = _remove_marks(graph) | _borders(graph)
    order = {node: index for index, node in enumerate(graph.graph.nodes)}
    again = _computed_again(graph, marked, order)
    clones: dict[torch.fx.Node, torch.fx.Node] = {}
    latest = None  # the last tensor that backward itself has computed
    for node in list(order):
        if node_phase(node) == "forward" or node.op in ("placeholder", "get_attr", "output"):
            continue
        if writes(node):  # of what forward leaves in a buffer; it is there already
            continue
        for needed in sorted(_needed(node, again, clones), key=order.__getitem__):
            with graph.graph.inserting_before(node):
                clones[needed] = _clone(needed, clones, latest)
        node.args = torch.fx.map_arg(node.args, lambda a: clones.get(a, a))
        node.kwargs = torch.fx.map_arg(node.kwargs, lambda a: clones.get(a, a))
        if isinstance(node.meta.get("val"), torch.Tensor) and not is_view(node):
            latest = node
    return finished(program, graph)


def kept_whole(program: Program) -> tuple[Program, frozenset[str]]:
    """Return the program without rematerialization, for memory estimates.

    Returns:
        The program without marks and borders, and the names of the values that were marked.
    """
    graph = editable(program)
    marked = _remove_marks(graph)
    for node in graph.graph.nodes:
        marks = marks_of(node)
        if SEGMENT in marks:
            node.meta["custom"] = {key: value for key, value in marks.items() if key != SEGMENT}
    return finished(program, graph), frozenset(node.name for node in marked)


def _remove_marks(graph: torch.fx.GraphModule) -> Nodes:
    """Remove the checkpoint operators and return the values that they marked."""
    marked: Nodes = set()
    for mark in list(graph.graph.find_nodes(op="call_function", target=checkpoint.operator)):
        value = node_argument(mark, 0)
        if value.meta["val"].stride() != mark.meta["val"].stride():
            # Nodes behind the mark were traced on the dense layout of a copy.
            with graph.graph.inserting_before(mark):
                copied = graph.graph.call_function(aten.clone.default, (value,))
            copied.meta = dict(mark.meta)
            value = copied
        mark.replace_all_uses_with(value)
        graph.graph.erase_node(mark)
        marked.add(value)
    return marked


def _borders(graph: torch.fx.GraphModule) -> Nodes:
    if not any(SEGMENT in marks_of(node) for node in graph.graph.nodes):
        return set()
    return {
        value
        for node in graph.graph.nodes
        for value in node.all_input_nodes
        if value.op == "call_function"
        and None not in (_segment(node), _segment(value))
        and _segment(node) != _segment(value)
    }


def _segment(node: torch.fx.Node) -> Any:
    forward = node_phase(node) == "forward"
    return marks_of(node).get(SEGMENT) if forward else None


def _computed_again(
    graph: torch.fx.GraphModule, marked: Nodes, order: dict[torch.fx.Node, int]
) -> Nodes:
    """Return the values of forward that backward may recompute."""
    last = max(order[node] for node in marked)
    kept = {each for node in (*marked, *returned_nodes(graph)) for each in kept_alive(node)}
    again: Nodes = set()
    for node in order:
        forward = node.op == "call_function" and node_phase(node) == "forward"
        runs_once = has_tag(node, torch.Tag.nondeterministic_seeded) or has_effect(node)
        if not forward or order[node] > last or node in kept or runs_once:
            continue
        # A view of a kept value and a result of a kept operation take no memory of their own.
        follows = is_getitem(node) or is_view(node)
        if not follows or node_argument(node, 0) in again:
            again.add(node)
    return again


def _clone(
    node: torch.fx.Node,
    clones: dict[torch.fx.Node, torch.fx.Node],
    latest: torch.fx.Node | None,
) -> torch.fx.Node:
    """Clone ``node`` on cloned inputs; a clone of saved values only depends on ``latest``."""
    replaced = dict(clones)
    inputs = node.all_input_nodes
    if latest is not None and inputs and not any(each in clones for each in inputs):
        # Waiting costs a copy, and one late argument is enough.
        smallest = min(inputs, key=_bytes)
        late = node.graph.call_function(checkpoint.not_before, (smallest, latest))
        late.meta = _backward_meta(smallest)
        replaced[smallest] = late
    clone = node.graph.node_copy(node, lambda a: replaced.get(a, a))
    clone.meta = _backward_meta(node)
    return clone


def _backward_meta(node: torch.fx.Node) -> dict[str, Any]:
    return {**node.meta, "custom": {**marks_of(node), "phase": "backward"}}


def _bytes(node: torch.fx.Node) -> int:
    value = node.meta["val"]
    return value.nbytes if isinstance(value, torch.Tensor) else sum(v.nbytes for v in value)


def _needed(node: torch.fx.Node, again: Nodes, clones: Iterable[torch.fx.Node]) -> Nodes:
    """Return the values that have to be recomputed for ``node`` and have no clone yet."""

    def missing(each: torch.fx.Node) -> list[torch.fx.Node]:
        return [i for i in each.all_input_nodes if i in again and i not in clones]

    return {*traverse(missing(node), missing)}
