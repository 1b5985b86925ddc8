"""Operations on buffers, the intermediate representation between graph and generated code."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from abele.program import Program
from abele.targets.translation.places import Place

#: Turns the texts of the operands, already of the right type, into an expression of the result.
Expression = Callable[..., str]


@dataclasses.dataclass(eq=False)
class Operation:
    """A step of a translated program, which reads and writes buffers.

    Attributes:
        reads: the tensors it reads.
        writes: the tensors it writes.
        position: index in program order.
        part_of: the graph node that it computes, fully or in part.
        also: other graph nodes that it computes.
    """

    reads: list[Place]
    writes: list[Place]
    position: int = dataclasses.field(default=-1, kw_only=True)
    part_of: torch.fx.Node | None = dataclasses.field(default=None, kw_only=True)
    also: tuple[torch.fx.Node, ...] = dataclasses.field(default=(), kw_only=True)

    @property
    def nodes(self) -> list[torch.fx.Node]:
        """All graph nodes that the operation computes, fully or in part."""
        return [] if self.part_of is None else [self.part_of, *self.also]

    def resolve(self) -> None:
        """Replace each view by a view of its outermost buffer."""
        self.move(Place.resolved)

    def move(self, change: Callable[[Place], Place]) -> None:
        """Replace the tensors of an operation by other views.

        Args:
            change: returns the new view of a view.
        """
        self.reads = [change(each) for each in self.reads]
        self.writes = [change(each) for each in self.writes]


@dataclasses.dataclass(eq=False)
class Pointwise(Operation):
    """An elementwise expression, evaluated for each element of a result.

    Attributes:
        operands: numbers as C++ text, or tensors.
        types: dtype to which each operand is converted.
        expression: returns C++ of the result from C++ of the operands.
    """

    operands: list[str | Place]
    types: list[torch.dtype]
    expression: Expression

    def move(self, change: Callable[[Place], Place]) -> None:
        """Replace the tensors and operands of an elementwise operation by other views."""
        super().move(change)
        self.operands = [
            change(each) if isinstance(each, Place) else each for each in self.operands
        ]

    @property
    def result(self) -> Place:
        """The view that the elementwise operation writes."""
        return self.writes[0]


@dataclasses.dataclass(eq=False)
class Call(Operation):
    """A call of a C++ template or library function.

    Attributes:
        text: C++ of the call; ``{0}``, ``{1}`` ... stand for pointers to the first elements of the
            tensors read and then of those written, ``threads`` for the thread count.
    """

    text: str

    def pointers(self) -> list[Place]:
        """Return the tensors that the numbered placeholders of the call's text refer to."""
        return [*self.reads, *self.writes]


@dataclasses.dataclass(eq=False)
class StridedCall(Call):
    """A call that receives strides, and whose text changes with its tensors.

    Attributes:
        form: returns the call's text for tensors that it reads and writes.
    """

    form: Callable[[Sequence[Place], Sequence[Place]], str]

    def move(self, change: Callable[[Place], Place]) -> None:
        """Replace the tensors and regenerate the call's text, which depends on strides."""
        super().move(change)
        self.text = self.form(self.reads, self.writes)


@dataclasses.dataclass(eq=False)
class ChannelCall(Call):
    """A call that computes each channel of an NCHW tensor independently.

    Attributes:
        shape: NCHW, with any number of spatial dimensions. Every tensor has this shape and is
            contiguous, or has one element for each channel.
        part: the call for channels from ``begin`` to ``end``, on the calling thread.
        apart: ``part`` contains ``{apart}``, the batch stride of the first tensor.
    """

    shape: tuple[int, ...]
    part: str
    apart: bool = False


@dataclasses.dataclass(eq=False)
class Foreign(Operation):
    """An ATen fallback: an operator that torch computes.

    Attributes:
        target: the function to call, usually the node's target.
        arguments: the node's, with tensors as views.
        options: the node's keyword arguments, likewise.
        results: views of torch's results; None for results that are not tensors.
        several: torch returns a list or tuple.
    """

    target: Callable[..., Any]
    arguments: tuple[object, ...]
    options: dict[str, object]
    results: list[Place | None]
    several: bool

    def move(self, change: Callable[[Place], Place]) -> None:
        """Replace the tensors and arguments of an ATen fallback by other views."""
        super().move(change)
        self.arguments, self.options = places_changed((self.arguments, self.options), change)


def places_changed(value: Any, change: Callable[[Place], Any]) -> Any:
    """Apply ``change`` to every view in nested arguments."""
    if isinstance(value, Place):
        return change(value)
    if isinstance(value, tuple):
        return tuple(places_changed(each, change) for each in cast("tuple[Any, ...]", value))
    if isinstance(value, list):
        return [places_changed(each, change) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {name: places_changed(each, change) for name, each in items}
    return value


def constants_of(program: Program, names: Sequence[str]) -> list[torch.Tensor]:
    """Return the constant tensors of a program's graph by attribute name."""
    return [operator.attrgetter(name)(program.graph) for name in names]
