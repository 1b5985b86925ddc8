"""The part of a program that its indices follow from, with a call that looks at each.

Bodies of loops and branches are treated alike: a loop repeats only those of its values from which
indices follow, a branch the side that the program takes.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele import _torch
from abele.program import called_operator, has_tag, is_getitem, writes
from abele.targets.index_uses import Bounds, indices, line_of, message, name_of

# An index that follows from these is not computed twice.
_EXPENSIVE = ("convolution", "mm", "addmm", "bmm", "baddbmm", "_native_batch_norm_legit")
# Their results have the elements of their first argument, as long as there are any.
_SAME_ELEMENTS = (
    *("view", "_unsafe_view", "reshape", "flatten", "unsqueeze", "squeeze", "expand", "repeat"),
    *("t", "transpose", "permute", "alias", "clone", "detach"),
)
_WHILE, _COND = torch.ops.higher_order.while_loop, torch.ops.higher_order.cond

Refuse = Callable[..., None]
# The other arguments of such a call: see ``index_checks.refuse``.
Arguments = tuple[int, int, int | None, str]
Nodes = Sequence[torch.fx.Node]


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
    """Return what is to be looked at before a program runs.

    Args:
        program: pure.
        refuse: called with an index, what fits it, and a message.
    """
    part = _Slice(program, refuse, "")
    inputs = part.add_checks(of_inputs=False)
    read = part.used() if part.checks else []
    return Looks(inputs, part.finished([], read) if part.checks else None, read)


def repeat(
    condition: Callable[..., Sequence[torch.Tensor]],
    body: Callable[..., Sequence[torch.Tensor]],
    carried: Sequence[torch.Tensor],
    read: Sequence[torch.Tensor],
) -> None:
    """Run the checks of a loop's body, with the values that it has each time."""
    while bool(*condition(*carried, *read)):
        carried = body(*carried, *read)


def follow(
    condition: torch.Tensor,
    first: Callable[..., Any] | None,
    second: Callable[..., Any] | None,
    operands: Sequence[torch.Tensor],
) -> None:
    """Run the checks of the side that a branch takes, if that has any."""
    side = first if bool(condition) else second
    if side is not None:
        side(*operands)


class _Slice:
    """A copy of the nodes of a graph that checks need.

    Attributes:
        checks: how many checks it makes.
        inputs: those of the graph.
        results: those of the graph.
    """

    def __init__(self, source: torch.fx.GraphModule, refuse: Refuse, line: str):
        self._source, self._refuse, self._line = source, refuse, line
        self._graph = torch.fx.Graph()
        self._root: dict[str, Any] = {}
        self._copies: dict[torch.fx.Node, torch.fx.Node] = {}
        self.checks = 0
        self.inputs = [node for node in source.graph.nodes if node.op == "placeholder"]
        for node in self.inputs:
            self._copies[node] = self._graph.node_copy(node)
        (output,) = source.graph.find_nodes(op="output")
        results = output.args[0]
        self.results: Nodes = [results] if isinstance(results, torch.fx.Node) else results

    def add_checks(self, *, of_inputs: bool = True) -> list[tuple[int, Arguments]]:
        """Add a check for each index of the graph.

        Args:
            of_inputs: also those that are inputs of the graph.

        Returns:
            else these, by position, with the arguments of their checks.
        """
        seen: set[tuple[torch.fx.Node, Bounds]] = set()
        inputs: list[tuple[int, Arguments]] = []
        for node in self._source.graph.nodes:
            for place, bounds in indices(node):
                index = same_elements(place)
                if (index, bounds) in seen or not self.copy(index):
                    continue
                seen.add((index, bounds))
                arguments = (*bounds, message(node, self._line, *bounds))
                if index.op == "placeholder" and not of_inputs:
                    inputs.append((self.inputs.index(index), arguments))
                else:
                    self._call(self._refuse, self._copies[index], *arguments)
            if node.target is _WHILE:
                self._add_loop(node)
            elif node.target is _COND:
                self._add_branch(node)
        return inputs

    def copy(self, *wanted: torch.fx.Node) -> bool:
        """Copy what some nodes follow from, unless that is expensive, random or has an effect."""
        sources: set[torch.fx.Node] = set()
        waiting = list(wanted)
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
        return [i for i, node in enumerate(self.inputs) if self._copies[node].users]

    def finished(self, results: Nodes, kept: Sequence[int]) -> torch.fx.GraphModule:
        """Return the copy as a function of the inputs ``kept`` that returns ``results``."""
        self._graph.output([self._copies[node] for node in results])
        for position, node in enumerate(self.inputs):
            if position not in kept:
                self._graph.erase_node(self._copies[node])
        return _torch.graph_module(self._root, self._graph)

    def _add_loop(self, node: torch.fx.Node) -> None:
        """Add the checks of a loop's body, if what they follow from can be repeated."""
        arguments: tuple[Any, ...] = node.args
        tested, part = (self._inner(each, node) for each in arguments[:2])
        carried, read = arguments[2:]
        count = len(carried)
        if not part.checks or not tested.copy(*tested.results):
            return
        kept = set(tested.used()) & set(range(count))
        while True:
            # A value that the next repetition needs follows from others.
            if not part.copy(*(part.results[i] for i in kept)):
                return
            needed = set(part.used()) & set(range(count))
            if needed <= kept:
                break
            kept |= needed
        used = sorted({*kept, *tested.used(), *part.used()})
        outer = [[*carried, *read][i] for i in used]
        if not self.copy(*outer):
            return
        values = [self._copies[each] for each in outer]
        test = tested.finished(tested.results, used)
        body = part.finished([part.results[i] for i in sorted(kept)], used)
        split = len(kept)
        self._call(repeat, self._added(test), self._added(body), values[:split], values[split:])

    def _add_branch(self, node: torch.fx.Node) -> None:
        """Add the checks of both sides of a branch, likewise."""
        arguments: tuple[Any, ...] = node.args
        condition, *sides, operands = arguments
        parts = [self._inner(each, node) for each in sides]
        used = sorted({i for part in parts for i in part.used()})
        outer = [operands[i] for i in used]
        if not any(part.checks for part in parts) or not self.copy(condition, *outer):
            return
        bodies = [self._added(p.finished([], used)) if p.checks else None for p in parts]
        values = [self._copies[each] for each in outer]
        self._call(follow, self._copies[condition], *bodies, values)

    def _inner(self, body: Any, node: torch.fx.Node) -> _Slice:
        """Return the checks of the body of a loop or branch."""
        graph = operator.attrgetter(str(body.target))(self._source)
        part = _Slice(graph, self._refuse, line_of(node) or self._line)
        part.add_checks()
        return part

    def _added(self, body: torch.fx.GraphModule) -> torch.fx.Node:
        name = f"checked_{len(self._root)}"
        self._root[name] = body
        return self._graph.get_attr(name)

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        self._graph.call_function(function, args)
        self.checks += 1


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
        value = operator.attrgetter(str(node.target))(root)
        if isinstance(value, torch.fx.GraphModule):
            inner = (each for each in value.graph.nodes if each.op in ("call_function", "get_attr"))
            return all(is_repeatable(each, value) for each in inner)
        return isinstance(value, torch.Tensor)
    if is_getitem(node) or node.target in (_WHILE, _COND):
        return True
    called = called_operator(node)
    return (
        called is not None
        and called.namespace == "aten"
        and not writes(node)
        and not has_tag(node, torch.Tag.nondeterministic_seeded)
        and name_of(node) not in _EXPENSIVE
    )
