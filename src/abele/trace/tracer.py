"""Tracing of a function of named tensors to a program.

The function may write to its tensors in place and return them; the program writes with final
``copy_`` only, and what it returns shares no memory with its inputs.

    y = relu_(x); n.add_(1)   ->   y = relu(x); m = add(n, 1); ...; copy_(n, m)

Nearly every write is of a whole tensor, or of one through a view of its elements in another shape
or order, or of a slice. It becomes the operation that computes the new value, and later readers of
the tensor read that. Where other views see a write, or there are loops, torch's functionalization
runs the graph again. The result is the same graph except for views, but takes longer than tracing.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.fx.graph import CodeGen

from abele import _torch, cpython
from abele._torch import OpOverload, schema_of
from abele.containers import is_sequence
from abele.errors import CaptureError
from abele.program import (
    Program,
    Role,
    Slot,
    Stamp,
    called_operator,
    is_getitem,
    node_argument,
    returned_nodes,
    writes,
)
from abele.program.aliasing import SHARES, Aliases, erase_dead_nodes, own_constants, own_outputs
from abele.program.aliasing import base as _base
from abele.program.aliasing import written as _written
from abele.program.core import line_of
from abele.trace import operator_cache
from abele.trace.adopted import Adopted, Named
from abele.trace.control_flow import restore_views
from abele.trace.decompositions import PORTABLE_OPERATORS, conjugate_numbers, portable_kernels
from abele.trace.fake_results import Results, correcting
from abele.trace.operator_cache import Left
from abele.trace.tensor_names import Lookup
from abele.trace.writes import refusal

aten = torch.ops.aten

# Roles of slots that no user code reads.
_OURS = {Role.OPTIMIZER_STATE, Role.ACCUMULATOR, Role.HYPER, Role.COUNTER}

_STATE = {Role.PARAMETER, Role.BUFFER}
_OF_FORWARD = {*_STATE, Role.INPUT}

Result = TypeVar("Result")


class Values:
    """The traced input tensors of one call, by role and name."""

    def __init__(self, named: Sequence[Named], tensors: Sequence[torch.Tensor]):
        self._by_role: dict[Role, dict[str, torch.Tensor]] = {role: {} for role in Role}
        for item, tensor in zip(named, tensors, strict=True):
            self._by_role[item.role][item.name] = tensor

    def of(self, role: Role) -> dict[str, torch.Tensor]:
        """Return the tensors of a role by name."""
        return self._by_role[role]


def trace(
    name: str,
    body: Callable[[Values], tuple[list[torch.Tensor], Result]],
    named: Sequence[Named],
    mode: _torch.FakeTensorMode,
    lookup: Lookup,
    adopted: Adopted | None = None,
) -> tuple[Program, Result]:
    """Trace ``body`` once, on fake tensors, as a program.

    Args:
        name: of the program.
        body: what the program computes; returns its outputs, and what else the caller wants to
            know of it.
        named: the input slots, in order; only shapes and dtypes of the values are used.
        mode: the fake tensor mode of the trace.
        lookup: chooses which other tensors the program returns behind its outputs.
        adopted: receives the real tensors that ``body`` uses, as further slots; without it they
            are constants.

    Returns:
        The program, and what ``body`` returned besides its outputs.
    """
    started = time.perf_counter()
    fakes = [fake_of(item, mode) for item in named]
    state = {_torch.memory_of(item.value): item.name for item in named if item.role in _STATE}
    changed: list[Left] = []
    results: list[Result] = []

    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        lookup.start()
        with operator_cache.remembering(mode, state, adopted) as (assigned, left):
            assigned.keep(
                ("an input" if item.role is Role.INPUT else item.name, tensor)
                for item, tensor in zip(named, tensors, strict=True)
                if item.role in _OF_FORWARD
            )
            outputs, result = body(Values(named, tensors))
            assigned.write_back()
            changed.extend(left())
        results.append(result)
        return [*outputs, *lookup.gradients]

    quiet = _torch.without_log_of_fakes()
    # Computations of finalizers would be traced too.
    with cpython.uncollected(), mode, portable_kernels(), quiet, _torch.code_when_run():
        leaves = [
            fake.requires_grad_() if item.requires_grad else fake
            for item, fake in zip(named, fakes, strict=True)
        ]
        traced = _torch.graph_of(function, leaves, PORTABLE_OPERATORS)
        if adopted is not None:
            named, leaves = [*named, *adopted.named], [*leaves, *adopted.fakes]
        conjugate_numbers(traced)
        graph = pure(traced, leaves)
    anchors = lookup.choose(graph, [(item.name, item.role) for item in named])
    own_constants(graph)
    own_outputs(graph)
    for memory, value in changed:
        memory.leave(value)
    return _as_program(name, graph, named, anchors, time.perf_counter() - started), results[0]


def fake_of(item: Named, mode: _torch.FakeTensorMode) -> torch.Tensor:
    """Create the fake tensor (without data) of an input slot."""
    value = item.value
    if value.layout is torch.strided and (item.role in _OURS or _is_whole(value)):
        # The general way looks into all that a tensor can be, and takes ten times as long.
        return _torch.laid_out_like(value, mode)
    return mode.from_tensor(value)


def _is_whole(value: torch.Tensor) -> bool:
    """Return whether a plain tensor covers its storage exactly, in order."""
    size = value.numel() * value.element_size()
    whole = value.is_contiguous() and value.untyped_storage().nbytes() == size
    return whole and type(value) is torch.Tensor and not (value.is_complex() or value.is_quantized)


def _as_program(
    name: str,
    graph: torch.fx.GraphModule,
    named: Sequence[Named],
    anchors: Sequence[str],
    seconds: float,
) -> Program:
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    mutated = {node.args[0] for node in graph.graph.nodes if writes(node)}
    inputs = tuple(
        Slot(
            name=item.name,
            role=item.role,
            shape=tuple(item.value.shape),
            dtype=item.value.dtype,
            mutated=node in mutated,
        )
        for item, node in zip(named, nodes, strict=True)
    )
    returned = returned_nodes(graph)
    roles = [(f"output{index}", Role.OUTPUT) for index in range(len(returned) - len(anchors))]
    roles += [(anchor, Role.ANCHOR) for anchor in anchors]
    outputs = tuple(
        Slot(
            name=slot,
            role=role,
            shape=tuple(node.meta["val"].shape),
            dtype=node.meta["val"].dtype,
        )
        for (slot, role), node in zip(roles, returned, strict=True)
    )
    stamp = Stamp(by="capture", seconds=seconds, nodes=len(graph.graph.nodes))
    program = Program(name=name, graph=graph, inputs=inputs, outputs=outputs, history=(stamp,))
    return program.verify()


# Operators that compute the new values, where the name is not that of the write without the
# underscore. New values are the last results.
_VALUES = {
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.normal_.default: aten.normal_functional.default,
    aten._native_batch_norm_legit.default: aten._native_batch_norm_legit_functional.default,
}
# Out-of-place views by in-place shape change.
_VIEWS: dict[Any, OpOverload] = {
    aten.t_.default: aten.t.default,
    aten.transpose_.default: aten.transpose.int,
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.unsqueeze_.default: aten.unsqueeze.default,
}
# Operators that return views of all elements in unchanged order.
_RESHAPES = {
    *(aten.view.default, aten._reshape_alias.default, aten.alias.default, aten.detach.default),
    *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default),
}
_View = Callable[[torch.fx.Node, torch.fx.Node], tuple[Any, ...]]


def _permuted(view: torch.fx.Node, value: torch.fx.Node) -> tuple[Any, ...]:
    order: Any = view.args[1]
    places = [each % len(order) for each in order]
    return view.target, value, sorted(range(len(places)), key=places.__getitem__)


def _scattered(target: OpOverload) -> _View:
    return lambda view, value: (target, view.args[0], value, *view.args[1:])


# What puts the value of a view into its base tensor: an operator and its arguments.
_VIEWED: dict[Any, _View] = {
    **dict.fromkeys(
        _RESHAPES, lambda v, new: (aten.view.default, new, [*node_argument(v, 0).meta["val"].shape])
    ),
    **dict.fromkeys(
        (aten.t.default, aten.transpose.int), lambda v, new: (v.target, new, *v.args[1:])
    ),
    aten.permute.default: _permuted,
    aten.slice.Tensor: _scattered(aten.slice_scatter.default),
    aten.select.int: _scattered(aten.select_scatter.default),
}


def pure(graph: torch.fx.GraphModule, fakes: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """Return a graph whose only writes are ``copy_`` into inputs, at the end and in their order.

    Args:
        graph: as traced; may be changed.
        fakes: its inputs, without data.
    """
    constants = _lift(graph)
    fakes = [*fakes, *(constant.meta["val"] for constant in constants)]
    _turn_by_views(graph.graph)
    _write_whole(graph.graph)
    memory = _Memory()
    without_writes = _Pure(memory)
    if all(map(without_writes.follow, graph.graph.nodes)):
        memory.replace_writes(graph.graph, without_writes.changed)
    else:
        graph = _retraced(graph, fakes)
    _lower(graph, constants)
    graph.graph.set_codegen(CodeGen())
    erase_dead_nodes(graph)
    restore_views(graph)
    graph.recompile()
    return graph


def _turn_by_views(graph: torch.fx.Graph) -> None:
    """Replace in-place shape changes of computed tensors, such as ``transpose_``, by views.

    Recurrent layers of torch end with ``stack(states).transpose_(0, 1)``. Later nodes read the
    result, and memory stays as it is. ``bernoulli_`` gets the default that ``bernoulli`` lacks.
    """
    for node in graph.nodes:
        if node.target is aten.bernoulli_.float and len(node.args) == 1:
            node.args = (*node.args, 0.5)
        view = _VIEWS.get(node.target)
        if view is not None and node_argument(node, 0).op == "call_function":
            node.target = view


def _write_whole(graph: torch.fx.Graph) -> None:
    """Rewrite an in-place write through views as a write to the base tensor.

        y = t(t(x)); mul_(y, z)
    ->  mul_(x, z)

        y = view(x, shape); add_(y, z)
    ->  copy_(x, view(add(view(x, shape), z), shape of x)); y = view(x, shape)

        y = select(x, 0, 1); add_(y, z)
    ->  copy_(x, select_scatter(x, add(select(x, 0, 1), z), 0, 1)); y = select(x, 0, 1)

    Clipping writes to gradients that are views, residual networks add in place to the view that a
    linear layer returns, and queues and caches are written in slices.
    """
    results = Results()
    for node in list(graph.nodes):
        for each in _written(node):
            root = _base(each)
            whole, part = (place_in_memory(a.meta["val"]) for a in (root, each))
            if root is not each and whole == part:
                node.replace_input_with(each, root)
        if not _returns_first_argument(node):
            continue
        views, view = list[tuple[torch.fx.Node, _View]](), node_argument(node, 0)
        seen = view.meta["val"]
        while (undo := _VIEWED.get(view.target)) is not None:
            views.append((view, undo))
            view = node_argument(view, 0)
        new = _computed(node, lambda each: each.meta.get("val"), results) if views else None
        if new is not None and (new.dtype, new.shape) == (seen.dtype, seen.shape):
            _write_base(node, views, view, new, results)


def _write_base(
    node: torch.fx.Node,
    views: Sequence[tuple[torch.fx.Node, _View]],
    root: torch.fx.Node,
    new: torch.Tensor,
    results: Results,
) -> None:
    """Replace a write of a new value through views by one of the base tensor, where possible."""

    def add(target: Any, *args: Any) -> torch.fx.Node:
        fakes = torch.fx.map_arg(args, lambda each: each.meta["val"])
        added.append(_call(node, target, args, {}, results.of(target, fakes)))
        return added[-1]

    with node.graph.inserting_before(node):
        value = _call(node, _value_of(node.target), node.args, node.kwargs, new)
        added = [value]
        try:
            for view, undo in views:
                value = add(*undo(view, value))
        except RuntimeError:  # it is laid out so that no view of it has the other shape
            for each in reversed(added):
                node.graph.erase_node(each)
            return
        result = _call(node, aten.copy_.default, (root, value), {}, root.meta["val"])
        for view, _ in reversed(views):
            result = add(view.target, result, *view.args[1:])
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)


def place_in_memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return which elements of its memory a tensor has, in which order and with which signs."""
    return _layout(tensor), tensor.storage_offset(), tensor.is_conj(), tensor.is_neg()


