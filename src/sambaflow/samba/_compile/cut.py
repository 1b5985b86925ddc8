"""Cuts a program in two that together compute what it computes.

The first part returns, behind its own results, the values that the second one still needs. Views
are made again instead of being handed over, and permuted memory is handed over in the order in
which it lies, because compiled programs take dense row-major tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import torch

from abele.program import (
    Program,
    Role,
    Slot,
    has_effect,
    identifier,
    is_getitem,
    is_view,
    node_argument,
    returned_nodes,
    writes,
)
from abele.program.boundary_layout import in_memory_order, memory_order, received
from abele.program.ownership import own_outputs

aten = torch.ops.aten
Node = torch.fx.Node


def cut(
    program: Program,
    results: int,
    late: Collection[str],
    names: tuple[str, str],
    *,
    owned: bool = True,
) -> tuple[Program, Program]:
    """Splits a program behind its first results.

    Args:
        program: as captured.
        results: how many of its outputs the first part computes.
        late: input slots of role INPUT that exist only when the second part runs.
        names: of the two parts.
        owned: the caller may write into the results; otherwise the second part reads them where
            they are, under their names.

    Returns:
        The first part, whose outputs are those results and then the values kept for the second;
        the second part, whose inputs of role INPUT have the names of those outputs.
    """
    return _Cut(program, results, late, names, owned).run()


class _Cut:
    def __init__(
        self,
        program: Program,
        results: int,
        late: Collection[str],
        names: tuple[str, str],
        owned: bool,
    ):
        self.program, self.results, self.names = program, results, names
        self.shared = {}
        if not owned:
            done = returned_nodes(program.graph)[:results]
            self.shared = dict(zip(done, program.outputs, strict=False))
        self.slots = dict(zip(program.placeholders(), program.inputs, strict=True))
        self.late = {node for node, slot in self.slots.items() if _is_late(slot, late)}
        self.first = self._first_nodes()
        self.kept: list[Node] = []

    def _first_nodes(self) -> set[Node]:
        nodes = list(self.program.graph.graph.nodes)
        after = set(self.late)
        for node in nodes:
            if after.intersection(node.all_input_nodes):
                after.add(node)
        roots = set(returned_nodes(self.program.graph)[: self.results])
        for node in nodes:
            early = node not in after
            if early and (_draws(node) or has_effect(node) or self._writes_model(node)):
                roots.add(node)
        found = roots | _ancestors(roots)
        # A result of several values goes where its producer is.
        found |= {n for n in nodes if is_getitem(n) and node_argument(n, 0) in found}
        return found

    def _writes_model(self, node: Node) -> bool:
        """Whether it writes a buffer or an input, which belongs to forward."""
        if not writes(node):
            return False
        slot = self.slots.get(node_argument(node, 0))
        return slot is not None and slot.role in (Role.BUFFER, Role.INPUT)

    def run(self) -> tuple[Program, Program]:
        """Both parts, verified."""
        outputs = returned_nodes(self.program.graph)
        rest = [
            n
            for n in self.program.graph.graph.nodes
            if n not in self.first and n.op not in ("placeholder", "get_attr", "output")
        ]
        second, kept_slots = self._second(rest, outputs[self.results :])
        return self._first(outputs[: self.results], kept_slots), second

    # -- the second part ---------------------------------------------------------------------

    def _second(self, rest: Sequence[Node], returned: Sequence[Node]) -> tuple[Program, list[Slot]]:
        graph = torch.fx.Graph()
        copies: dict[Node, Node] = {}
        used: list[tuple[Node, Slot]] = []
        kept_slots: list[Slot] = []
        # Placeholders come first in a graph, whatever asks for them.
        start = graph.call_function(aten.zeros.default, ([],))

        def placeholder(name: str, slot: Slot, value: torch.Tensor) -> Node:
            with graph.inserting_before(start):
                node = graph.placeholder(name)
            node.meta["val"] = value
            used.append((node, slot))
            return node

        def found(node: Node) -> Node:
            if node in copies:
                return copies[node]
            if node.op == "placeholder" and not self._is_stale(node):
                made = placeholder(node.name, self.slots[node], node.meta["val"])
            elif self._is_copied(node):
                made = graph.node_copy(node, found)
            else:
                made = self._handed_over(graph, node, placeholder, kept_slots)
            copies[node] = made
            return made

        for node in rest:
            found(node)
        graph.output([found(node) for node in returned])
        graph.erase_node(start)
        return self._program(self.names[1], graph, used, self.program.outputs[self.results :]), (
            kept_slots
        )

    def _is_stale(self, node: Node) -> bool:
        """Whether the first part overwrites a state that the second one reads."""
        return node not in self.late and any(
            user in self.first and writes(user) and node_argument(user, 0) is node
            for user in node.users
        )

    def _is_copied(self, node: Node) -> bool:
        """Whether the second part computes it, for the first time or once more."""
        if node.op == "get_attr" or node not in self.first:
            return True
        return node not in self.shared and self._is_remade(node)

    def _is_remade(self, node: Node) -> bool:
        source = node_argument(node, 0) if is_getitem(node) else node
        return is_view(source) and not self._touches_stale(source)

    def _touches_stale(self, node: Node) -> bool:
        while is_view(node) or is_getitem(node):
            node = node_argument(node, 0)
        return node.op == "placeholder" and self._is_stale(node)

    def _handed_over(self, graph: torch.fx.Graph, node: Node, placeholder, slots) -> Node:
        """A value of the first part as an input of the second."""
        if node in self.shared and node.meta["val"].is_contiguous():
            slot = dataclasses.replace(self.shared[node], role=Role.INPUT)
            return placeholder(identifier(slot.name), slot, node.meta["val"])
        value = node.meta["val"].permute(memory_order(node.meta["val"]))
        name = f"kept.{len(slots)}"
        slot = Slot(name=name, role=Role.INPUT, shape=tuple(value.shape), dtype=value.dtype)
        slots.append(slot)
        self.kept.append(node)
        return received(graph, placeholder(identifier(name), slot, value), node)

    # -- the first part ----------------------------------------------------------------------

    def _first(self, returned: Sequence[Node], kept_slots: Sequence[Slot]) -> Program:
        graph = torch.fx.Graph()
        copies: dict[Node, Node] = {}
        used: list[tuple[Node, Slot]] = []
        writing: list[Node] = []
        for node in self.program.graph.graph.nodes:
            if node not in self.first and node.op != "get_attr":
                continue
            if writes(node):
                writing.append(node)
                continue
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if node.op == "placeholder":
                used.append((copies[node], self.slots[node]))
        outputs = [copies[node] for node in returned]
        for node in self.kept:
            outputs.append(in_memory_order(graph, copies[node]))
        for node in writing:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(outputs)
        slots = (*self.program.outputs[: self.results], *kept_slots)
        return self._program(self.names[0], graph, used, slots)

    def _program(
        self, name: str, graph: torch.fx.Graph, used: Sequence[tuple[Node, Slot]], outputs
    ) -> Program:
        module = torch.fx.GraphModule(self.program.graph, graph)
        module.graph.eliminate_dead_code()
        own_outputs(module)
        written = {node_argument(n, 0).name for n in module.graph.nodes if writes(n)}
        by_name = {node.name: slot for node, slot in used}
        inputs = tuple(
            dataclasses.replace(by_name[node.name], mutated=node.name in written)
            for node in module.graph.nodes
            if node.op == "placeholder"
        )
        return Program(
            name=name,
            graph=module,
            inputs=inputs,
            outputs=tuple(outputs),
            history=self.program.history,
        ).verify()


def _is_late(slot: Slot, late: Collection[str]) -> bool:
    return slot.role is Role.INPUT and slot.name in late


def _draws(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _ancestors(roots: Collection[Node]) -> set[Node]:
    seen: set[Node] = set()
    stack = [source for node in roots for source in node.all_input_nodes]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack += node.all_input_nodes
    return seen
