"""Cutting of a program into parts that run one after another.

A part returns its share of the program's results, and then values that later parts need. Each part
reads and writes the same named state as the whole program, so it is called like any other program.
Constants and views are recomputed in every part that needs them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from abele.program.aliasing import erase_dead_nodes, own_outputs
from abele.program.core import (
    Program,
    Role,
    Slot,
    all_nodes,
    has_effect,
    identifier,
    is_getitem,
    is_view,
    node_argument,
    returned_nodes,
    subgraphs,
    writes,
)

aten = torch.ops.aten


def memory_order(value: torch.Tensor) -> list[int]:
    """Return the dimensions of a tensor from outermost to innermost in memory.

    As they are where that would not make the tensor dense; it is copied then.
    """
    order = sorted(range(value.dim()), key=lambda i: (-value.stride(i), -value.shape[i], i))
    if value.is_contiguous() or not value.permute(order).is_contiguous():
        return list(range(value.dim()))
    return order


def in_memory_order(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    """Permute a value to memory order, at the end of the program that returns it."""
    value = node.meta["val"]
    order = memory_order(value)
    if order != sorted(order):
        made = graph.call_function(aten.permute.default, (node, order))
    elif not value.is_contiguous():
        made = graph.call_function(
            aten.clone.default, (node,), {"memory_format": torch.contiguous_format}
        )
    else:
        return node
    made.meta = dict(node.meta)
    made.meta["val"] = value.permute(order).contiguous()
    return made


def received(
    graph: torch.fx.Graph, placeholder: torch.fx.Node, node: torch.fx.Node
) -> torch.fx.Node:
    """Permute a received value from memory order back to its shape, in the consuming program."""
    order = memory_order(node.meta["val"])
    if order == sorted(order):
        return placeholder
    inverse = [order.index(i) for i in range(len(order))]
    restored = graph.call_function(aten.permute.default, (placeholder, inverse))
    restored.meta = dict(node.meta)
    return restored


Node = torch.fx.Node
Parts = dict[Node, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a program that was cut into several.

    Attributes:
        program: what to run; ``None`` if there is nothing to do.
        takes: names of inputs returned by earlier parts, and the index of that part.
        gives: names of its outputs for later parts, in order.
    """

    program: Program | None
    takes: Mapping[str, int]
    gives: tuple[str, ...]


def draws(node: Node) -> bool:
    """Return whether running a node draws from a random stream."""
    if node.target is aten._scaled_dot_product_flash_attention_for_cpu.default:
        return False  # torch tags it, and refuses to compute it with dropout
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return True
    bodies = [n for n in node.all_input_nodes if n.op == "get_attr"]
    root = node.graph.owning_module
    if not bodies or root is None:
        return False
    inner = dict(subgraphs(root))
    named = [inner[str(body.target)] for body in bodies if str(body.target) in inner]
    return any(draws(each) for graph in named for each in all_nodes(graph))


def is_copied(node: Node) -> bool:
    """Return whether each part recomputes a node (a constant or a view) for itself."""
    if node.op == "get_attr":
        return True
    if node.op != "call_function" or draws(node) or has_effect(node) or writes(node):
        return False
    source = node_argument(node, 0) if is_getitem(node) else node
    return is_view(source) or not node.all_input_nodes


def cut(
    program: Program,
    parts: Mapping[Node, int],
    names: Sequence[str],
    *,
    shared: Mapping[int, str],
    homes: Mapping[str, int] | None = None,
) -> tuple[Part, ...]:
    """Cut a program into parts, given the part number of each operation.

    Args:
        program: pure; see ``Program``.
        parts: the part of every operation, writes and returned nodes included, from 0. No node is
            in a part before those of its arguments. Not needed for nodes that ``is_copied``.
        names: of the parts' programs, in order.
        shared: results of the program that later parts read in place, and their names. Other
            results belong to the caller, who may write to them.
        homes: the only part that receives an input; later parts get the input from it.

    Returns:
        The parts in order. Where one writes to state, earlier ones and itself read what was there
        before; a later one takes that from the one that writes.
    """
    cutter = _Cutter(program, parts, names, shared, homes or {})
    # From the last to the first, because a part gives what later ones take.
    made = [_PartCutter(cutter, index).run() for index in reversed(range(len(names)))]
    return tuple(reversed(made))