def _call(
    like: torch.fx.Node, target: Any, args: Any, kwargs: Any, value: torch.Tensor
) -> torch.fx.Node:
    node = like.graph.call_function(target, args, dict(kwargs))
    node.meta = {**like.meta, "val": value}
    return node


def _retraced(graph: torch.fx.GraphModule, fakes: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    interpreter = _Interpreter(graph)
    functional = torch.func.functionalize(interpreter.run, remove="mutations")

    def laid_out(*inputs: torch.Tensor) -> Any:
        with correcting():
            return functional(*inputs)

    with torch.no_grad(), _torch.preserve_node_meta():
        try:
            return _torch.graph_of(laid_out, [fake.detach() for fake in fakes])
        except RuntimeError as error:
            if "internal overlap" not in str(error):
                raise
            raise CaptureError(refusal(line_of(interpreter.node))) from error


class _Interpreter(torch.fx.Interpreter):
    """An FX interpreter that remembers the current node."""

    def run_node(self, n: torch.fx.Node) -> Any:
        self.node = n
        return super().run_node(n)


class _Memory:
    """The latest value of each tensor that a graph writes."""

    def __init__(self):
        self.aliases = Aliases()  # remembered, because replaced writes no longer tell
        self._latest: dict[torch.fx.Node, torch.fx.Node] = {}

    def replace_writes(self, graph: torch.fx.Graph, values: dict[torch.fx.Node, Any]) -> None:
        """Replace each in-place write by the operation that computes the new value."""
        for node in graph.nodes:
            if any(self.aliases.base(each) in self._latest for each in node.all_input_nodes):
                node.args = torch.fx.map_arg(node.args, self._now)
                node.kwargs = torch.fx.map_arg(node.kwargs, self._now)
            if node in values:
                node.meta["val"] = values[node]
            if writes(node):
                self._replace(node)
        with graph.inserting_before(next(reversed(graph.nodes))):
            for slot in [node for node in graph.nodes if node.op == "placeholder"]:
                slot.meta.pop("custom", None)  # no part of a phase
                if slot in self._latest:
                    write = graph.call_function(aten.copy_.default, (slot, self._latest[slot]))
                    write.meta = {"val": slot.meta["val"]}

    def _now(self, node: torch.fx.Node) -> torch.fx.Node:
        whole = self.aliases.is_whole(node)
        return self._latest.get(self.aliases.base(node), node) if whole else node

    def _replace(self, node: torch.fx.Node) -> None:
        written = [self.aliases.base(each) for each in _written(node)]
        alone = _returns_first_argument(node)
        called = called_operator(node)
        target = None if called is None else _value_of(called)
        assert target is not None, node.target
        node.target = target
        if alone:
            # Nobody may have asked yet where it lives, and its new name does not tell.
            self.aliases.declare(node, written[0])
            self._latest[written[0]] = node
            return
        behind, results = node, node.meta["val"]
        while is_getitem(behind.next) and node_argument(behind.next, 0) is node:
            behind = behind.next
        reader = behind.next
        for index, base in enumerate(written, len(results) - len(written)):
            with node.graph.inserting_after(behind):
                behind = value = node.graph.call_function(operator.getitem, (node, index))
            behind.meta = {**node.meta, "val": results[index]}
            new = results[index].to(base.meta["val"].dtype)
            if new is not results[index]:
                with node.graph.inserting_before(reader):
                    value = _call(node, aten._to_copy.default, (value,), {"dtype": new.dtype}, new)
            self._latest[base] = value
            self.aliases.declare(value, base)


class _Pure:
    """The fake results of nodes once all in-place writes are replaced.

    Without writes, a tensor has the layout of the operation that computes its value, not the one it
    had before, and so may the results that are computed from it.

    Attributes:
        changed: results of replaced writes, and results with another layout than before.
    """

    def __init__(self, memory: _Memory):
        self.changed: dict[torch.fx.Node, Any] = {}
        self._aliases = memory.aliases
        self._results = Results()
        self._order: dict[torch.fx.Node, int] = {}
        self._last: dict[torch.fx.Node, tuple[int, torch.Tensor]] = {}

    def follow(self, node: torch.fx.Node) -> bool:
        """Compute the next node's fake result; return False if writes cannot be replaced.

        They cannot where a view of a tensor is read after a write through another view.
        """
        self._order[node] = len(self._order)
        written = _written(node)
        possible = _is_same_when_retraced(node) and all(map(self._aliases.is_whole, written))
        if not possible or any(map(self._is_stale, node.all_input_nodes)):
            return False
        if node.op != "call_function":
            return True
        if not written and not any(map(self._is_other, node.all_input_nodes)):
            return True
        computed = _computed(node, self._value, self._results)
        if computed is None:
            return False
        self.changed[node] = computed
        results = list(computed) if is_sequence(computed) else [computed]
        for each, new in zip(written, results[len(results) - len(written) :], strict=True):
            dtype = each.meta["val"].dtype  # new statistics of a norm in half are cast to it
            if new.shape != each.meta["val"].shape or (new.dtype is not dtype and new is computed):
                return False
            self._last[self._aliases.base(each)] = self._order[node], new.to(dtype)
        return True

    def _is_stale(self, node: torch.fx.Node) -> bool:
        """Return whether a view was created before a write to its base tensor."""
        if self._aliases.is_whole(node):
            return False
        written_at, _ = self._last.get(self._aliases.base(node), (-1, None))
        return self._order[node] < written_at

    def _value(self, node: torch.fx.Node) -> Any:
        base = self._aliases.base(node)
        if base in self._last and self._aliases.is_whole(node):
            return self._last[base][1]
        return self.changed[node] if node in self.changed else node.meta.get("val")

    def _is_other(self, node: torch.fx.Node) -> bool:
        now, before = self._value(node), node.meta.get("val")
        return now is not before and _layout(now) != _layout(before)


def _is_same_when_retraced(node: torch.fx.Node) -> bool:
    """Return whether functionalization changes only the writes of a node."""
    if node.op != "call_function" or is_getitem(node):
        return True
    called = called_operator(node)
    return called is not None and not _torch.is_composite(called)


def _returns_first_argument(node: torch.fx.Node) -> bool:
    """Return whether a node writes only to its first argument, and returns it."""
    called = called_operator(node)
    if called is None or not writes(node):
        return False
    schema = schema_of(called)
    return len(schema.returns) == 1 and [
        argument.alias_info is not None and argument.alias_info.is_write
        for argument in schema.arguments
    ] == [True] + [False] * (len(schema.arguments) - 1)


@functools.cache
def _value_of(target: OpOverload) -> OpOverload | None:
    """Return the out-of-place operator that computes what an in-place operator writes."""
    if target in _VALUES:
        return _VALUES[target]
    name, overload = _torch.operator_name(target).split(".")
    candidate = _torch.find_operator(f"{name.removesuffix('_')}.{overload or 'default'}")
    if not name.endswith("_") or torch.Tag.inplace_view in target.tags:
        return None
    if not isinstance(candidate, OpOverload) or _torch.is_composite(candidate):
        return None
    same = [each.name for each in schema_of(candidate).arguments] == [
        each.name for each in schema_of(target).arguments
    ]
    return candidate if same and not schema_of(candidate).is_mutable else None


def _computed(node: torch.fx.Node, value: Callable[[torch.fx.Node], Any], results: Results) -> Any:
    """Return the fake result of a node or of its out-of-place operator; None if unknown."""
    if is_getitem(node):
        return value(node_argument(node, 0))[node.args[1]]
    called = called_operator(node)
    assert called is not None
    target = _value_of(called) if writes(node) else called
    if target is aten.copy.default and value(node_argument(node, 0)).is_contiguous():
        return value(node_argument(node, 0))  # most writes of an update
    if target is None:
        return None
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value)
    try:
        with torch.no_grad():
            return results.of(target, args, kwargs)
    except RuntimeError:
        return None  # it cannot work on the other layout; retracing says so


