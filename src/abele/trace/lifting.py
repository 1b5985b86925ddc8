"""Turning constants of a graph into inputs during functionalization, and back.

Functionalization follows writes to inputs and views of inputs, but not of constants. Constants that
share memory, one of which is written, become views of one input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from abele import _torch
from abele.program.aliasing import SHARES, base, written

aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class Lifted:
    """A constant that is an input for a while.

    Attributes:
        name: of the attribute that holds it.
        value: what it holds.
        fake: the same without data.
        meta: of the node that names it.
    """

    name: str
    value: torch.Tensor
    fake: torch.Tensor
    meta: dict[str, Any]


def lift(graph: torch.fx.GraphModule) -> list[Lifted]:
    """Turn the tensors that a graph names into further inputs, behind all others."""
    named = [node for node in graph.graph.nodes if node.op == "get_attr"]
    named = [node for node in named if isinstance(_value(graph, node), torch.Tensor)]
    memories: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node in named:
        memories.setdefault(node.meta.get(SHARES, node), []).append(node)
    changed = {base(each) for node in graph.graph.nodes for each in written(node)}
    lifted: list[Lifted] = []
    for first, nodes in memories.items():
        if len(nodes) > 1 and first in changed:
            lifted.append(_as_views(graph, nodes))
        else:
            lifted += [_as_input(graph, node) for node in nodes]
    return lifted


def lower(graph: torch.fx.GraphModule, lifted: Sequence[Lifted]) -> None:
    """Turn the last inputs of a graph into constants again; what it writes into them is lost."""
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node, constant in zip(inputs[len(inputs) - len(lifted) :], lifted, strict=True):
        for user in list(node.users):
            if user.target is aten.copy_.default and user.args[0] is node and not user.users:
                graph.graph.erase_node(user)
        if node.users:
            graph.register_buffer(constant.name, constant.value)
            first = next(each for each in graph.graph.nodes if each in node.users)
            with graph.graph.inserting_before(first):
                named = graph.graph.get_attr(constant.name)
            named.meta = constant.meta
            node.replace_all_uses_with(named)
        graph.graph.erase_node(node)


def _value(graph: torch.fx.GraphModule, node: torch.fx.Node) -> object:
    return getattr(graph, str(node.target))


def _as_input(graph: torch.fx.GraphModule, node: torch.fx.Node) -> Lifted:
    value = _value(graph, node)
    assert isinstance(value, torch.Tensor)
    placed = _placeholder(graph, str(node.target), node.meta["val"])
    node.replace_all_uses_with(placed)
    graph.graph.erase_node(node)
    return Lifted(str(node.target), value, node.meta["val"], node.meta)


def _as_views(graph: torch.fx.GraphModule, nodes: Sequence[torch.fx.Node]) -> Lifted:
    """Return one input for the memory of several constants, each of which becomes a view of it."""
    first = _value(graph, nodes[0])
    assert isinstance(first, torch.Tensor)
    storage = first.untyped_storage()
    size = storage.nbytes() // first.element_size()
    with _torch.outside_the_trace():
        empty = torch.empty(0, dtype=first.dtype, device=first.device)
        whole = empty.set_(storage, 0, (size,), (1,))
    fake = nodes[0].meta["val"].new_empty(size)
    placed = _placeholder(graph, str(nodes[0].target), fake)
    for node in reversed(nodes):
        value, source = node.meta["val"], placed
        with graph.graph.inserting_after(placed):
            if value.dtype is not first.dtype:
                source = graph.graph.call_function(aten.view.dtype, (placed, value.dtype))
                source.meta = {**node.meta, "val": fake.view(value.dtype)}
        with graph.graph.inserting_after(source):
            original = _value(graph, node)
            assert isinstance(original, torch.Tensor)
            layout = list(value.shape), list(value.stride()), int(original.storage_offset())
            view = graph.graph.call_function(aten.as_strided.default, (source, *layout))
        view.meta = {key: each for key, each in node.meta.items() if key != SHARES}
        node.replace_all_uses_with(view)
        graph.graph.erase_node(node)
    return Lifted(str(nodes[0].target), whole, fake, {"val": fake})


def _placeholder(graph: torch.fx.GraphModule, name: str, fake: torch.Tensor) -> torch.fx.Node:
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    if nodes:
        with graph.graph.inserting_after(nodes[-1]):
            placed = graph.graph.placeholder(name)
    else:
        with graph.graph.inserting_before(next(iter(graph.graph.nodes))):
            placed = graph.graph.placeholder(name)
    placed.meta["val"] = fake
    return placed
