"""Bounds checks of index tensors before a compiled program runs.

Generated code does not check indices, and one out of bounds would access foreign memory. So the
operators that compute indices run separately first, and indices are compared with their bounds
before anything is written. Programs and executables are unchanged.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch

from abele import _torch
from abele._torch import schema_of
from abele.containers import traverse
from abele.errors import IndexCheckError
from abele.program import (
    Program,
    Role,
    called_operator,
    has_tag,
    is_getitem,
    marks_of,
    writes,
)
from abele.program.core import user_line
from abele.targets.base import Compiled, OfBatch, Repeated, Run
from abele.targets.interpreter import function_of

# Operators that index along an argument, and the names of their tensor and their index.
_ALONG = dict.fromkeys(
    (
        *("gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_add"),
        *("index_copy", "index_reduce", "index_fill"),
    ),
    ("self", "index"),
)
_ROWS = dict.fromkeys(
    ("embedding", "_embedding_bag", "_embedding_bag_forward_only"), ("weight", "indices")
)
_LISTS = ("index", "index_put", "_unsafe_index_put")
_LOSSES = ("nll_loss_forward", "nll_loss2d_forward")
_WRAPPING = ("index_fill", "take", "put", *_LISTS)  # -1 is the last element

#: The smallest index that fits, the largest, and one more that is ignored.
Bounds = tuple[int, int, int | None]


def name_of(node: torch.fx.Node) -> str:
    """Return the name of an aten operator without overload; empty for other operators."""
    called = called_operator(node)
    ours = called is not None and called.namespace == "aten"
    return str(called).split(".")[1] if ours else ""


def indices(node: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, Bounds]]:
    """Yield the index tensors of an operator, each with its bounds and an ignored value."""
    for index, size, ignored in _sizes(name_of(node), node):
        value = index.meta.get("val")
        if value is None or value.dtype in (torch.bool, torch.uint8) or not value.numel():
            continue
        yield index, (-size if name_of(node) in _WRAPPING else 0, size - 1, ignored)


def _sizes(name: str, node: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, int, int | None]]:
    if name in _ALONG:
        tensor, index = (argument_of(node, each) for each in _ALONG[name])
        yield index, _size(tensor, argument_of(node, "dim")), None
    elif name in _ROWS:
        tensor, index = (argument_of(node, each) for each in _ROWS[name])
        yield index, _size(tensor, 0), None
    elif name in ("take", "put"):
        yield argument_of(node, "index"), argument_of(node, "self").meta["val"].numel(), None
    elif name in _LOSSES:
        tensor = argument_of(node, "self")
        size = _size(tensor, min(1, tensor.meta["val"].dim() - 1))
        yield argument_of(node, "target"), size, argument_of(node, "ignore_index")
    elif name in _LISTS:
        for dim, index in enumerate(argument_of(node, "indices")):
            if index is not None:
                yield index, _size(argument_of(node, "self"), dim), None


def _size(tensor: torch.fx.Node, dim: int) -> int:
    shape = tensor.meta["val"].shape
    return shape[dim] if shape else 1


def argument_of(node: torch.fx.Node, name: str) -> Any:
    """Return an operator node's argument by name, or its default.

    Raises:
        KeyError: the operator has no such argument.
    """
    called = called_operator(node)
    assert called is not None, node
    for position, argument in enumerate(schema_of(called).arguments):
        if argument.name == name:
            given = node.args[position] if position < len(node.args) else argument.default_value
            return node.kwargs.get(name, given)
    raise KeyError(f"{called} has no argument {name!r}")


def message(node: torch.fx.Node, low: int, high: int, ignored: int | None) -> str:
    """Format an index error: the user's source line and the accepted range of indices."""
    name = name_of(node).removesuffix("_only").removesuffix("_forward").strip("_")
    besides = "" if ignored is None else f" and {ignored}, which it ignores"
    frame = user_line(node.meta.get("stack_trace"))
    line = f"{frame[0]}:{frame[1]} in {frame[2]}" if frame else marks_of(node).get("of_line", "")
    return f"{line or 'in this program'}: {name} takes the indices {low} to {high}{besides}"


