"""Indices, looked at before a compiled program runs.

Generated code checks each index where it uses it, inside a parallel region, and can only end the
process. So what indices follow from is computed first, apart, and looked at; nothing was written by
then. Programs stay as they are, and so do executables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch

from abele import _torch
from abele._torch import schema_of
from abele.errors import IndexCheckError
from abele.program import Program, called_operator, has_tag, is_getitem, marks_of, writes
from abele.program.printing import user_line
from abele.targets.base import Compiled, Run
from abele.targets.reference import Interpreter

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
_LISTS = ("index", "index_put")
_LOSSES = ("nll_loss_forward", "nll_loss2d_forward")
_WRAPPING = ("index_fill", "index", "index_put", "take", "put")  # -1 is the last element

# An index that follows from these is not computed twice.
_EXPENSIVE = ("convolution", "mm", "addmm", "bmm", "baddbmm", "_native_batch_norm_legit")

# So many numbers are compared sooner as a list: a small step takes half a millisecond.
_FEW = 64

Check = Callable[[list[torch.Tensor]], Any]
# The smallest and the largest index that fits, and one more that does; see ``refuse``.
_Bounds = tuple[int, int, int | None]


class Checked(Compiled):
    """A compiled program that raises ``IndexCheckError`` instead of ending the process."""

    def __init__(self, compiled: Compiled, check: Check):
        super().__init__(_after(check, compiled.run), compiled.payload)
        self._compiled, self._check = compiled, check

    def released(self) -> Run:
        """The same check, then the call of the compiled program that lets other threads run."""
        return _after(self._check, self._compiled.released())


def checked(program: Program, compiled: Compiled) -> Compiled:
    """``compiled`` with a look at the indices of ``program`` in front, if it has any."""
    inputs, graph = _checks(program.graph)
    if graph is not None:
        computed = program.replace(graph=_torch.graph_module(program.graph, graph))
        compiled = Checked(compiled, Interpreter().compile(computed).run)
    if not inputs:
        return compiled

    def check(values: list[torch.Tensor]) -> None:
        for position, bounds in inputs:
            refuse(values[position], *bounds)

    return Checked(compiled, check)  # the first to look: other indices may follow from these


def refuse(index: torch.Tensor, low: int, high: int, ignored: int | None, message: str) -> None:
    """Raise ``IndexCheckError`` unless all of ``index`` lies between ``low`` and ``high``.

    Args:
        index: integers, any shape.
        low: the smallest that fits.
        high: the largest that fits.
        ignored: one more that fits.
        message: what was expected; what was found is added.
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
        values: list[int] = cast("Any", index.flatten()).tolist()
        return min(values), max(values)
    least, largest = torch.aminmax(index)
    return int(least.item()), int(largest.item())


def _after(check: Check, run: Run) -> Run:
    def checked(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        check(inputs)
        return run(inputs)

    return checked


def _checks(
    program: torch.fx.GraphModule,
) -> tuple[list[tuple[int, tuple[*_Bounds, str]]], torch.fx.Graph | None]:
    """What ``refuse`` is to look at.

    Returns:
        positions of inputs that are indices, with the other arguments; and a graph that calls it
        for indices that are computed, in the order of the program, if there are any.
    """
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    seen: set[tuple[torch.fx.Node, *_Bounds]] = set()
    inputs: list[tuple[int, tuple[*_Bounds, str]]] = []
    computes = False
    for node in program.graph.nodes:
        if node.op == "placeholder":
            copies[node] = graph.node_copy(node)
        for index, bounds in _indices(node):
            if (index, *bounds) in seen or not _copy(graph, index, copies):
                continue
            seen.add((index, *bounds))
            arguments = (*bounds, _message(node, *bounds))
            if index.op == "placeholder":
                inputs.append((list(copies).index(index), arguments))
            else:
                graph.call_function(refuse, (copies[index], *arguments))
                computes = True
    graph.output([])
    return inputs, graph if computes else None


def _copy(
    graph: torch.fx.Graph,
    wanted: torch.fx.Node,
    copies: dict[torch.fx.Node, torch.fx.Node],
) -> bool:
    """Copies what ``wanted`` follows from, unless that is expensive, random or has an effect."""
    sources: set[torch.fx.Node] = set()
    waiting = [wanted]
    while waiting:
        node = waiting.pop()
        if node in copies or node in sources:
            continue
        if not _repeatable(node):
            return False
        sources.add(node)
        waiting += node.all_input_nodes
    for node in wanted.graph.nodes:
        if node in sources:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return True


def _repeatable(node: torch.fx.Node) -> bool:
    if node.op == "get_attr":
        return isinstance(node.meta.get("val"), torch.Tensor)
    if is_getitem(node):
        return True
    name = _name(node)
    random = has_tag(node, torch.Tag.nondeterministic_seeded)
    return bool(name) and name not in _EXPENSIVE and not writes(node) and not random


def _name(node: torch.fx.Node) -> str:
    """The operator's name in torch, without its overload; empty if it is none of torch's."""
    called = called_operator(node)
    of_torch = called is not None and called.namespace == "aten"
    return str(called).split(".")[1] if of_torch else ""


def _indices(node: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, _Bounds]]:
    """The indices of an operator; for each the smallest, the largest, and one that is ignored."""
    for index, size, ignored in _sizes(_name(node), node):
        value = index.meta.get("val")
        if value is None or value.dtype in (torch.bool, torch.uint8) or not value.numel():
            continue
        yield index, (-size if _name(node) in _WRAPPING else 0, size - 1, ignored)


def _sizes(name: str, node: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, int, int | None]]:
    if name in _ALONG:
        tensor, index = (_argument(node, each) for each in _ALONG[name])
        yield index, _size(tensor, _argument(node, "dim")), None
    elif name in _ROWS:
        tensor, index = (_argument(node, each) for each in _ROWS[name])
        yield index, _size(tensor, 0), None
    elif name in ("take", "put"):
        yield _argument(node, "index"), _argument(node, "self").meta["val"].numel(), None
    elif name in _LOSSES:
        tensor = _argument(node, "self")
        size = _size(tensor, min(1, tensor.meta["val"].dim() - 1))
        yield _argument(node, "target"), size, _argument(node, "ignore_index")
    elif name in _LISTS:
        for dim, index in enumerate(_argument(node, "indices")):
            if index is not None:
                yield index, _size(_argument(node, "self"), dim), None


def _size(tensor: torch.fx.Node, dim: int) -> int:
    shape = tensor.meta["val"].shape
    return shape[dim] if shape else 1


def _argument(node: torch.fx.Node, name: str) -> Any:
    called = called_operator(node)
    assert called is not None
    for position, argument in enumerate(schema_of(called).arguments):
        if argument.name == name:
            given = node.args[position] if position < len(node.args) else argument.default_value
            return node.kwargs.get(name, given)
    raise KeyError(f"{called} has no argument {name!r}")


def _message(node: torch.fx.Node, low: int, high: int, ignored: int | None) -> str:
    frame = user_line(node.meta.get("stack_trace"))
    line = f"{frame[0]}:{frame[1]} in {frame[2]}" if frame else marks_of(node).get("of_line", "")
    name = _name(node).removesuffix("_only").removesuffix("_forward").strip("_")
    besides = "" if ignored is None else f" and {ignored}, which it ignores"
    return f"{line or 'in this program'}: {name} takes the indices {low} to {high}{besides}"
