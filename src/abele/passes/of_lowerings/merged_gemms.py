"""Sums of GEMMs as one GEMM, and sums of gradients of slices as one stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from abele.passes._edit import editable, finished
from abele.passes.cleanup import dead_code
from abele.program import Program, node_argument

aten = torch.ops.aten


def stacked_gradients(program: Program) -> Program:
    """Stack gradients of slices that together are a whole tensor."""
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
    """Return the dimension and the gradients of all slices along it, if a node is their sum."""
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
    """Return the terms of a sum of tensors of one shape, where nothing else reads its parts."""
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


_Node = torch.fx.Node

# Of two products the sum is as fast.
_LEAST_TERMS = 3
# Larger inner dimensions are fast by themselves, and joining them would copy them.
_LARGEST_INNER = 256


def summed_products(program: Program) -> Program:
    """Join the products that are only added to each other."""
    graph = editable(program)
    for node in reversed(list(graph.graph.nodes)):
        if _is_sum(node) and not _continues(node):
            products, others = _terms(node, _is_narrow_product)
            if len(products) >= _LEAST_TERMS:
                _join(node, products, others)
    for node in reversed(list(graph.graph.nodes)):
        if _is_sum(node) and not _continues(node):
            _sum_at_once(node)
    return dead_code(finished(program, graph))


def _is_sum(node: _Node) -> bool:
    return (
        node.target is aten.add.Tensor
        and not node.kwargs
        and all(isinstance(each, _Node) for each in node.args)
        and all(each.meta["val"].shape == node.meta["val"].shape for each in node.all_input_nodes)
        and node.meta["val"].dtype is torch.float32
    )


def _continues(node: _Node) -> bool:
    """Return whether a sum is only a term of another one."""
    return len(node.users) == 1 and _is_sum(next(iter(node.users)))


def _terms(node: _Node, wanted: Callable[[_Node], bool]) -> tuple[list[_Node], list[_Node]]:
    """Return the wanted terms of a sum, the last of the graph first, and all other terms.

    Backward goes through time steps from the last to the first; what it makes for them is often
    stacked in the order of time too, and then lies together already.
    """
    products: list[_Node] = []
    others: list[_Node] = []
    waiting = [node]
    while waiting:
        for term in reversed(waiting.pop().args):
            assert isinstance(term, _Node)
            if len(term.users) == 1 and _is_sum(term):
                waiting.append(term)
            elif len(term.users) == 1 and wanted(term):
                products.append(term)
            else:
                others.append(term)
    return sorted(products, reverse=True), others[::-1]


def _is_narrow_product(node: _Node) -> bool:
    if node.target is not aten.mm.default:
        return False
    left, right = node_argument(node, 0), node_argument(node, 1)
    if left.target is not aten.t.default:
        return False
    inner = right.meta["val"].shape[0]
    tensors = (node_argument(left, 0).meta["val"], right.meta["val"])
    return 0 < inner <= _LARGEST_INNER and all(each.is_contiguous() for each in tensors)


def _join(node: _Node, products: list[_Node], others: list[_Node]) -> None:
    graph = node.graph
    with graph.inserting_before(node):
        lefts = _joined(graph, [node_argument(node_argument(each, 0), 0) for each in products])
        rights = _joined(graph, [node_argument(each, 1) for each in products])
        turned = _made(graph, node, aten.t.default, (lefts,), lefts.meta["val"].t())
        result = _made(graph, node, aten.mm.default, (turned, rights), node.meta["val"])
        for each in others:
            result = _made(graph, node, aten.add.Tensor, (result, each), node.meta["val"])
    node.replace_all_uses_with(result)
    for each in (lefts, rights):
        _see_stacks(each)


def _see_stacks(joined: _Node) -> None:
    """Replace later stacks of the same tensors by views of the concatenated tensor."""
    rows: Any = joined.args[0]
    for node in list(rows[0].users):
        same = node.target is aten.stack.default and node.args == (rows,) and joined < node
        if same:
            with node.graph.inserting_before(node):
                shape = list(node.meta["val"].shape)
                seen = _made(node.graph, node, aten.view.default, (joined, shape), node.meta["val"])
            node.replace_all_uses_with(seen)


def _sum_at_once(node: _Node) -> None:
    """Replace a sum of column sums by that of the columns of all rows, if these lie together."""
    sums, others = _terms(node, _is_column_sum)
    if len(sums) < _LEAST_TERMS:
        return
    joined = _together([_summed(each) for each in sums])
    if joined is None or not all(joined < user for user in node.users):
        return
    graph, value = node.graph, joined.meta["val"]
    total = _total(joined, node)
    with graph.inserting_before(min(node.users)):
        if total is None:
            arguments = joined, [0], True
            total = _made(graph, node, aten.sum.dim_IntList, arguments, value.sum(0, True))
        shape = list(node.meta["val"].shape)
        result = _made(graph, node, aten.view.default, (total, shape), node.meta["val"])
        for each in others:
            result = _made(graph, node, aten.add.Tensor, (result, each), node.meta["val"])
    node.replace_all_uses_with(result)


def _is_column_sum(node: _Node) -> bool:
    if node.target is not aten.view.default:
        return False
    total = node_argument(node, 0)
    return (
        total.target is aten.sum.dim_IntList
        and total.args[1:] == ([0], True)
        and not total.kwargs
        and node_argument(total, 0).meta["val"].dim() == 2
    )


def _summed(node: _Node) -> _Node:
    return node_argument(node_argument(node, 0), 0)


def _together(rows: list[_Node]) -> _Node | None:
    """Return a tensor that concatenates these rows, in any order, or None."""
    for node in rows[0].users:
        if node.target is aten.cat.default and len(node.args) == 1:
            tensors: Any = node.args[0]
            if len(tensors) == len(rows) and set(tensors) == set(rows):
                return node
    return None


def _total(joined: _Node, node: _Node) -> _Node | None:
    """Return a node that already sums all rows before ``node``, or None."""
    for view in joined.users:
        if not _is_split(view, joined):
            continue
        dims = list(range(view.meta["val"].dim() - 1))
        for total in view.users:
            same = total.target is aten.sum.dim_IntList and total.args[1:] == (dims, True)
            if same and not total.kwargs and all(total < user for user in node.users):
                return total
    return None


def _is_split(view: _Node, joined: _Node) -> bool:
    """Return whether a view splits the rows of a matrix into several dimensions."""
    is_view = view.target is aten.view.default
    return is_view and view.meta["val"].shape[-1] == joined.meta["val"].shape[-1]


def _joined(graph: torch.fx.Graph, rows: list[_Node]) -> _Node:
    value = torch.cat([each.meta["val"] for each in rows])
    return _made(graph, rows[-1], aten.cat.default, (rows,), value)


def _made(graph: torch.fx.Graph, like: _Node, target: Any, arguments: Any, value: Any) -> _Node:
    node = graph.call_function(target, arguments)
    node.meta = {**like.meta, "val": value}
    return node