# An index that follows from these is not computed twice.
_EXPENSIVE = ("convolution", "mm", "addmm", "bmm", "baddbmm", "_native_batch_norm_legit")
# Their results have the elements of their first argument, as long as there are any.
_SAME_ELEMENTS = (
    *("view", "_unsafe_view", "reshape", "flatten", "unsqueeze", "squeeze", "expand", "repeat"),
    *("t", "transpose", "permute", "alias", "clone", "detach"),
)


class _Slice:
    """A subgraph with only the nodes that bounds checks of indices need.

    The bodies of loops and branches have no checks.
    """

    def __init__(self, source: torch.fx.GraphModule):
        self._source = source
        self._graph = torch.fx.Graph()
        self._root: dict[str, Any] = {}
        self._copies: dict[torch.fx.Node, torch.fx.Node] = {}
        self._inputs = [node for node in source.graph.nodes if node.op == "placeholder"]
        for node in self._inputs:
            self._copies[node] = self._graph.node_copy(node)

    def checks(self) -> tuple[Check, list[int]] | None:
        """Return a bounds check of index tensors as a function of some program inputs.

        Returns:
            The check, which raises ``IndexCheckError``, and positions of its inputs; or None.
        """
        seen: set[tuple[torch.fx.Node, Bounds]] = set()
        for node in self._source.graph.nodes:
            for place, bounds in indices(node):
                index = same_elements(place)
                if (index, bounds) not in seen and self._copy(index):
                    seen.add((index, bounds))
                    arguments = (self._copies[index], *bounds, message(node, *bounds))
                    self._graph.call_function(refuse, arguments)
        if not seen:
            return None
        read = [i for i, node in enumerate(self._inputs) if self._copies[node].users]
        self._graph.output([])
        for position, node in enumerate(self._inputs):
            if position not in read:
                self._graph.erase_node(self._copies[node])
        return function_of(_torch.graph_module(self._root, self._graph)), read

    def _copy(self, wanted: torch.fx.Node) -> bool:
        """Copy a node and its inputs into the subgraph, unless one may not be computed twice."""
        sources = _sources(wanted, self._source)
        for node in self._source.graph.nodes if sources else ():
            if node in sources and node not in self._copies:
                self._copies[node] = self._graph.node_copy(node, self._copies.__getitem__)
                if node.op == "get_attr":
                    name = str(node.target)
                    self._root[name] = operator.attrgetter(name)(self._source)
        return sources is not None


def _sources(wanted: torch.fx.Node, root: torch.fx.GraphModule) -> set[torch.fx.Node] | None:
    """Return a node with its transitive inputs; None if one may not be computed twice."""
    sources: set[torch.fx.Node] = set()
    for node in traverse([wanted], lambda each: each.all_input_nodes):
        if node.op != "placeholder":
            if not is_repeatable(node, root):
                return None
            sources.add(node)
    return sources


def is_checked(index: torch.fx.Node, root: torch.fx.GraphModule) -> bool:
    """Return whether an index tensor is bounds-checked before a program runs."""
    return _sources(index, root) is not None


def same_elements(node: torch.fx.Node) -> torch.fx.Node:
    """Return the earliest node of a chain of views and copies with equal elements."""
    while name_of(node) in _SAME_ELEMENTS:
        source = node.all_input_nodes[0]
        if source.meta["val"].dtype != node.meta["val"].dtype:
            break  # a view of another type has the same bits, and other numbers
        node = source
    return node


def is_repeatable(node: torch.fx.Node, root: torch.fx.GraphModule) -> bool:
    """Return whether a node may be computed twice: cheap, not random, and without effects."""
    if node.op == "get_attr":
        return isinstance(operator.attrgetter(str(node.target))(root), torch.Tensor)
    if is_getitem(node):
        return True
    called = called_operator(node)
    return (
        called is not None
        and called.namespace == "aten"
        and not writes(node)
        and not has_tag(node, torch.Tag.nondeterministic_seeded)
        and name_of(node) not in _EXPENSIVE
    )


# So many numbers are compared sooner as a list: a small step takes half a millisecond.
_FEW = 64

Check = Callable[[Any], Any]


