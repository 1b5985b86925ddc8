"""Cuts a program into the forward and the backward of each stage of a pipeline.

A part returns its share of the program's results and then what later parts need of it. Each part
reads and writes the same named state as the whole, so a session feeds it like any other program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from abele import passes
from abele.passes.recomputation import SEGMENT
from abele.pipeline.assignment import (
    Parts,
    Uncuttable,
    assign,
    is_copied,
    part_name,
    stage_of,
    written_slots,
)
from abele.pipeline.random_draws import drawn_first
from abele.program import (
    Program,
    Role,
    Slot,
    identifier,
    node_argument,
    returned_nodes,
    writes,
)
from abele.program.boundary_layout import in_memory_order, memory_order, received
from abele.program.ownership import own_outputs
from abele.step.config import StepConfig

__all__ = ["Cut", "Part", "Uncuttable", "cut"]

Node = torch.fx.Node


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """What one stage computes of a micro-batch in one direction.

    Attributes:
        stage: from 0.
        backward: or forward.
        program: what to run; ``None`` if there is nothing to do.
        takes: names of its inputs that other parts give, and which part does.
        gives: under which names its outputs are known, in order; ``result.N`` is the N-th output of
            the whole program.
    """

    stage: int
    backward: bool
    program: Program | None
    takes: Mapping[str, int]
    gives: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cut:
    """A program in parts.

    Attributes:
        whole: the program that was cut.
        stages: how many there are.
        parts: in the order in which one micro-batch passes through them.
    """

    whole: Program
    stages: int
    parts: tuple[Part, ...]

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs of the parts that compute something."""
        return tuple(part.program for part in self.parts if part.program is not None)

    @property
    def training(self) -> bool:
        """Whether there are backward parts."""
        return len(self.parts) > self.stages


def result_name(index: int) -> str:
    """The name of the whole program's output of this number."""
    return f"result.{index}"


def cut(program: Program, stages: int, config: StepConfig) -> Cut:
    """Cuts ``forward`` or ``accumulate`` by the marks of its operations.

    Args:
        program: as captured, with marks; see ``assignment.STAGE``.
        stages: how many there are, at least 2.
        config: what the program was captured with.

    Raises:
        Uncuttable: says why the program has to run as one.
    """
    if config.trap_exceptions:
        raise Uncuttable("floating-point checks stop a step at its first bad operation")
    lowered = passes.run(program)
    try:
        parts = assign(lowered, stages)
    except Uncuttable:
        lowered = drawn_first(lowered)
        parts = assign(lowered, stages)
    return _Cutter(lowered, parts, stages, 2 * stages if config.training else stages).run(program)


class _Cutter:
    def __init__(self, program: Program, parts: Parts, stages: int, count: int):
        self.program, self.parts = program, parts
        self.stages, self.count = stages, count
        self.nodes = list(program.graph.graph.nodes)
        self.slots = dict(zip(program.placeholders(), program.inputs, strict=True))
        self.results = list(enumerate(returned_nodes(program.graph)))
        written = written_slots(program)
        self.writer = {
            node_argument(node, 0): parts[node]
            for node in self.nodes
            if writes(node) and node_argument(node, 0) in written
        }
        # What each part hands over, by the name under which it does.
        self.kept: list[dict[Node, str]] = [{} for _ in range(count)]
        self.names = 0

    def run(self, whole: Program) -> Cut:
        """All parts; from the last to the first, because a part gives what later ones ask for."""
        made = [_PartCutter(self, index).run() for index in reversed(range(self.count))]
        return Cut(whole=whole, stages=self.stages, parts=tuple(reversed(made)))

    def asked_of(self, node: Node, giver: int) -> str:
        """The name under which a part gives a value; makes one at the first question."""
        for index, result in self.results:
            if result is node and node.meta["val"].is_contiguous():
                return result_name(index)
        if node not in self.kept[giver]:
            self.kept[giver][node] = f"value.{self.names}"
            self.names += 1
        return self.kept[giver][node]

    def giver(self, node: Node, asking: int) -> int | None:
        """The part that hands a value to the asking one; None if that finds it by itself.

        Raises:
            Uncuttable: one part writes what an earlier one reads.
        """
        if node.op != "placeholder":
            return None if self.parts[node] == asking else self.parts[node]
        writer = self.writer.get(node, asking)
        if asking < writer:
            slot = self.slots[node]
            raise Uncuttable(
                f"{part_name(writer, self.stages)} changes {slot.role} {slot.name!r}, which "
                f"{part_name(asking, self.stages)} reads"
            )
        return None if writer == asking else writer


