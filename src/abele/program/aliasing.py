"""Aliases and lifetimes of the values of a graph.

The schemas of operators decide: views and writes share the memory of an argument, other results
have memory of their own. In-place passes, memory plans and reports of peak memory use this
module.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from abele._torch import FakeTensor, OpOverload, schema_of
from abele.containers import is_sequence
from abele.errors import CaptureError
from abele.program.core import (
    all_nodes,
    called_operator,
    is_getitem,
    line_of,
    node_argument,
    output_node,
    returned_nodes,
    subgraphs,
    writes,
)

aten = torch.ops.aten

_T = TypeVar("_T")

#: Operators whose results are views of the first argument, contrary to their schemas.
_SILENT_VIEWS = frozenset(
    (
        aten._unsafe_view.default,
        aten.unsafe_split.Tensor,
        aten.unsafe_split_with_sizes.default,
    )
)
#: Key in the meta of a constant: the constant that represents their shared memory.
SHARES = "shares"


def base(node: torch.fx.Node) -> torch.fx.Node:
    """Return the node that owns a value's memory: itself, unless it is a view or an argument."""
    *_, last = kept_alive(node)
    return _memory_of_source(last)


def _memory_of_source(node: torch.fx.Node) -> torch.fx.Node:
    return node.meta.get(SHARES, node) if node.op == "get_attr" else node


