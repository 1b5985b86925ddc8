"""Checks of indices before a compiled program runs.

An index out of bounds in generated code would access memory of others. So the operators that
indices follow from are computed separately first, and the indices are compared with their bounds
before anything is written. Programs and executables stay as they are.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch

from abele import _torch
from abele._torch import schema_of
from abele.errors import IndexCheckError
from abele.program import (
    Program,
    Role,
    called_operator,
    has_tag,
    is_getitem,
    is_view,
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
    """Return the operator's name in torch without its overload; empty for other operators."""
    called = called_operator(node)
    ours = called is not None and called.namespace == "aten"
    return str(called).split(".")[1] if ours else ""


def indices(node: torch.fx.Node) -> Iterator[tuple[torch.fx.Node, Bounds]]:
    """Yield the indices of an operator, each with its bounds and a value that is ignored."""
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
    """Return the argument of a name that an operator was given, or its default.

    Raises:
        KeyError: it has no such argument.
    """
    called = called_operator(node)
    assert called is not None, node
    for position, argument in enumerate(schema_of(called).arguments):
        if argument.name == name:
            given = node.args[position] if position < len(node.args) else argument.default_value
            return node.kwargs.get(name, given)
    raise KeyError(f"{called} has no argument {name!r}")


def message(node: torch.fx.Node, low: int, high: int, ignored: int | None) -> str:
    """Format the user's line of an operator and the indices that it accepts."""
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

Refuse = Callable[..., None]
# The other arguments of such a call: see ``index_checks.refuse``.
Arguments = tuple[int, int, int | None, str]


@dataclasses.dataclass(frozen=True)
class Looks:
    """Values to check before a program runs.

    Attributes:
        inputs: positions of inputs that are indices, with the other arguments of ``refuse``.
        graph: calls ``refuse`` for indices that are computed, in the order of the program; None if
            there are none.
        read: positions of the inputs that the graph is a function of.
    """

    inputs: list[tuple[int, Arguments]]
    graph: torch.fx.GraphModule | None
    read: list[int]


def of_program(program: torch.fx.GraphModule, refuse: Refuse) -> Looks:
    """Return the checks of a program; the bodies of loops and branches have none.

    Args:
        program: pure.
        refuse: called with an index, its bounds, and a message.
    """
    part = _Slice(program, refuse)
    inputs = part.add_checks()
    read = part.used() if part.checks else []
    return Looks(inputs, part.finished(read) if part.checks else None, read)


class _Slice:
    """A copy of the nodes of a graph that checks need.

    Attributes:
        checks: number of checks in the copy.
    """

    def __init__(self, source: torch.fx.GraphModule, refuse: Refuse):
        self._source, self._refuse = source, refuse
        self._graph = torch.fx.Graph()
        self._root: dict[str, Any] = {}
        self._copies: dict[torch.fx.Node, torch.fx.Node] = {}
        self.checks = 0
        self._inputs = [node for node in source.graph.nodes if node.op == "placeholder"]
        for node in self._inputs:
            self._copies[node] = self._graph.node_copy(node)

    def add_checks(self) -> list[tuple[int, Arguments]]:
        """Add a check for each index that is computed; return the inputs that are indices."""
        seen: set[tuple[torch.fx.Node, Bounds]] = set()
        inputs: list[tuple[int, Arguments]] = []
        for node in self._source.graph.nodes:
            for place, bounds in indices(node):
                index = same_elements(place)
                if (index, bounds) in seen or not self._copy(index):
                    continue
                seen.add((index, bounds))
                arguments = (*bounds, message(node, *bounds))
                if index.op == "placeholder":
                    inputs.append((self._inputs.index(index), arguments))
                else:
                    self._graph.call_function(self._refuse, (self._copies[index], *arguments))
                    self.checks += 1
        return inputs

    def _copy(self, wanted: torch.fx.Node) -> bool:
        """Copy the inputs of a node, unless one is expensive, random or has an effect."""
        sources: set[torch.fx.Node] = set()
        waiting = [wanted]
        while waiting:
            node = waiting.pop()
            if node in self._copies or node in sources:
                continue
            if not is_repeatable(node, self._source):
                return False
            sources.add(node)
            waiting += node.all_input_nodes
        for node in self._source.graph.nodes:
            if node in sources:
                self._copies[node] = self._graph.node_copy(node, self._copies.__getitem__)
                if node.op == "get_attr":
                    name = str(node.target)
                    self._root[name] = operator.attrgetter(name)(self._source)
        return True

    def used(self) -> list[int]:
        """Return the positions of the inputs that the copy needs."""
        return [i for i, node in enumerate(self._inputs) if self._copies[node].users]

    def finished(self, kept: Sequence[int]) -> torch.fx.GraphModule:
        """Return the copy as a function of the inputs at the positions ``kept``."""
        self._graph.output([])
        for position, node in enumerate(self._inputs):
            if position not in kept:
                self._graph.erase_node(self._copies[node])
        return _torch.graph_module(self._root, self._graph)


