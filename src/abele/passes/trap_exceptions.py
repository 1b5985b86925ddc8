"""Floating-point exceptions: locates the operation that first computed an infinity or a NaN.

    c = div(a, b)   ->   c = div(a, b); m = amax(abs(c)); ...; return [..., stack([..., m, ...])]

The largest magnitude of a tensor is NaN if the tensor holds a NaN, and infinite if it holds an
infinity. One such number per floating tensor leaves the program as one more output, in the order
of the operations; ``runtime.micro_steps`` compares results with operands on the host. As in IEEE
754, what propagates is no exception: infinities from infinities and NaN from NaN are silent, so
masks of minus infinity pass. A comparison by order with a NaN is an exception.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from abele._torch import HigherOrderOperator, OpOverload
from abele.containers import is_dict, is_sequence
from abele.passes._edit import editable, finished
from abele.program import (
    Check,
    Program,
    Role,
    Slot,
    all_nodes,
    is_getitem,
    is_view,
    marks_of,
    node_argument,
    output_node,
    returned_nodes,
    writes,
)
from abele.program.aliasing import base
from abele.program.core import node_phase, user_line

aten = torch.ops.aten

# By order; equality is quiet, as in IEEE 754.
_COMPARISONS = {
    *(aten.lt.Tensor, aten.le.Tensor, aten.gt.Tensor, aten.ge.Tensor),
    *(aten.lt.Scalar, aten.le.Scalar, aten.gt.Scalar, aten.ge.Scalar),
}

# Compiled code may measure a value before it is rounded to its type: from here on it is infinite.
_OVERFLOW = {torch.float16: 65520.0, torch.bfloat16: 2.0**127 * (2 - 2**-8)}


def trap_exceptions(program: Program) -> Program:
    """Add an output with the magnitudes of all floating tensors, and its table of checks."""
    graph = editable(program)
    magnitudes = _Magnitudes()
    checks = [
        check for node in list(graph.graph.nodes) if (check := magnitudes.check(node)) is not None
    ]
    if not checks:
        return program
    output_node(graph).args = ([*returned_nodes(graph), magnitudes.stacked(graph)],)
    slot = Slot(
        name="magnitudes",
        role=Role.MAGNITUDES,
        shape=(len(magnitudes.nodes),),
        dtype=torch.float64,
    )
    changed = program.replace(outputs=(*program.outputs, slot), checks=tuple(checks))
    return finished(changed, graph)


class _Magnitudes:
    """Maximum magnitudes of a graph's floating-point tensors, one number each."""

    def __init__(self):
        self.nodes: list[torch.fx.Node] = []
        self._index: dict[torch.fx.Node, int] = {}

    def check(self, node: torch.fx.Node) -> Check | None:
        """Return a check of ``node`` if it computes a floating tensor; views are skipped."""
        if node.target in _COMPARISONS and node_phase(node) == "forward":
            return self._comparison(node)
        computes = node.op == "call_function" and not writes(node) and not is_view(node)
        if not computes or not _is_floating(node.meta.get("val")):
            return None
        source = node_argument(node, 0) if is_getitem(node) else node
        if is_getitem(node) and is_view(source):
            return None
        # A loop or branch is watched as one operation.
        inside = [(inner.args, inner.kwargs) for inner in _inner_nodes(source)]
        constants = list(_constants([source.args, source.kwargs, inside]))
        undefined = "empty" in str(source.target) or any(map(math.isnan, constants))
        target: Any = source.target
        if undefined or not isinstance(target, OpOverload | HigherOrderOperator):
            return None
        return Check(
            magnitude=self._of(node),
            sources=tuple(self._sources(source)),
            overflow=_OVERFLOW.get(node.meta["val"].dtype, math.inf),
            infinite_constant=any(map(math.isinf, constants)),
            **_place(source),
        )

    def _comparison(self, node: torch.fx.Node) -> Check | None:
        # Not of the memory behind a view, whose other elements may be NaN.
        floating = [each for each in node.all_input_nodes if _is_floating(each.meta.get("val"))]
        sources = tuple(map(self._of, floating))
        if not sources:
            return None
        return Check(
            magnitude=sources[0],
            sources=sources,
            overflow=math.inf,
            infinite_constant=False,
            is_comparison=True,
            **_place(node),
        )

    def _sources(self, node: torch.fx.Node) -> Iterator[int]:
        for argument in node.all_input_nodes:
            memory = base(argument)
            if _is_floating(memory.meta.get("val")):
                yield self._of(memory)

    def _of(self, node: torch.fx.Node) -> int:
        if node not in self._index:
            with node.graph.inserting_before(_after(node)):
                size = _call(aten.abs.default, node, like=node)
                largest = _call(aten.amax.default, size, like=node)
                number = _call(aten._to_copy.default, largest, like=node, dtype=torch.float64)
            self._index[node] = len(self.nodes)
            self.nodes.append(number)
        return self._index[node]

    def stacked(self, graph: torch.fx.GraphModule) -> torch.fx.Node:
        """Stack all magnitudes into one tensor, before the program's first write."""
        end = next(n for n in graph.graph.nodes if writes(n) or n.op == "output")
        with graph.graph.inserting_before(end):
            return _call(aten.stack.default, self.nodes, like=self.nodes[-1])


def _place(node: torch.fx.Node) -> dict[str, Any]:
    """Return name and source line of the operation that a check watches."""
    marks = marks_of(node)
    frame = user_line(node.meta.get("stack_trace"))
    line = f"{frame[0]}:{frame[1]} in {frame[2]}" if frame else ""
    return {
        "operator": str(node.target),
        "phase": node_phase(node) or "",
        "scope": marks.get("scope") or marks.get("of_scope", ""),
        "line": line or marks.get("of_line", ""),
    }


def _after(node: torch.fx.Node) -> torch.fx.Node:
    """Return the node before which uses of ``node`` may be inserted: behind all placeholders."""
    later = node.next
    while later.op == "placeholder":
        later = later.next
    return later


def _call(
    target: OpOverload, argument: Any, *, like: torch.fx.Node, **kwargs: Any
) -> torch.fx.Node:
    node = like.graph.call_function(target, (argument,), kwargs)
    # It belongs to the operation it watches; its own value follows from that of its argument.
    node.meta = {key: like.meta[key] for key in ("custom", "stack_trace") if key in like.meta}
    values = torch.fx.map_arg(argument, lambda each: each.meta["val"])
    node.meta["val"] = target(values, **kwargs)
    return node


def _inner_nodes(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yield the nodes of the subgraphs that ``node`` calls."""
    owner = node.graph.owning_module
    for argument in node.all_input_nodes:
        graph = getattr(owner, str(argument.target), None) if argument.op == "get_attr" else None
        if isinstance(graph, torch.fx.GraphModule):
            yield from all_nodes(graph)


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 0


def _constants(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif is_dict(value):
        yield from _constants(list(value.values()))
    elif is_sequence(value):
        for item in value:
            yield from _constants(item)