def _layout(value: Any) -> Any:
    if is_sequence(value):
        return [_layout(each) for each in value]
    if not isinstance(value, torch.Tensor):
        return value
    return value.dtype, value.device, value.shape, value.stride()


# -- constants as inputs ----------------------------------------------------------------------
#
# Functionalization follows writes to inputs and views of inputs, but not of constants.


@dataclasses.dataclass(frozen=True)
class _Lifted:
    """A constant of a graph that temporarily is an input.

    Attributes:
        name: of its attribute.
        meta: of its ``get_attr`` node.
    """

    name: str
    value: torch.Tensor
    meta: dict[str, Any]


def _lift(graph: torch.fx.GraphModule) -> list[_Lifted]:
    """Turn the constants of a graph into inputs, after all other inputs."""
    named = [node for node in graph.graph.nodes if node.op == "get_attr"]
    named = [node for node in named if isinstance(_value(graph, node), torch.Tensor)]
    memories: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node in named:
        memories.setdefault(node.meta.get(SHARES, node), []).append(node)
    changed = {_base(each) for node in graph.graph.nodes for each in _written(node)}
    for first, nodes in memories.items():
        if len(nodes) > 1 and first in changed:
            raise CaptureError(
                "forward changes a tensor that is neither a parameter nor a buffer, and computes "
                f"with another one in the same memory{line_of(nodes[1])}. A program has each as a "
                "constant of its own. Use one of them and views that forward makes of it, or "
                "register_buffer in __init__."
            )
    return [_as_input(graph, node) for node in named]


def _lower(graph: torch.fx.GraphModule, lifted: Sequence[_Lifted]) -> None:
    """Turn the lifted inputs of a graph back into constants, and drop writes to them."""
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


def _as_input(graph: torch.fx.GraphModule, node: torch.fx.Node) -> _Lifted:
    value = _value(graph, node)
    assert isinstance(value, torch.Tensor)
    placed = _placeholder(graph, str(node.target), node.meta["val"])
    node.replace_all_uses_with(placed)
    graph.graph.erase_node(node)
    return _Lifted(str(node.target), value, node.meta)


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