def same_elements(node: torch.fx.Node) -> torch.fx.Node:
    """Return the first node with equal elements, however often repeated, in whatever order."""
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

Check = Callable[[list[torch.Tensor]], Any]
_CheckOfBatch = Callable[[Sequence[torch.Tensor]], None]


class Checked(Compiled):
    """A compiled program that raises ``IndexCheckError`` instead of ending the process."""

    def __init__(self, compiled: Compiled, check: Check, of_batch: _CheckOfBatch | None = None):
        super().__init__(_after(check, compiled.run), compiled.payload, compiled.plan)
        self._compiled, self._check, self._of_batch = compiled, check, of_batch

    def kernel_problem(self, *, noted: bool) -> str | None:
        """Return that of the code behind the check."""
        return self._compiled.kernel_problem(noted=noted)

    def repeated(self) -> Repeated | None:
        """Return repeated runs with a check of each, if the check reads nothing but the batch."""
        repeated = self._compiled.repeated()
        if self._of_batch is None or repeated is None:
            return None
        return _each_checked(self._of_batch, repeated)

    def bound(self, arguments: Sequence[torch.Tensor], batch: Sequence[int]) -> OfBatch | None:
        """Return a bound call with a check before it, if the check reads nothing but the batch."""
        check, run = self._of_batch, self._compiled.bound(arguments, batch)
        if check is None or run is None:
            return None

        def checked(rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            check(rows)
            return run(rows)

        return checked


def checked(program: Program, compiled: Compiled) -> Compiled:
    """``compiled`` with a look at the indices of ``program`` in front, if it has any."""
    looks = of_program(program.graph, refuse)
    if not looks.inputs and looks.graph is None:
        return compiled
    computed = None if looks.graph is None else _run_of(looks.graph)
    batch = [i for i, slot in enumerate(program.inputs) if slot.role is Role.INPUT]
    positions = {position for position, _ in looks.inputs}.union(looks.read)
    of_batch = _check(looks, computed, batch) if positions.issubset(batch) else None
    return Checked(compiled, _check(looks, computed, range(len(program.inputs))), of_batch)


def look(program: Program, inputs: Sequence[torch.Tensor]) -> None:
    """Raise ``IndexCheckError`` if an index of a program is out of range for some inputs.

    Interpreted programs call it after an operator of torch has failed, whose own error says neither
    the line nor, for some operators, that an index is the cause.

    Args:
        program: has written nothing yet.
        inputs: one tensor for each slot.
    """
    looks = of_program(program.graph, refuse)
    computed = None if looks.graph is None else _run_of(looks.graph)
    _check(looks, computed, range(len(program.inputs)))(inputs)


def _run_of(graph: torch.fx.GraphModule) -> Run:
    function = function_of(graph)

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            return list(function(inputs))

    return run


def _check(looks: Looks, computed: Run | None, given: Sequence[int]) -> _CheckOfBatch:
    """Return a check of the inputs of a program at the positions ``given``."""
    inputs = [(given.index(position), bounds) for position, bounds in looks.inputs]
    read = [given.index(position) for position in looks.read]

    def check(values: Sequence[torch.Tensor]) -> None:
        for position, bounds in inputs:  # the first: other indices may follow from these
            refuse(values[position], *bounds)
        if computed is not None:
            computed([values[position] for position in read])

    return check


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
        rows = index if index.dim() == 1 else index.flatten()
        values: list[int] = cast("Any", rows).tolist()
        return min(values), max(values)
    least, largest = torch.aminmax(index)
    return int(least.item()), int(largest.item())


def _after(check: Check, run: Run) -> Run:
    def checked(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        check(inputs)
        return run(inputs)

    return checked


def _each_checked(check: _CheckOfBatch, repeated: Repeated) -> Repeated:
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


# -- bounds that are known before a program runs

#: The smallest and the largest number that a value may hold.
Range = tuple[float, float]

_UNKNOWN: Range = (-math.inf, math.inf)
# Which of their results are positions along a dimension; None if they have one result.
_PLACES = {
    "argmax": None, "argmin": None, "argsort": None,
    "max": 1, "min": 1, "sort": 1, "topk": 1, "kthvalue": 1, "median": 1, "nanmedian": 1,
    "mode": 1, "cummax": 1, "cummin": 1,
}  # fmt: skip
_MOVING = ("clone", "alias", "detach", "flip", "roll", "gather", "index_select", "index", "repeat",
           "_unsafe_view", "reshape", "contiguous", "lift_fresh_copy")  # fmt: skip


class IndexBounds:
    """Ranges of the indices of a program.

    Args:
        program: whose indices are looked at before it runs, where that is possible.
    """

    def __init__(self, program: torch.fx.GraphModule):
        self._program = program
        self._repeatable: dict[torch.fx.Node, bool] = {}

    def may_leave(self, node: torch.fx.Node) -> bool:
        """Return whether an operator may index out of bounds, as far as known before it runs."""
        return any(
            not self._is_checked(index) and not self._fits(index, low, high)
            for index, low, high in _of_gradients(node) or _of_all(node)
        )

    def _fits(self, index: torch.fx.Node, low: int, high: int) -> bool:
        least, largest = self._range(index)
        return low <= least and largest <= high

    def _is_checked(self, node: torch.fx.Node) -> bool:
        """Return whether a value can be computed and checked before the program runs."""
        order = [node]
        while order:
            each = order[-1]
            inputs = each.all_input_nodes
            waiting = [one for one in inputs if one not in self._repeatable]
            if each in self._repeatable:
                order.pop()
            elif each.op == "placeholder":
                self._repeatable[each] = True
            elif not is_repeatable(each, self._program):
                self._repeatable[each] = False
            elif waiting:
                order += waiting
            else:
                self._repeatable[each] = all(self._repeatable[one] for one in inputs)
        return self._repeatable[node]

    def _range(self, node: torch.fx.Node) -> Range:
        """Return the range of the positions and random numbers that an index holds."""
        while is_view(node) or name_of(node) in _MOVING:
            source = node.all_input_nodes[0]
            if source.meta["val"].dtype != node.meta["val"].dtype:
                return _UNKNOWN
            node = source
        if is_getitem(node):
            source, number = cast("tuple[torch.fx.Node, int]", node.args)
            return _of_places(source) if _PLACES.get(name_of(source)) == number else _UNKNOWN
        name = name_of(node)
        if name in _PLACES and _PLACES[name] is None:
            return _of_places(node)
        if name in ("randint", "randint_like"):
            numbers = [each for each in node.args if isinstance(each, int)]
            return (numbers[0], numbers[1] - 1) if len(numbers) > 1 else (0, numbers[0] - 1)
        if name in ("randperm", "multinomial"):
            count: Any = node.args[0]
            return 0, (count.meta["val"].shape[-1] if name == "multinomial" else count) - 1
        return _UNKNOWN


def _of_all(node: torch.fx.Node) -> list[tuple[torch.fx.Node, int, int]]:
    """Return the indices of an operator with their smallest and largest valid value."""
    return [(index, low, high) for index, (low, high, _) in indices(node)]


def _of_gradients(node: torch.fx.Node) -> list[tuple[torch.fx.Node, int, int]]:
    """Return the indices of a gradient, which a program checks where forward uses them."""
    name = name_of(node)
    if name == "embedding_dense_backward":
        return [(argument_of(node, "indices"), 0, argument_of(node, "num_weights") - 1)]
    if name in ("nll_loss_backward", "nll_loss2d_backward"):
        shape = argument_of(node, "self").meta["val"].shape
        return [(argument_of(node, "target"), 0, shape[min(1, len(shape) - 1)] - 1)]
    return []


def _of_places(node: torch.fx.Node) -> Range:
    """Positions along a dimension of what an operator is given, or in all of it."""
    shape = node.all_input_nodes[0].meta["val"].shape
    dim = cast("int | None", argument_of(node, "dim"))
    size = math.prod(shape) if dim is None else shape[dim] if shape else 1
    return 0, max(size - 1, 0)
