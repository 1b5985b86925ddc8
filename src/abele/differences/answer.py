"""What comparing two ways to run a program gives."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from abele.differences.spread import Spread
from abele.program import is_getitem, node_argument
from abele.program.printing import node_phase, type_text
from abele.report.facts import line_of
from abele.report.operators import module_of

EQUAL, DIFFERENT = 0, 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """A result of the program, or state that it writes.

    Attributes:
        name: of its slot, with its role.
        errors: of both ways against float64, norms relative to float64's.
        parted: they differ by more than rounding.
        only_rounding: even float32's result is nothing but rounding, so its error means nothing.
    """

    name: str
    errors: tuple[float, float]
    parted: bool
    only_rounding: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Worst:
    """An operation, as it is shown.

    Attributes:
        node: its name in the program.
        operator: ``aten.mm.default``.
        type: of its result, with the shape.
        phase: ``forward``, ``backward`` or ``update``.
        module: path of the user's module, empty if unknown.
        line: the user's line, ``FILE:LINE in FUNCTION``; empty if unknown.
        errors: of both ways, as for ``Result``.
        alone: of both, where the operation is given float64's operands; None where it cannot be
            seen by itself.
    """

    node: str
    operator: str
    type: str
    phase: str
    module: str
    line: str
    errors: tuple[float, float]
    alone: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Blamed:
    """The first operation at which the two part.

    Attributes:
        operation: which one.
        by: what makes the difference: a pass, the code of a lowering, or a type.
        why: what is known of it, in words.
        elements: how many elements differ, of how many.
    """

    operation: Worst
    by: str
    why: str
    elements: tuple[int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """Two ways to run a program.

    Attributes:
        names: of the two.
        results: of the program.
        blamed: where they part; None if they do not, or if only the whole program shows it.
        worst: operations with the largest errors.
        notes: what else to know, in words.
    """

    names: tuple[str, str]
    results: tuple[Result, ...]
    blamed: Blamed | None
    worst: tuple[Worst, ...]
    notes: tuple[str, ...] = ()

    @property
    def parted(self) -> bool:
        """Whether they differ by more than rounding."""
        return self.blamed is not None or any(each.parted for each in self.results)

    @property
    def status(self) -> int:
        """Exit status of a command: 0 equal but for rounding, 1 different."""
        return DIFFERENT if self.parted else EQUAL

    def data(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        from abele.differences.text import text

        return text(self)


def result(name: str, spread: Spread, tolerance: float) -> Result:
    """A result as it is shown."""
    return Result(
        name=name,
        errors=(spread.relative(spread.first), spread.relative(spread.second)),
        parted=spread.parted(tolerance),
        only_rounding=spread.only_rounding,
    )


def operation(
    node: torch.fx.Node,
    errors: tuple[float, float],
    alone: tuple[float, float] | None = None,
) -> Worst:
    """A node as it is shown."""
    source = node_argument(node, 0) if is_getitem(node) else node
    return Worst(
        node=node.name,
        operator=str(source.target),
        type=type_text(node.meta.get("val")),
        phase=node_phase(source) or "",
        module=module_of(source),
        line=line_of(source),
        errors=errors,
        alone=alone,
    )
