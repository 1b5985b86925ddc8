"""The cut of a program into the forward and backward parts of pipeline stages.

    F0 F1 .. Fn | Bn .. B1 B0        parts, numbered from left to right

For one micro-batch the parts run in this order, so an operation may be in any part that is not
before those of its arguments. Its mark names the stage: ``stage`` in ``node.meta["custom"]``,
written by the front-end. Operations of backward have the stage of their operation of forward.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch

from abele import passes
from abele.passes._edit import editable, finished
from abele.passes.recomputation import SEGMENT
from abele.program import (
    Program,
    has_effect,
    is_getitem,
    marks_of,
    node_argument,
    returned_nodes,
    writes,
)
from abele.program import cut as _cut
from abele.program.core import node_phase
from abele.program.cut import Parts, draws, is_copied
from abele.step.config import StepConfig

#: Key of the stage mark.
STAGE = "stage"

Node = torch.fx.Node


class Uncuttable(Exception):
    """The reason why a program cannot be pipelined; completes "runs sequentially, because ..."."""


def part_name(index: int, stages: int) -> str:
    """Return the name of a part of a pipeline, such as ``stage0_forward``."""
    return f"stage{stage_of(index, stages)}_{'forward' if index < stages else 'backward'}"


def stage_of(index: int, stages: int) -> int:
    """Return the pipeline stage of a part, by the part's index."""
    return index if index < stages else 2 * stages - 1 - index


def marked_stage(node: Node) -> int | None:
    """Return the stage mark of a node or of its operation of forward, or None."""
    marks = marks_of(node)
    return marks.get(STAGE, marks.get(f"of_{STAGE}"))


def assign(program: Program, stages: int) -> Parts:
    """Assign each operation to a pipeline part, writes included; views and constants have none.

    Args:
        program: with marks.
        stages: number of stages; marks are smaller.

    Raises:
        Uncuttable: what has one order, draws or effects, would be in several parts.
    """
    parts = placed(program, stages)
    _check(program, parts, stages)
    return parts


def placed(program: Program, stages: int) -> Parts:
    """Assign operations to parts as ``assign`` does, without checking random draws and effects."""
    parts = _downwards(program, stages)
    _upwards(program, parts)
    _place_writes(program, parts)
    return parts


def _downwards(program: Program, stages: int) -> Parts:
    parts: Parts = {}
    for node in program.graph.graph.nodes:
        if node.op != "call_function" or writes(node):
            continue
        lowest = _latest(parts, node.all_input_nodes)
        wanted = None if is_copied(node) or is_getitem(node) else _wanted(node, stages)
        bounds = [each for each in (lowest, wanted) if each is not None]
        if bounds:
            parts[node] = max(bounds)
    return parts


def _wanted(node: Node, stages: int) -> int | None:
    stage = marked_stage(node)
    if stage is None or node_phase(node) == "forward":
        return stage
    return 2 * stages - 1 - stage


def _latest(parts: Parts, nodes: Iterable[Node]) -> int | None:
    return max((parts[node] for node in nodes if node in parts), default=None)


def _upwards(program: Program, parts: Parts) -> None:
    """Assign operations without mark that only read state to the first part that needs them."""
    for node in reversed(program.graph.graph.nodes):
        if node.op != "call_function" or node in parts or is_copied(node) or writes(node):
            continue
        parts[node] = min((parts[user] for user in _readers(node) if user in parts), default=0)
    # A result of several values stands where its producer stands.
    for node in program.graph.graph.nodes:
        if is_getitem(node) and node_argument(node, 0) in parts:
            parts[node] = parts[node_argument(node, 0)]


def _readers(node: Node) -> Iterable[Node]:
    """Yield the nodes that use a value, also through views of it."""
    for user in node.users:
        yield user
        if is_copied(user):
            yield from _readers(user)


def _place_writes(program: Program, parts: Parts) -> None:
    """Assign a write to the part of its value, else to the first part that reads the slot."""
    for node in program.graph.graph.nodes:
        if writes(node):
            value = node_argument(node, 1)
            others = (user for user in _readers(node_argument(node, 0)) if user is not node)
            first = min((parts[user] for user in others if user in parts), default=0)
            parts[node] = parts.get(value, first)


