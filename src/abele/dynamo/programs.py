"""Graphs of ahead-of-time autograd as programs.

A program's results share no memory with each other or with its inputs. Graphs return both: weights
that are saved for backward, and views. So a graph is split: the program computes what is new, and a
function of views follows it, which runs on the caller's inputs and the program's results.

    def graph(w, x):                      def forward(w, x):      def views(w, y):
        y = mm(x, w)                ->        return mm(x, w)         return y, w, t(y)
        return y, w, t(y)
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Collection
from typing import Any, Literal

import torch

from abele import _torch
from abele._torch import OpOverload, copies
from abele.containers import is_sequence
from abele.errors import CaptureError
from abele.program import Program, Role, Slot, Stamp, called_operator, is_getitem, is_view, writes
from abele.program.aliasing import (
    base,
    erase_dead_nodes,
    other_kind,
    own_constants,
    own_outputs,
)
from abele.program.core import output_node
from abele.targets.interpreter import function_of

aten = torch.ops.aten
Node = torch.fx.Node


#: Part of a step that a graph computes; ``inference`` is a forward without a backward.
Phase = Literal["forward", "backward", "inference"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """A graph of ahead-of-time autograd as a program and a function of views.

    Attributes:
        program: computes everything that is no view of an input or of another result.
        taken: positions of the graph's inputs that are the program's, in the order of its slots.
        views: takes the tensors that ``sources`` names, returns the results of the graph; None if
            these are the program's results.
        sources: for each argument of ``views``, whether it is an input of the graph, and its
            position among the inputs or among the program's results.
    """

    program: Program
    taken: tuple[int, ...]
    views: Callable[[list[Any]], Any] | None
    sources: tuple[tuple[bool, int], ...]


def split(
    graph: torch.fx.GraphModule, phase: Phase, static: Collection[str] = frozenset()
) -> Split:
    """Split a graph into a program and a function of views.

    Args:
        graph: functional except for ``copy_`` into its inputs; it is not changed.
        phase: part of the program's name.
        static: names of the placeholders that are parameters or buffers of the user's.

    Raises:
        CaptureError: it cannot be a program; the message says why, in a phrase.
    """
    root = _torch.graph_module(graph, copies.copied_graph(graph.graph))
    _require_program(root)
    placeholders = root.graph.find_nodes(op="placeholder")
    positions = {node: index for index, node in enumerate(placeholders)}
    returned: Any = output_node(root).args[0]
    rest = _Views(returned if is_sequence(returned) else (returned,), positions)
    output_node(root).args = (list(rest.results),)
    _mark(root, "backward" if phase == "backward" else "forward")
    erase_dead_nodes(root)
    taken = [node for node in placeholders if isinstance(node.meta.get("val"), torch.Tensor)]
    for node in placeholders:
        if node not in taken:  # a generator or a number, which no node reads
            root.graph.erase_node(node)
    own_constants(root)
    own_outputs(root)
    return Split(
        program=_program(f"{phase}_graph", root, taken, static),
        taken=tuple(positions[node] for node in taken),
        views=rest.function(),
        sources=tuple(rest.sources),
    )


class _Views:
    """The results of a graph, divided into computed tensors and views.

    Args:
        returned: results of the graph: nodes, numbers and None.
        positions: of the graph's placeholders.

    Attributes:
        results: nodes that the program returns.
        sources: see ``Split``.
    """

    def __init__(self, returned: Any, positions: dict[Node, int]):
        self.results: dict[Node, int] = {}
        self.sources: list[tuple[bool, int]] = []
        self._positions, self._copies = positions, dict[Node, Node]()
        nodes = [each for each in returned if isinstance(each, Node)]
        self._sharing: dict[Node, set[Node]] = {}
        for node in nodes:
            self._sharing.setdefault(base(node), set()).add(node)
        self._graph = torch.fx.Graph()
        outputs = [self._copy(each) if isinstance(each, Node) else each for each in returned]
        self._graph.output(outputs)
        alone = [isinstance(each, Node) and each.op == "placeholder" for each in outputs]
        order = list(range(len(returned)))
        self._needed = not all(alone) or self.sources != [(False, index) for index in order]

    def function(self) -> Callable[[list[Any]], Any] | None:
        """Compile the views to a Python function; None if all results are the program's."""
        if not self._needed:
            return None
        return function_of(torch.fx.GraphModule({}, self._graph))

    def _copy(self, node: Node) -> Node:
        """Return the node in the graph of views that stands for a node of the whole graph."""
        if node not in self._copies:
            self._copies[node] = self._made(node)
        return self._copies[node]

    def _made(self, node: Node) -> Node:
        if node in self._positions:
            return self._argument(True, self._positions[node])
        if writes(node):  # returns what it has written
            return self._copy(node.all_input_nodes[0])
        if not self._is_result(node):
            made = self._graph.node_copy(node, self._copy)
            made.meta = dict(node.meta)
            return made
        return self._argument(False, self.results.setdefault(node, len(self.results)))

    def _argument(self, is_input: bool, position: int) -> Node:
        self.sources.append((is_input, position))
        return self._graph.placeholder(f"v{len(self.sources)}")

    def _is_result(self, node: Node) -> bool:
        """Return whether the program computes a value, and not a view of another one."""
        memory = base(node)
        if memory is node or memory.op == "get_attr":
            return True
        if memory.op == "placeholder":
            return False
        # A view of all elements may be the result; a part of a tensor keeps the whole, as in torch.
        shared = self._sharing.get(memory, set())
        return shared == {node} and _is_whole(node, memory)


