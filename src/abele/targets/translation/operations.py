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
        position: in the order of the program, given by whoever puts it there.
        part_of: the node of the program that it computes, or a part of it; given likewise.
        also: other nodes that it computes beside that one.
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
            change: gives the new place of each.
        """
        self.reads = [change(each) for each in self.reads]
        self.writes = [change(each) for each in self.writes]


@dataclasses.dataclass(eq=False)
class Pointwise(Operation):
    """An elementwise expression over a shape.

    Attributes:
        operands: a number as text, or the tensor whose element is read.
        types: to which each operand is converted.
        expression: the result, of the operands' texts.
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
        text: the call; ``{0}``, ``{1}`` ... stand for pointers to the first elements of the
            tensors read and then of those written, ``threads`` for how many there are.
    """

    text: str

    def pointers(self) -> list[Place]:
        """Return the tensors that the numbered placeholders of the call's text refer to."""
        return [*self.reads, *self.writes]


@dataclasses.dataclass(eq=False)
class StridedCall(Call):
    """A call that receives strides, so that some of its tensors may have other layouts.

    Attributes:
        form: the text, of the tensors that it reads and those that it writes.
        free: which of these, by their numbers in the text.
        accepts: whether one of them may lie at a place.
    """

    form: Callable[[Sequence[Place], Sequence[Place]], str]
    free: frozenset[int]
    accepts: Callable[[Place], bool]

    def move(self, change: Callable[[Place], Place]) -> None:
        """Replace the tensors and regenerate the call's text, which depends on strides."""
        super().move(change)
        self.text = self.form(self.reads, self.writes)


@dataclasses.dataclass(eq=False)
class ChannelCall(Call):
    """A call that computes each channel of an NCHW tensor independently.

    Attributes:
        shape: of the images: samples, channels, pixels in all further dimensions. Every tensor is
            such images, in the order of memory, or has one element for each channel.
        part: the call for channels from ``begin`` to ``end``, by the thread that calls.
        apart: in ``part``, samples of the first tensor are ``{apart}`` elements apart.
    """

    shape: tuple[int, ...]
    part: str
    apart: bool = False


@dataclasses.dataclass(eq=False)
class Foreign(Operation):
    """An ATen fallback: an operator that torch computes.

    Attributes:
        target: what is called, usually as the node has it.
        arguments: as the node's, with tensors as places.
        options: the same of keyword arguments.
        results: where torch's results are used; None for those that are not tensors.
        several: torch returns a list or tuple of them.
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