class _Cutter:
    """State of a cut: the values that the parts of a program pass to each other."""

    def __init__(
        self,
        program: Program,
        parts: Mapping[Node, int],
        names: Sequence[str],
        shared: Mapping[int, str],
        homes: Mapping[str, int],
    ):
        self.program, self.parts, self.names = program, parts, names
        self.shared = shared
        self.nodes = list(program.graph.graph.nodes)
        self.slots = dict(zip(program.placeholders(), program.inputs, strict=True))
        self.results = list(enumerate(returned_nodes(program.graph)))
        # Handed over as they are; the first of equal ones.
        self.in_place = {
            node: shared[index]
            for index, node in reversed(self.results)
            if index in shared and node.meta["val"].is_contiguous()
        }
        # Who has a placeholder's value: the part that writes it, or alone is given it.
        self.home = {
            node: homes[slot.name]
            for node, slot in self.slots.items()
            if slot.role is Role.INPUT and slot.name in homes
        }
        self.home |= {node_argument(n, 0): parts[n] for n in self.nodes if writes(n)}
        # What each part hands over, by the name under which it does.
        self.kept: list[dict[Node, str]] = [{} for _ in names]
        self.count = 0

    def name_for_consumer(self, node: Node, producer: int) -> str:
        """Return the name under which a part returns a value; create it at first use."""
        if node in self.in_place:
            return self.in_place[node]
        if node not in self.kept[producer]:
            self.kept[producer][node] = f"value.{self.count}"
            self.count += 1
        return self.kept[producer][node]

    def producer(self, node: Node, consumer: int) -> int | None:
        """Return the earlier part that passes a value to a part; None if it has the value."""
        if node.op != "placeholder":
            part = self.parts[node]
            assert part <= consumer, (node, part, consumer)
        else:
            part = self.home.get(node, consumer)
        return part if part < consumer else None


class _PartCutter:
    """A builder of one part's program from the whole program."""

    def __init__(self, whole: _Cutter, index: int):
        self.whole, self.index = whole, index
        self.graph = torch.fx.Graph()
        self.copies: dict[Node, Node] = {}
        self.inputs: dict[str, Slot] = {}  # by the name of the placeholder
        self.takes: dict[str, int] = {}
        # Placeholders come first in a graph, whatever asks for them.
        self.start = self.graph.call_function(torch.ops.aten.zeros.default, ([],))

    def run(self) -> Part:
        """Build and verify the program of the part."""
        whole, index = self.whole, self.index
        mine = [node for node in whole.nodes if whole.parts.get(node) == index]
        for node in mine:
            if not writes(node) and not is_copied(node):
                self._copy(node)
        results = [(i, node) for i, node in whole.results if whole.parts.get(node) == index]
        returned = [self._copy(node) for _, node in results]
        returned += [in_memory_order(self.graph, self._copy(n)) for n in whole.kept[index]]
        writing = [node for node in mine if writes(node)]
        for node in writing:
            self.graph.node_copy(node, self._copy)
        self.graph.output(returned)
        self.graph.erase_node(self.start)
        outputs = [whole.program.outputs[i] for i, _ in results]
        gives = [whole.shared.get(i, whole.program.outputs[i].name) for i, _ in results]
        outputs += [_slot(n, name) for n, name in whole.kept[index].items()]
        return Part(
            program=self._program(outputs) if returned or writing else None,
            takes=self.takes,
            gives=(*gives, *whole.kept[index].values()),
        )

    def _copy(self, node: Node) -> Node:
        """Return the node of this part's graph for a node of the whole program."""
        if node not in self.copies:
            self.copies[node] = self._made(node)
        return self.copies[node]

    def _made(self, node: Node) -> Node:
        # A view that is a result is there already.
        result = node in self.whole.in_place and bool(node.all_input_nodes)
        if is_copied(node) and not result:
            return self.graph.node_copy(node, self._copy)
        producer = self.whole.producer(node, self.index)
        if producer is not None:
            slot = _slot(node, self.whole.name_for_consumer(node, producer))
            value = node.meta["val"].permute(memory_order(node.meta["val"]))
            self.takes[slot.name] = producer
            return received(self.graph, self._placeholder(slot, value), node)
        if node.op == "placeholder":
            return self._placeholder(self.whole.slots[node], node.meta["val"])
        return self.graph.node_copy(node, self._copy)

    def _placeholder(self, slot: Slot, value: torch.Tensor) -> Node:
        with self.graph.inserting_before(self.start):
            made = self.graph.placeholder(identifier(slot.name))
        made.meta["val"] = value
        self.inputs[made.name] = slot
        return made

    def _program(self, outputs: list[Slot]) -> Program:
        module = torch.fx.GraphModule(self.whole.program.graph, self.graph)
        erase_dead_nodes(module)
        own_outputs(module)
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        written = {node_argument(n, 0) for n in module.graph.nodes if writes(n)}
        inputs = tuple(
            dataclasses.replace(self.inputs[node.name], mutated=node in written)
            for node in placeholders
        )
        return Program(
            name=self.whole.names[self.index],
            graph=module,
            inputs=inputs,
            outputs=tuple(outputs),
            history=self.whole.program.history,
        ).verify()


def _slot(node: Node, name: str) -> Slot:
    """Return the slot through which a value is passed between parts of a program."""
    value = node.meta["val"]
    shape = tuple(value.permute(memory_order(value)).shape)
    return Slot(name=name, role=Role.INPUT, shape=shape, dtype=value.dtype)