def kept_alive(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yield a value and all values whose memory it keeps alive, such as its base."""
    source: torch.fx.Node | None = node
    while source is not None:
        yield source
        source = _source(source)


def written(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the tensors that a node writes to, in the order of its operator's schema."""
    called = called_operator(node)
    if called is None or not schema_of(called).is_mutable:
        return []
    return [
        target
        for index, argument in enumerate(schema_of(called).arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
        for target in _nodes(_given(node, index, argument.name))
    ]


class Aliases:
    """A cache of the base nodes of values, which stays valid while the graph changes."""

    def __init__(self) -> None:
        self._known: dict[torch.fx.Node, tuple[torch.fx.Node, bool]] = {}

    def base(self, node: torch.fx.Node) -> torch.fx.Node:
        """Return the node that owned a value's memory at the first query."""
        return self._of(node)[0]

    def is_whole(self, node: torch.fx.Node) -> bool:
        """Return whether a value owns its memory, and is not a view."""
        return self._of(node)[1]

    def declare(self, node: torch.fx.Node, memory: torch.fx.Node) -> None:
        """Declare that a node is all of another node's memory, whatever its schema says."""
        self._known[node] = memory, True

    def _of(self, node: torch.fx.Node) -> tuple[torch.fx.Node, bool]:
        path: list[torch.fx.Node] = []
        while node not in self._known:
            source = _source(node)
            if source is None:
                self._known[node] = _memory_of_source(node), SHARES not in node.meta
            else:
                path.append(node)
                node = source
        memory, whole = self._known[node]
        for each in reversed(path):
            whole = whole and writes(each)
            self._known[each] = memory, whole
        return memory, whole


def aliases_of_calls(graph: torch.fx.Graph) -> Aliases:
    """Return the aliases of a graph run by torch, where results share more than schemas say.

    For memory plans and passes. Code that follows writes uses ``base``: a write to such a result
    need not write to the argument.
    """
    aliases = Aliases()
    for node in graph.nodes:
        if node.target in _SILENT_VIEWS:
            memory = aliases.base(node_argument(node, 0))
            for each in (node, *filter(is_getitem, node.users)):
                aliases.declare(each, memory)
    return aliases


@dataclasses.dataclass(frozen=True)
class LiveRange:
    """The live range of a tensor that an operation computes.

    Attributes:
        result: which of its results, 0 if it has one.
        first: position of the operation in the order of the graph.
        last: position of the last node that reads the tensor or a view of it.
        size: bytes.
    """

    node: torch.fx.Node
    result: int
    first: int
    last: int
    size: int


def lifetimes(steps: Iterable[Iterable[_T]]) -> dict[_T, tuple[int, int]]:
    """Return the first and the last step, by index, that uses each value.

    Args:
        steps: the values that each step reads or computes.
    """
    lives: dict[_T, tuple[int, int]] = {}
    for index, values in enumerate(steps):
        for value in values:
            first, _ = lives.get(value, (index, index))
            lives[value] = first, index
    return lives


def last_uses(steps: Sequence[Iterable[_T]]) -> list[list[_T]]:
    """Return for each step the values that no later step uses; ``steps`` as in ``lifetimes``."""
    freed: list[list[_T]] = [[] for _ in steps]
    for value, (_, last) in lifetimes(steps).items():
        freed[last].append(value)
    return freed


class Liveness:
    """Lifetimes of the memory of a graph's values, in the order of the graph.

    What a graph returns is used by its output node, so it lives to the end. Answers are those of
    the graph as it was given; it may be changed afterwards.

    Args:
        graph: values of nodes are in ``meta["val"]``.
        memory: returns the node that owns a value's memory, if more is known than schemas and
            ``aliases_of_calls`` say.
    """

    def __init__(
        self,
        graph: torch.fx.Graph,
        memory: Callable[[torch.fx.Node], torch.fx.Node] | None = None,
    ):
        self._position = {node: index for index, node in enumerate(graph.nodes)}
        self._memory = _memories(graph, memory or aliases_of_calls(graph).base)
        self._lives = lifetimes(
            [self._memory[each] for each in (node, *node.all_input_nodes)] for node in graph.nodes
        )
        #: All tensors that operations make, in the order of the graph. Views, and results that
        #: are written into arguments, take no memory of their own.
        self.ranges = tuple(self._made())

    def position(self, node: torch.fx.Node) -> int:
        """Return the index of a node in the order of the graph."""
        return self._position[node]

    def memory(self, node: torch.fx.Node) -> torch.fx.Node:
        """Return the node that owns a value's memory."""
        return self._memory[node]

    def last_use(self, node: torch.fx.Node) -> int:
        """Return the position of the last node that uses the memory of a value."""
        return self._lives[self._memory[node]][1]

    def bytes_alive(self) -> list[int]:
        """Return the bytes of all live ranges at each node, by position."""
        change = [0] * (len(self._position) + 1)
        for each in self.ranges:
            change[each.first] += each.size
            change[each.last + 1] -= each.size
        alive = 0
        return [alive := alive + each for each in change[:-1]]

    def _made(self) -> Iterator[LiveRange]:
        for node, index in self._position.items():
            if node.op != "call_function" or self._memory[node] is not node or is_getitem(node):
                continue
            value = node.meta.get("val")
            values = value if is_sequence(value) else [value]
            picked = {user.args[1]: user for user in node.users if is_getitem(user)}
            for result, each in enumerate(values):
                if isinstance(each, torch.Tensor):
                    last = self.last_use(picked.get(result, node))
                    yield LiveRange(node, result, index, last, each.nbytes)


def _memories(
    graph: torch.fx.Graph, memory: Callable[[torch.fx.Node], torch.fx.Node]
) -> dict[torch.fx.Node, torch.fx.Node]:
    """Return the node that owns each value's memory, with one for repeated ``getitem`` nodes."""
    picked: dict[Any, torch.fx.Node] = {}
    memories: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        where = memory(node)
        memories[node] = picked.setdefault(where.args, where) if is_getitem(where) else where
    return memories


def _source(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the argument whose memory a node's result shares, or None."""
    call, index = (node_argument(node, 0), node.args[1]) if is_getitem(node) else (node, 0)
    target = called_operator(call)
    if target is None or not isinstance(index, int):
        return None
    # By identity: torch hashes an operator in Python, and this is asked of every node.
    known = _SHARED.get((id(target), index))
    if known is None:
        known = _SHARED[id(target), index] = target, _shared_argument(target, index)
    shared = known[1]
    if shared is None:
        return None
    nodes = _nodes(_given(call, *shared))
    return nodes[0] if nodes else None


# Cached results of ``_shared_argument``, with the operator, so that its ``id`` stays unique.
_SHARED: dict[tuple[int, int], tuple[OpOverload, tuple[int, str] | None]] = {}


def _shared_argument(target: OpOverload, index: int) -> tuple[int, str] | None:
    """Return position and name of the argument whose memory an operator's result shares."""
    schema = schema_of(target)
    returns = schema.returns
    # One result may be a list of views of the same tensor.
    result = returns[index if len(returns) > 1 else 0] if returns else None
    if result is None or result.alias_info is None:
        return None
    shared = result.alias_info.before_set
    for position, argument in enumerate(schema.arguments):
        alias = argument.alias_info
        # A list of views names no set; its argument says that it goes anywhere.
        if alias is not None and (alias.before_set == shared if shared else alias.after_set):
            return position, argument.name
    return None


def _given(node: torch.fx.Node, index: int, name: str) -> Any:
    return node.args[index] if index < len(node.args) else node.kwargs.get(name)


def _nodes(argument: Any) -> list[torch.fx.Node]:
    values = argument if is_sequence(argument) else [argument]
    return [value for value in values if isinstance(value, torch.fx.Node)]


#: What to do with tensors that are not dense: programs compute with dense ones.
INSTEAD = (
    "Use a dense tensor (to_dense(), to_padded_tensor(), dequantize()), or indices and values as "
    "two tensors."
)


def other_kind(tensor: torch.Tensor) -> str | None:
    """Describe a tensor that is not dense, such as ``of layout torch.sparse_coo``; else None."""
    if tensor.is_nested:
        return "nested"
    if tensor.layout is not torch.strided:
        return f"of layout {tensor.layout}"
    return f"quantized ({tensor.dtype})" if tensor.is_quantized else None


def own_constants(graph: torch.fx.GraphModule) -> None:
    """Copy constants of a graph whose memory belongs to the user.

    The caller may write into them later, and a program computes with what they held when it was
    captured, on every target.

    Raises:
        CaptureError: one of them is not dense, or has no values.
    """
    for module in graph.modules():
        tensors = [
            *module.named_parameters(recurse=False, remove_duplicate=False),
            *module.named_buffers(recurse=False, remove_duplicate=False),
        ]
        for name, value in tensors:
            kind = other_kind(value)
            if kind is not None:
                raise CaptureError(
                    "forward uses a tensor that is neither a parameter nor a buffer and is "
                    f"{kind}; a program keeps dense tensors. {INSTEAD}"
                )
            if isinstance(value, FakeTensor):
                place = next(line_of(node) for node in all_nodes(graph) if node.target == name)
                raise CaptureError(
                    "forward uses a tensor that an earlier capture left in a global, in an "
                    f"attribute of a class or in a cache{place}. It has no values. Make it in "
                    "__init__, or keep it in an attribute of the module."
                )
            delattr(module, name)
            module.register_buffer(name, value.detach().clone())
    for node in all_nodes(graph):
        node.meta.pop(SHARES, None)  # each has memory of its own now


def own_outputs(graph: torch.fx.GraphModule) -> None:
    """Clone outputs of a graph that share memory with an input, constant or earlier output."""
    returned = returned_nodes(graph)
    taken: set[torch.fx.Node] = set()
    for index, node in enumerate(returned):
        memory = base(node)
        if memory.op in ("placeholder", "get_attr") or memory in taken:
            first = next(each for each in graph.graph.nodes if writes(each) or each.op == "output")
            with graph.graph.inserting_before(first):
                copy = graph.graph.call_function(aten.clone.default, (node,))
            # A copy of what is expanded has elements of its own, so it lies in another order.
            copy.meta = dict(node.meta) | {"val": aten.clone.default(node.meta["val"])}
            returned[index] = copy
        taken.add(memory)
    output_node(graph).args = (returned,)
    graph.recompile()


def erase_dead_nodes(
    graph: torch.fx.GraphModule, stays: Callable[[torch.fx.Node], bool] = torch.fx.Node.is_impure
) -> None:
    """Erase unused nodes of a graph, repeatedly.

    Args:
        graph: changed in place; its nodes stand before those that read them. The bodies of its
            loops and branches are cleared too.
        stays: whether a node is there for another reason than its value; by default, what torch
            knows of its operator. Bodies are always asked that.
    """
    for node in reversed(graph.graph.nodes):
        if not node.users and not stays(node):
            graph.graph.erase_node(node)
    for _, inner in subgraphs(graph):
        erase_dead_nodes(inner)
        inner.recompile()


def stays_in_program(node: torch.fx.Node) -> bool:
    """Return whether a node of a program is an input, the output, or a write of new state."""
    return node.op in ("placeholder", "output") or writes(node)