def _is_whole(node: Node, memory: Node) -> bool:
    """Return whether a view has each element of its memory once, in any order."""
    value, whole = node.meta.get("val"), memory.meta.get("val")
    if not isinstance(value, torch.Tensor) or not isinstance(whole, torch.Tensor):
        return False
    if value.numel() != whole.numel() or value.dtype != whole.dtype:
        return False
    expected = 1
    for size, stride in sorted(
        zip(value.shape, value.stride(), strict=True), key=operator.itemgetter(1)
    ):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _require_program(root: torch.fx.GraphModule) -> None:
    """Raise CaptureError, naming the operator or kind of tensor, for what no program can have."""
    for node in root.graph.nodes:
        if node.op in ("call_module", "call_method"):
            raise CaptureError(f"it has a node that is no operator ({node.target})")
        if node.op == "call_function" and not is_getitem(node):
            called = called_operator(node)
            if called is None:
                name = getattr(node.target, "__name__", node.target)
                raise CaptureError(f"programs cannot have {name!r}")
            _require_pure(node, called)
        values = node.meta.get("val")
        for value in values if is_sequence(values) else [values]:
            _require_plain(node, value)


def _require_pure(node: Node, called: OpOverload) -> None:
    if writes(node):
        target = node.args[0]
        into = isinstance(target, Node) and target.op == "placeholder"
        if called is not aten.copy_.default or not into:
            raise CaptureError(f"{called} writes in place")
    if is_view(node) and called in (aten.view.dtype, aten.view_as_real.default):
        raise CaptureError(f"{called} reads a tensor as one of another type")


def _require_plain(node: Node, value: Any) -> None:
    """Check that a value is a dense tensor on the host, or a number that no node reads."""
    if not isinstance(value, torch.Tensor):
        if node.op == "placeholder" and node.users:
            raise CaptureError(f"an input is a {type(value).__name__}, no tensor")
        return
    kind = other_kind(value)
    if kind is not None:
        raise CaptureError(f"a tensor is {kind}")
    if value.is_complex():
        raise CaptureError(f"a tensor is complex ({_name(node)})")
    if value.device.type not in ("cpu", "meta"):
        raise CaptureError(f"its tensors are on {value.device}, and this backend runs on the host")
    if not all(type(each) is int for each in value.shape):
        raise CaptureError(f"the size {list(value.shape)} is symbolic ({_name(node)})")


def _name(node: Node) -> str:
    return str(node.target)


def _mark(root: torch.fx.GraphModule, phase: Phase) -> None:
    """Reduce the metadata of nodes to what programs have."""
    for node in root.graph.nodes:
        meta = {key: node.meta[key] for key in ("val", "stack_trace") if key in node.meta}
        if node.op == "get_attr" and "val" not in meta:
            meta["val"] = operator.attrgetter(str(node.target))(root)
        if node.op == "call_function":
            meta["custom"] = {"phase": phase}
        node.meta = meta


def _program(
    name: str, root: torch.fx.GraphModule, placeholders: list[Node], static: Collection[str]
) -> Program:
    written = {node.args[0] for node in root.graph.nodes if writes(node)}
    inputs = [
        _slot(node, node.name, _role(node, node in written, static), mutated=node in written)
        for node in placeholders
    ]
    returned: Any = output_node(root).args[0]
    outputs = [_slot(node, f"output{i}", Role.OUTPUT) for i, node in enumerate(returned)]
    stamp = Stamp(by="autograd", seconds=0.0, nodes=len(root.graph.nodes))
    root.recompile()
    return Program(
        name=name, graph=root, inputs=tuple(inputs), outputs=tuple(outputs), history=(stamp,)
    ).verify()


def _role(node: Node, written: bool, static: Collection[str]) -> Role:
    """Return the role of an input; only weights may be rounded otherwise for a comparison."""
    if node.name not in static:
        return Role.INPUT
    return Role.BUFFER if written else Role.PARAMETER


def _slot(node: Node, name: str, role: Role, *, mutated: bool = False) -> Slot:
    value: torch.Tensor = node.meta["val"]
    return Slot(name=name, role=role, shape=tuple(value.shape), dtype=value.dtype, mutated=mutated)