class Checked(Compiled):
    """A compiled program that raises ``IndexCheckError`` instead of ending the process.

    Args:
        compiled: the program.
        check: index check of all of its inputs.
        of_batch: index check of the batch alone; None if the check reads other inputs.
    """

    def __init__(self, compiled: Compiled, check: Check, of_batch: Check | None = None):
        def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            check(inputs)
            return compiled.run(inputs)

        super().__init__(run, compiled.payload, compiled.plan)
        self._compiled, self._check, self._of_batch = compiled, check, of_batch
        self.prepares, self.release = compiled.prepares, compiled.release

    def kernel_problem(self, *, noted: bool) -> str | None:
        """Return the self-test failure of the library kernels behind the index check."""
        return self._compiled.kernel_problem(noted=noted)

    def repeated(self) -> Repeated | None:
        """Return repeated runs with index checks; None if a check reads more than the batch."""
        check, repeated = self._of_batch, self._compiled.repeated()
        return None if check is None or repeated is None else _each_checked(check, repeated)

    def with_state(self, arguments: Sequence[torch.Tensor], *, adopted: bool = False) -> Run:
        """Return the checked program for calls that pass the same state."""
        check, run = self._check, self._compiled.with_state(arguments, adopted=adopted)

        def checked(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            check(inputs)
            return run(inputs)

        return checked

    def bound(
        self, arguments: Sequence[torch.Tensor], batch: Sequence[int], *, adopted: bool = False
    ) -> OfBatch | None:
        """Return a bound call with an index check; None if that reads more than the batch."""
        check, run = self._of_batch, self._compiled.bound(arguments, batch, adopted=adopted)
        if check is None or run is None:
            return None

        def checked(rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            check(rows)
            return run(rows)

        return checked


def checked(program: Program, compiled: Compiled) -> Compiled:
    """Wrap a compiled program in a bounds check of its indices, if it has any."""
    checks = _Slice(program.graph).checks()
    if checks is None:
        return compiled
    batch = [i for i, slot in enumerate(program.inputs) if slot.role is Role.INPUT]
    of_batch = _check(*checks, batch) if set(checks[1]).issubset(batch) else None
    return Checked(compiled, _check(*checks, range(len(program.inputs))), of_batch)


def look(program: Program, inputs: Sequence[torch.Tensor]) -> None:
    """Raise ``IndexCheckError`` if a program's inputs contain an out-of-range index.

    Called after an operator of an interpreted program has failed: torch's error says neither the
    line nor, for some operators, that an index is the cause.

    Args:
        program: has written nothing yet.
        inputs: one tensor for each slot.
    """
    checks = _Slice(program.graph).checks()
    if checks is not None:
        _check(*checks, range(len(program.inputs)))(inputs)


def _check(function: Check, read: Sequence[int], given: Sequence[int]) -> Check:
    """Return an index check of the program inputs at positions ``given``."""
    positions = [given.index(position) for position in read]

    def check(values: Sequence[torch.Tensor]) -> None:
        function([values[position] for position in positions])

    return check


def refuse(index: torch.Tensor, low: int, high: int, ignored: int | None, message: str) -> None:
    """Raise ``IndexCheckError`` unless all of ``index`` lies between ``low`` and ``high``.

    Args:
        index: integers, any shape.
        low: the smallest valid index.
        high: the largest valid index.
        ignored: another valid value, or None.
        message: error message, to which the found index is appended.
    """
    least, largest = _extremes(index)
    if ignored is not None and (least < low or largest > high):
        index = index[index != ignored]
        if not index.numel():
            return
        least, largest = _extremes(index)
    if least < low or largest > high:
        raise IndexCheckError(f"{message}, found {least if least < low else largest}.")


def _extremes(index: torch.Tensor) -> tuple[int, int]:
    if index.numel() <= _FEW:
        rows = index if index.dim() == 1 else index.flatten()
        values: list[int] = cast("Any", rows).tolist()
        return min(values), max(values)
    least, largest = torch.aminmax(index)
    return int(least.item()), int(largest.item())


def _each_checked(check: Check, repeated: Repeated) -> Repeated:
    def checked(
        inputs: list[torch.Tensor],
        batches: Sequence[Sequence[torch.Tensor]],
        kept: Sequence[bool],
        marks: list[Any],
    ) -> list[list[torch.Tensor]]:
        for number, batch in enumerate(batches):
            try:
                check(batch)
            except IndexCheckError:
                if number:  # those before it run, as they would one by one
                    repeated(inputs, batches[:number], kept[:number], marks)
                raise
        return repeated(inputs, batches, kept, marks)

    return checked
