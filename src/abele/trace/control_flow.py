"""Tracing of loops and branches as single nodes with inner graphs.

A body is traced in place, like any other code of forward, so that it may read parameters,
constants and values of its surroundings. Its nodes then move from the program into a graph of their
own, whose inputs are the body's arguments and all other values that it reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele import _torch
from abele.errors import CaptureError
from abele.program import subgraphs, writes
from abele.program.aliasing import base, written
from abele.trace import scopes

aten = torch.ops.aten

Body = Callable[..., Sequence[torch.Tensor]]


@dataclasses.dataclass
class _Outlined:
    """The body of a loop or branch, whose nodes were removed from the program's graph.

    Attributes:
        nodes: of the body, detached from the trace.
        inputs: the nodes of the body's arguments.
        read: nodes of the program that the body reads besides its arguments, in order.
        returned: the nodes of its results.
        fakes: its results, for their shapes and types.
        root: holds the constants and inner graphs that ``nodes`` name.
    """

    nodes: list[torch.fx.Node]
    inputs: list[torch.fx.Node]
    read: list[torch.fx.Node]
    returned: list[torch.fx.Node]
    fakes: list[torch.Tensor]
    root: torch.nn.Module

    def graph(self, read: Sequence[torch.fx.Node], *, counted: bool) -> torch.fx.GraphModule:
        """Return the body as a graph of its arguments and ``read`` without aliased results.

        Args:
            read: further inputs of the graph; at least those that the body reads.
            counted: the graph has a counter as first input and returns it plus one.
        """
        graph = torch.fx.Graph()
        counter = graph.placeholder("counter") if counted else None
        inputs = {node: graph.placeholder(f"argument{i}") for i, node in enumerate(self.inputs)}
        inputs |= {node: graph.placeholder(f"read{i}") for i, node in enumerate(read)}
        if any(writes(node) for node in self.nodes):
            for node in self.inputs:
                inputs[node] = graph.call_function(aten.clone.default, (inputs[node],))
        for node in self.nodes:
            inputs[node] = graph.node_copy(node, lambda old: inputs[old])
        results = [graph.call_function(aten.clone.default, (inputs[n],)) for n in self.returned]
        if counter is not None:
            results.insert(0, graph.call_function(aten.add.Tensor, (counter, 1)))
        graph.output(tuple(results))
        return torch.fx.GraphModule(self.root, graph)


def loop(
    count: int, body: Body, inputs: Sequence[torch.Tensor], check: Callable[..., None]
) -> list[torch.Tensor]:
    """Apply ``body`` ``count`` times to its own results, starting from copies of ``inputs``.

    Args:
        count: number of iterations, known while capturing.
        body: takes and returns tensors of the shapes and types of ``inputs``; runs once here.
        inputs: values of the active capture.
        check: called with the body's results; raises if they do not fit ``inputs``.

    Raises:
        CaptureError: the body changes a tensor of its surroundings in place.
    """
    carried = [tensor.clone() for tensor in inputs]
    counter = torch.zeros((), dtype=torch.int64, device="cpu")
    with scopes.nodes_to_be_moved():
        outlined = _outline(body, carried)
        check(outlined.fakes)
        graph = outlined.graph(outlined.read, counted=True)
        _erase(outlined)
    start = [_torch.tracked_fake(node) for node in outlined.inputs]
    read = tuple(_torch.tracked_fake(node) for node in outlined.read)

    def again(counter: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return counter < count

    _torch.prepare_control_flow()
    while_loop: Any = torch.ops.higher_order.while_loop
    return list(while_loop(again, graph, (counter, *start), read)[1:])


def choose(
    condition: torch.Tensor,
    bodies: tuple[Body, Body],
    inputs: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]],
    check: Callable[..., None],
) -> list[torch.Tensor]:
    """Run one of two bodies, chosen by the condition's value at run time.

    Args:
        condition: 0-d bool; true takes the first.
        bodies: both run once here; their results agree in number, shapes and types.
        inputs: arguments of each, which the bodies see as copies.
        check: called with both lists of results; raises if they do not agree.

    Raises:
        CaptureError: a body changes a tensor of its surroundings in place.
    """
    with scopes.nodes_to_be_moved():
        sides = [
            _outline(_on_copies(body, operands), ())
            for body, operands in zip(bodies, inputs, strict=True)
        ]
        check(*(side.fakes for side in sides))
        read = list(dict.fromkeys(node for side in sides for node in side.read))
        first, second = (side.graph(read, counted=False) for side in sides)
        for side in reversed(sides):
            _erase(side)
    operands = tuple(_torch.tracked_fake(node) for node in read)
    _torch.prepare_control_flow()
    cond: Any = torch.ops.higher_order.cond
    return list(cond(condition, first, second, operands))


def _on_copies(body: Body, operands: Sequence[torch.Tensor]) -> Body:
    return lambda: body(*[each.clone() for each in operands])


def restore_views(graph: torch.fx.GraphModule) -> None:
    """Turn copies in the bodies of loops and branches back into views.

    Functionalization turns views into copies inside bodies only. Bodies no longer write and clone
    their results, so views are safe, and compilers handle them better.
    """
    for _, inner in subgraphs(graph):
        restore_views(inner)
        for node in inner.graph.nodes:
            node.target = _VIEWS.get(node.target, node.target)
        inner.recompile()


# Where writes were removed, strides may have changed: a view becomes a reshape.
_VIEWS: dict[Any, Any] = {aten.view_copy.default: aten.reshape.default}
for _name in (
    *("t.default", "transpose.int", "permute.default", "expand.default", "select.int"),
    *("slice.Tensor", "squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default"),
    *("split.Tensor", "split_with_sizes.default", "unbind.int", "diagonal.default"),
    *("unfold.default", "alias.default", "detach.default"),
):
    _view, _overload = _name.split(".")
    _copy = getattr(getattr(aten, f"{_view}_copy"), _overload)
    _VIEWS[_copy] = getattr(getattr(aten, _view), _overload)


def _outline(body: Body, arguments: Sequence[torch.Tensor]) -> _Outlined:
    before = set(_torch.traced_nodes())
    # Before the body runs: a tensor changed in place then has the node that changed it.
    inputs = [_node(tensor) for tensor in arguments]
    results = list(body(*arguments))
    # A tensor that no node computes becomes one: bodies return values of the program.
    results = [
        each if _torch.traced_node(each) is not None else torch.zeros_like(each) + each
        for each in results
    ]
    mode: Any = _torch.get_proxy_mode()
    assert mode is not None, "loops and branches of programs exist during capture only"
    root: torch.nn.Module = mode.tracer.root
    traced = [node for node in _torch.traced_nodes() if node not in before]
    nodes = [node for node in traced if not _is_constant(node, root)]
    returned = [_node(tensor) for tensor in results]
    inside = {*nodes, *inputs}
    used = [source for node in nodes for source in node.all_input_nodes] + returned
    read = [node for node in dict.fromkeys(used) if node not in inside]
    _refuse_outer_writes(nodes, set(read))
    return _Outlined(nodes, inputs, read, returned, results, root)


def _node(tensor: torch.Tensor) -> torch.fx.Node:
    node = _torch.traced_node(tensor)
    assert node is not None, tensor
    return node


def _is_constant(node: torch.fx.Node, root: torch.nn.Module) -> bool:
    """Return whether a ``get_attr`` node names a tensor, not an inner graph."""
    return node.op == "get_attr" and not isinstance(
        getattr(root, str(node.target), None), torch.nn.Module
    )


def _refuse_outer_writes(nodes: list[torch.fx.Node], read: set[torch.fx.Node]) -> None:
    memories = {base(node) for node in read}
    for node in nodes:
        if any(base(target) in memories for target in written(node)):
            raise CaptureError(
                "The body of a loop or branch changes a tensor of its surroundings in place "
                f"({node.target}). A body may read such tensors and change copies only. Pass the "
                "tensor as an input and return its new value."
            )


def _erase(outlined: _Outlined) -> None:
    for node in reversed(outlined.nodes):
        node.graph.erase_node(node)
