"""Passes on dead code, identities, common subexpressions, sums of slices and order of effects."""

from __future__ import annotations

import operator
from typing import Any

import torch

from abele._torch import OpOverload
from abele.containers import is_dict, is_sequence
from abele.passes._edit import editable, finished
from abele.program import (
    Program,
    calls_effect,
    has_effect,
    has_tag,
    is_getitem,
    node_argument,
    returned_nodes,
    writes,
)
from abele.program.aliasing import aliases_of_calls, base, erase_dead_nodes, stays_in_program
from abele.storage.values import bits


def dead_code(program: Program) -> Program:
    """Remove nodes that no output, input or write needs."""
    if all(node.users or stays_in_program(node) for node in program.graph.graph.nodes):
        return program
    graph = editable(program)
    erase_dead_nodes(graph, stays_in_program)
    return finished(program, graph)


aten = torch.ops.aten


def identities(program: Program) -> Program:
    """Replace each identity by its argument, except copies that are results of the program."""
    graph = editable(program)
    results = _own_results(graph)
    for node in graph.graph.nodes:
        same = _same_as(node)
        if same is not None and not (node in results and node.target is aten.copy.default):
            node.replace_all_uses_with(same)
            graph.graph.erase_node(node)
    return finished(program, graph)


def _same_as(node: torch.fx.Node) -> torch.fx.Node | None:
    if node.target in (aten.detach.default, aten.alias.default):
        return node_argument(node, 0)
    if node.target is aten.t.default:
        inner = node_argument(node, 0)
        return node_argument(inner, 0) if inner.target is aten.t.default else None
    if node.target is aten.copy.default:
        source = node_argument(node, 1)
        if base(source).op == "placeholder":
            return None  # the slot may be overwritten before the final copy reads it
        return source if _layout(source) == _layout(node) else None
    if node.target is aten.empty_like.default:  # of which a draw of dropout reads the layout alone
        source, draws = node_argument(node, 0), {user.target for user in node.users}
        return source if draws == {aten.bernoulli.p} and _layout(source) == _layout(node) else None
    return None


def _own_results(graph: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """Return the nodes that allocate results of a program; results may not share memory."""
    memory = aliases_of_calls(graph.graph).base
    owners = {memory(each) for each in returned_nodes(graph)}
    return owners | {node_argument(each, 0) for each in owners if is_getitem(each)}


def _layout(node: torch.fx.Node) -> tuple[Any, ...]:
    value = node.meta["val"]
    return value.dtype, value.device, tuple(value.shape), value.stride()


def common_subexpressions(program: Program) -> Program:
    """Merge nodes with the same target and arguments, except those that allocate results."""
    graph = editable(program)
    results = _own_results(graph)
    seen: dict[Any, torch.fx.Node] = {}
    mergeable: dict[int, bool] = {}  # by what is called, whose hash torch computes in Python
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        called = id(node.target)
        if called not in mergeable:
            mergeable[called] = _mergeable(node)
        if not mergeable[called] or node in results:
            continue
        key = (called, _key(node.args), _key(node.kwargs) if node.kwargs else ())
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.graph.erase_node(node)
    return finished(program, graph)


def _mergeable(node: torch.fx.Node) -> bool:
    if not isinstance(node.target, OpOverload) and not is_getitem(node):
        return False  # loops and branches: random operations may hide inside
    return not (
        writes(node) or has_effect(node) or has_tag(node, torch.Tag.nondeterministic_seeded)
    )


def _key(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return value
    if is_sequence(value):
        return tuple(map(_key, value))
    if is_dict(value):
        return tuple(sorted((name, _key(item)) for name, item in value.items()))
    return bits(value)


def effects_in_order(program: Program) -> Program:
    """Chain the nodes with side effects by data dependences, so that their order is kept."""
    if not calls_effect(program.graph.graph):
        return program
    graph = editable(program)
    before: torch.fx.Node | None = None
    for node in list(graph.graph.nodes):
        if not has_effect(node):
            continue
        if before is not None:
            node.args = (node.args[0], before, *node.args[2:])
        before = _tensor(node)
    return finished(program, graph)


def _tensor(node: torch.fx.Node) -> torch.fx.Node:
    """Return a node's result tensor, or the first of several."""
    if isinstance(node.meta["val"], torch.Tensor):
        return node
    for user in node.users:
        if is_getitem(user) and user.args[1] == 0 and user.prev is node:
            return user
    with node.graph.inserting_after(node):
        first = node.graph.call_function(operator.getitem, (node, 0))
    first.meta = {**node.meta, "val": node.meta["val"][0]}
    return first


def stacked_gradients(program: Program) -> Program:
    """Replace sums of the gradients of all slices of a tensor by a stack."""
    graph = editable(program)
    for node in reversed(list(graph.graph.nodes)):
        slices = _slices(node) if _is_plain_sum(node) else None
        if slices is None:
            continue
        dim, gradients = slices
        with graph.graph.inserting_before(node):
            stack = graph.graph.call_function(aten.stack.default, (gradients, dim))
        stack.meta = dict(node.meta)
        node.replace_all_uses_with(stack)
    return dead_code(finished(program, graph))


def _slices(node: torch.fx.Node) -> tuple[int, list[torch.fx.Node]] | None:
    """Return dimension and gradients of all slices, if a node sums the gradients of all slices."""
    value, terms = node.meta["val"], _terms_of_sum(node)
    gradients: dict[int, torch.fx.Node] = {}
    dims: set[int] = set()
    for term in terms:
        if term.target is not aten.select_backward.default:
            return None
        _, _, dim, index = term.args
        assert isinstance(dim, int)
        assert isinstance(index, int)
        dims.add(dim % value.dim())
        gradients[index % value.shape[dim]] = node_argument(term, 0)
    if len(dims) != 1 or len(gradients) != len(terms) or not value.is_contiguous():
        return None
    (dim,) = dims
    if len(gradients) != value.shape[dim]:
        return None
    return dim, [gradients[index] for index in range(len(gradients))]


def _terms_of_sum(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the leaves of a tree of additions whose partial sums have no other reader."""
    terms: list[torch.fx.Node] = []
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if _is_plain_sum(each) and (each is node or len(each.users) == 1):
            waiting += each.all_input_nodes
        else:
            terms.append(each)
    return terms


def _is_plain_sum(node: torch.fx.Node) -> bool:
    if node.target is not aten.add.Tensor or node.kwargs or len(node.all_input_nodes) != 2:
        return False
    values = [node.meta["val"], *(each.meta["val"] for each in node.all_input_nodes)]
    return len({(each.shape, each.dtype) for each in values}) == 1
