"""Cuts a program into the forward and the backward of each stage of a pipeline."""

from __future__ import annotations

import dataclasses

from abele import passes
from abele.passes.recomputation import SEGMENT
from abele.pipeline.assignment import Uncuttable, assign, part_name, stage_of
from abele.pipeline.random_draws import drawn_first
from abele.program import Program, marks_of
from abele.program import cut as _cut
from abele.step.config import StepConfig

__all__ = ["Cut", "Part", "Uncuttable", "cut", "result_name"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part(_cut.Part):
    """What one stage computes of a micro-batch in one direction.

    Its ``gives`` call the N-th output of the whole program ``result.N``.

    Attributes:
        stage: from 0.
        backward: or forward.
    """

    stage: int
    backward: bool


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
    """Name the whole program's output of this number."""
    return f"result.{index}"


def cut(program: Program, stages: int, config: StepConfig) -> Cut:
    """Cut ``forward`` or ``accumulate`` by the marks of its operations.

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
    """Refuse parts that change what earlier ones read: the next micro-batch is there already.

    Raises:
        Uncuttable: names the state and both parts.
    """
    readers: dict[tuple[str, str], str] = {}
    for part, name in zip(parts, names, strict=True):
        for slot in part.program.inputs if part.program else ():
            reader = readers.setdefault((slot.role, slot.name), name)
            if slot.mutated and reader != name:
                raise Uncuttable(f"{name} changes {slot.role} {slot.name!r}, which {reader} reads")


def _once(part: _cut.Part) -> _cut.Part:
    """Drop marks of what is to be computed again: in the whole program that has been done."""
    for node in part.program.graph.graph.nodes if part.program else ():
        marks = marks_of(node)
        if SEGMENT in marks:
            node.meta["custom"] = {k: v for k, v in marks.items() if k != SEGMENT}
    return part