class _PartCutter:
    """Makes one part's program."""

    def __init__(self, whole: _Cutter, index: int):
        self.whole, self.index = whole, index
        self.graph = torch.fx.Graph()
        self.copies: dict[Node, Node] = {}
        self.inputs: dict[str, Slot] = {}  # by the name of the placeholder
        self.takes: dict[str, int] = {}
        # Placeholders come first in a graph, whatever asks for them.
        self.start = self.graph.call_function(torch.ops.aten.zeros.default, ([],))

    def run(self) -> Part:
        """The part, verified."""
        whole, index = self.whole, self.index
        mine = [node for node in whole.nodes if whole.parts.get(node) == index]
        for node in mine:
            if not writes(node) and not is_copied(node):
                self._found(node)
        results = [(i, node) for i, node in whole.results if whole.parts.get(node) == index]
        returned = [self._found(node) for _, node in results]
        returned += [in_memory_order(self.graph, self._found(n)) for n in whole.kept[index]]
        writing = [node for node in mine if writes(node)]
        for node in writing:
            self.graph.node_copy(node, self._found)
        self.graph.output(returned)
        self.graph.erase_node(self.start)
        gives = [result_name(i) for i, _ in results] + list(whole.kept[index].values())
        outputs = [whole.program.outputs[i] for i, _ in results]
        outputs += [_slot(n, name) for n, name in whole.kept[index].items()]
        return Part(
            stage=stage_of(index, whole.stages),
            backward=index >= whole.stages,
            program=self._program(outputs) if returned or writing else None,
            takes=self.takes,
            gives=tuple(gives),
        )

    def _found(self, node: Node) -> Node:
        """The node of this part's graph that has the value of one of the whole's."""
        if node not in self.copies:
            self.copies[node] = self._made(node)
        return self.copies[node]

    def _made(self, node: Node) -> Node:
        if node.op != "placeholder" and is_copied(node):
            return self.graph.node_copy(node, self._found)
        giver = self.whole.giver(node, self.index)
        if giver is not None:
            slot = _slot(node, self.whole.asked_of(node, giver))
            value = node.meta["val"].permute(memory_order(node.meta["val"]))
            self.takes[slot.name] = giver
            return received(self.graph, self._placeholder(slot, value), node)
        if node.op == "placeholder":
            return self._placeholder(self.whole.slots[node], node.meta["val"])
        return self.graph.node_copy(node, self._found)

    def _placeholder(self, slot: Slot, value: torch.Tensor) -> Node:
        with self.graph.inserting_before(self.start):
            made = self.graph.placeholder(identifier(slot.name))
        made.meta["val"] = value
        self.inputs[made.name] = slot
        return made

    def _program(self, outputs: list[Slot]) -> Program:
        module = torch.fx.GraphModule(self.whole.program.graph, self.graph)
        module.graph.eliminate_dead_code()
        own_outputs(module)
        for node in module.graph.nodes:  # what was to be computed again has been decided
            custom = node.meta.get("custom") or {}
            if SEGMENT in custom:
                node.meta["custom"] = {k: v for k, v in custom.items() if k != SEGMENT}
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        written = {node_argument(n, 0) for n in module.graph.nodes if writes(n)}
        inputs = tuple(
            dataclasses.replace(self.inputs[node.name], mutated=node in written)
            for node in placeholders
        )
        return Program(
            name=part_name(self.index, self.whole.stages),
            graph=module,
            inputs=inputs,
            outputs=tuple(outputs),
            history=self.whole.program.history,
        ).verify()


def _slot(node: Node, name: str) -> Slot:
    """The slot in which a value is handed over."""
    value = node.meta["val"]
    shape = tuple(value.permute(memory_order(value)).shape)
    return Slot(name=name, role=Role.INPUT, shape=shape, dtype=value.dtype)
