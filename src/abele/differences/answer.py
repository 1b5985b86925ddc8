"""The result of comparing two settings with float64, and its text."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from abele.program import is_getitem, node_argument
from abele.program.core import node_phase, type_text
from abele.report import words
from abele.report.facts import line_of
from abele.report.operators import module_of
from abele.runtime.agreement import flat, norm_of

EQUAL, DIFFERENT = 0, 1
_RESULTS = 12  # rows of the text
_MARGIN = 10.0
_NOTHING_ELSE = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spread:
    """Norms of two results' errors against float64, for one operation.

    Attributes:
        scale: norm of float64's result.
        first: norm of the first result's error.
        second: norm of the second result's error.
        apart: norm of the difference between the results; infinite if they are not finite in the
            same elements.
        seen: norm of the rounding error of the interpreter in float32.
        elements: number of elements that differ, and of all elements.
    """

    scale: float
    first: float
    second: float
    apart: float
    seen: float
    elements: tuple[int, int]

    def parted(self, tolerance: float) -> bool:
        """Return whether two results differ by more than rounding.

        Ten times the rounding error of float32 is allowed in addition to ``tolerance``, which is
        relative to the tensor's norm. A tensor that consists of rounding errors in float32, such as
        a gradient that is zero in exact arithmetic, never counts.
        """
        if math.isinf(self.apart):
            return True
        return not self.only_rounding and self.apart > tolerance * self.scale + _MARGIN * self.seen

    @property
    def only_rounding(self) -> bool:
        """True if the float32 result consists of rounding errors only."""
        return self.seen > _NOTHING_ELSE * self.scale

    def relative(self, norm: float) -> float:
        """Return the ratio of a norm to the norm of the float64 result."""
        return norm / self.scale if self.scale else (0.0 if not norm else math.inf)


def spread(
    truth: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    plain: torch.Tensor | None = None,
) -> Spread:
    """Compare two results of an operation with the float64 result and with each other.

    Args:
        truth: the result in float64.
        first: the first setting's result.
        second: the second setting's result.
        plain: the interpreter's result in float32; by default ``first``.
    """
    seen = _error(flat(truth), flat(first if plain is None else plain))
    wanted, one, two = flat(truth), flat(first), flat(second)
    differ = int(((one != two) & ~(one.isnan() & two.isnan())).sum())
    finite = wanted.isfinite() & one.isfinite() & two.isfinite()
    alike = bool((one.isfinite() == two.isfinite()).all())
    return Spread(
        scale=norm_of(wanted[wanted.isfinite()]),
        first=_error(wanted, one),
        second=_error(wanted, two),
        apart=norm_of((one - two)[finite]) if alike else math.inf,
        seen=seen,
        elements=(differ, finite.numel()),
    )


def error(truth: torch.Tensor, value: torch.Tensor) -> float:
    """Return the relative norm of an error; infinite if only one result is finite."""
    wanted = flat(truth)
    far, scale = _error(wanted, flat(value)), norm_of(wanted[wanted.isfinite()])
    return far / scale if scale else (0.0 if not far else math.inf)


def _error(wanted: torch.Tensor, value: torch.Tensor) -> float:
    """Return the norm of an error; infinite if different elements are not finite."""
    finite = wanted.isfinite()
    if not bool((finite == value.isfinite()).all()):
        return math.inf
    return norm_of((value - wanted)[finite])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """Errors of a program's output, or of state that it writes, in two settings.

    Attributes:
        name: role and name of the slot.
        errors: relative errors of both settings against float64.
        parted: whether the settings differ by more than rounding.
        only_rounding: whether the float32 result consists of rounding errors only.
    """

    name: str
    errors: tuple[float, float]
    parted: bool
    only_rounding: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Worst:
    """An operation of a program, with its errors in two settings.

    Attributes:
        node: name of the node.
        operator: ``aten.mm.default``.
        type: dtype and shape of the result.
        phase: ``forward``, ``backward`` or ``update``.
        module: path of the user's module, empty if unknown.
        line: the user's line, ``FILE:LINE in FUNCTION``; empty if unknown.
        errors: relative errors of both settings against float64.
        alone: errors of both settings from float64's operands; None if not computed.
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
    """The first operation at which two settings diverge.

    Attributes:
        by: cause of the difference: a pass, the code of a lowering, or a type.
        why: explanation in a sentence.
        elements: number of elements that differ, and of all elements.
    """

    operation: Worst
    by: str
    why: str
    elements: tuple[int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of comparing two settings of a program.

    Attributes:
        results: errors of the program's results.
        blamed: first operation that diverges; None if none does, or only the whole program.
        worst: operations with the largest errors.
        notes: further sentences.
    """

    names: tuple[str, str]
    results: tuple[Result, ...]
    blamed: Blamed | None
    worst: tuple[Worst, ...]
    notes: tuple[str, ...] = ()

    @property
    def parted(self) -> bool:
        """True if the two settings differ by more than rounding."""
        return self.blamed is not None or any(each.parted for each in self.results)

    @property
    def status(self) -> int:
        """Exit status of ``abele diff``: 0 if equal except for rounding, else 1."""
        return DIFFERENT if self.parted else EQUAL

    def data(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return _text(self)


def result(name: str, spread: Spread, tolerance: float) -> Result:
    """Return the errors of a program's output from their norms."""
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
    """Return the operation of a graph node with its errors in two settings."""
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


def _text(answer: Answer) -> str:
    parts = [_sentence(answer), _results(answer)]
    if answer.worst:
        parts += ["", "Operations by themselves, given float64's operands:", _worst(answer)]
    parts += [f"Note: {note}." for note in answer.notes]
    return "\n".join(parts)


def _sentence(answer: Answer) -> str:
    first, second = answer.names
    if not answer.parted:
        return f"{first} and {second} are equal but for rounding."
    if answer.blamed is None:
        return f"{first} and {second} part."
    return "\n".join(
        [f"{first} and {second} part at {place(answer.blamed.operation)}", _facts(answer)]
    )


def place(made: Worst) -> str:
    """Format an operation as operator, type, phase, module and line."""
    where = [made.phase and f"in {made.phase}", made.module and f"module {made.module}", made.line]
    return ", ".join([f"{made.operator} ({made.node}) {made.type}", *filter(None, where)])


def _facts(answer: Answer) -> str:
    assert answer.blamed is not None
    blamed, (first, second) = answer.blamed, answer.names
    one, two = blamed.operation.errors
    differ, count = blamed.elements
    return (
        f"  because of: {blamed.by}. {blamed.why}\n"
        f"  error against float64: {first} {_format_error(one)}, {second} {_format_error(two)}; "
        f"{differ} of {count} elements differ"
    )


def _results(answer: Answer) -> str:
    """Format a table of the program outputs with the largest errors."""
    rows: list[tuple[str, ...]] = [("result", *answer.names, "")]
    ranked = sorted(answer.results, key=_rank)
    for each in ranked[:_RESULTS]:
        rows.append((each.name, *map(_format_error, each.errors), _remark(each)))
    lines = words.aligned(rows)
    if len(ranked) > _RESULTS:
        lines.append(f"... and {len(ranked) - _RESULTS} with smaller errors")
    return "\n".join(lines)


def _rank(each: Result) -> tuple[bool, bool, float]:
    return not each.parted, each.only_rounding, -max(each.errors)


def _remark(each: Result) -> str:
    if each.parted:
        return "parts"
    return "only rounding" if each.only_rounding else ""


def _worst(answer: Answer) -> str:
    rows: list[tuple[str, ...]] = [("operation", "type", *answer.names, "line")]
    rows += [_row(each) for each in answer.worst]
    return "\n".join(words.aligned(rows))


def _row(made: Worst) -> tuple[str, ...]:
    alone = made.alone or made.errors
    return (made.operator, made.type, *map(_format_error, alone), made.line or made.module)


def _format_error(value: float) -> str:
    if math.isinf(value):
        return "not finite"
    return f"{value:.1e}" if value else "0"