def _check(program: Program, parts: Parts, stages: int) -> None:
    for what, holds in (
        ("draw random numbers", draws),
        ("print or call the host", has_effect),
    ):
        indices = sorted({part for node, part in parts.items() if holds(node)})
        if len(indices) > 1:
            where = " and ".join(part_name(index, stages) for index in indices)
            raise Uncuttable(f"{where} {what}, and at the same time they would not do so in order")
    for node in returned_nodes(program.graph):
        parts.setdefault(node, _latest(parts, node.all_input_nodes) or 0)


aten = torch.ops.aten

# Operators that read only the layout of their first argument.
_LIKE = {
    aten.bernoulli.p,
    aten.rand_like.default,
    aten.randn_like.default,
    aten.randint_like.default,
    aten.randint_like.low_dtype,
    aten.uniform.default,
    aten.normal_functional.default,
    aten.exponential.default,
}


def drawn_first(program: Program) -> Program:
    """Move forward's random draws that depend only on shapes to stage 0."""
    graph = editable(program)
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or not draws(node) or node_phase(node) != "forward":
            continue
        if node.target in _LIKE:
            _read_no_value(node)
        if node.target in _LIKE or not node.all_input_nodes:
            node.meta["custom"] = {**marks_of(node), STAGE: 0}
    return finished(program, graph)


def _read_no_value(node: torch.fx.Node) -> None:
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    value = source.meta["val"]
    with node.graph.inserting_before(node):
        empty = node.graph.call_function(
            aten.empty_strided.default,
            (list(value.shape), list(value.stride())),
            {"dtype": value.dtype, "device": value.device},
        )
    empty.meta = {"val": value}
    node.replace_input_with(source, empty)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part(_cut.Part):
    """The program of one pipeline stage in one direction (forward or backward).

    In ``gives``, the N-th output of the whole program is called ``result.N``.

    Attributes:
        stage: from 0.
        backward: whether it is the backward part.
    """

    stage: int
    backward: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cut:
    """A program cut into the parts of pipeline stages.

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
        """The programs of all parts that are not empty."""
        return tuple(part.program for part in self.parts if part.program is not None)

    @property
    def training(self) -> bool:
        """True if the pipeline has backward parts."""
        return len(self.parts) > self.stages


def result_name(index: int) -> str:
    """Return the name of an output of the whole program, by its index."""
    return f"result.{index}"


def cut(program: Program, stages: int, config: StepConfig) -> Cut:
    """Cut a ``forward`` or ``accumulate`` program at the stage marks of its operations.

    Args:
        program: as captured, with marks; see ``STAGE``.
        stages: number of stages, at least 2.
        config: the configuration of the capture.

    Raises:
        Uncuttable: says why the program has to run as one.
    """
    if config.trap_exceptions:
        raise Uncuttable("floating-point checks stop a step at its first bad operation")
    lowered = passes.run(program)
    try:
        assigned = assign(lowered, stages)
    except Uncuttable:
        lowered = drawn_first(lowered)
        assigned = assign(lowered, stages)
    names = [part_name(i, stages) for i in range(2 * stages if config.training else stages)]
    # No caller gets a result before all parts have run, so they may read it where it lies.
    shared = {index: result_name(index) for index in range(len(lowered.outputs))}
    parts = _cut.cut(lowered, assigned, names, shared=shared)
    _check_state(parts, names)
    return Cut(
        whole=program,
        stages=stages,
        parts=tuple(
            Part(**vars(_once(part)), stage=stage_of(index, stages), backward=index >= stages)
            for index, part in enumerate(parts)
        ),
    )


def _check_state(parts: tuple[_cut.Part, ...], names: list[str]) -> None:
    """Raise Uncuttable for parts that change state read by earlier parts, which run ahead."""
    readers: dict[tuple[str, str], str] = {}
    for part, name in zip(parts, names, strict=True):
        for slot in part.program.inputs if part.program else ():
            reader = readers.setdefault((slot.role, slot.name), name)
            if slot.mutated and reader != name:
                raise Uncuttable(f"{name} changes {slot.role} {slot.name!r}, which {reader} reads")


def _once(part: _cut.Part) -> _cut.Part:
    """Drop rematerialization marks from a part, as the whole program's have been applied."""
    for node in part.program.graph.graph.nodes if part.program else ():
        marks = marks_of(node)
        if SEGMENT in marks:
            node.meta["custom"] = {k: v for k, v in marks.items() if k != SEGMENT}
    return part
