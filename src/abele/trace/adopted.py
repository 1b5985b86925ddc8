"""Adoption of the real tensors that a traced function uses, as slots of its program.

    w.add_(g), with w a tensor of the user   ->   a slot w of the program, which is written

A function reaches its state through closures, globals and attributes. Each tensor that an operator
receives gets a stand-in without data; tensors in the same memory share one slot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from abele import _torch
from abele.errors import CaptureError
from abele.program import Role
from abele.program.aliasing import base
from abele.trace.module_state import plain
from abele.warn import user_line

_MOST_READ, _MOST_INDICES = 64, 2**20  # elements of numbers, and of masks and indices
#: Nodes with their function and operands.
Steps = list[tuple[torch.fx.Node, Callable[..., Any], Any, Any]]
_PERMUTE: Any = torch.ops.aten.permute.default
_AS_STRIDED: Any = torch.ops.aten.as_strided.default


@dataclasses.dataclass(frozen=True)
class Named:
    """A tensor with the name and role of the input slot that it becomes.

    Attributes:
        value: has its shape and dtype.
        requires_grad: of the traced tensor. Torch looks at it without gradients, too: a linear
            layer computes a transposed input by one GEMM if its weight requires a gradient.
    """

    name: str
    role: Role
    value: torch.Tensor
    requires_grad: bool = False


class SharedMemoryError(CaptureError):
    """Tensors overlap in memory; a slot of the whole memory has to hold them.

    Attributes:
        memory: see ``_torch.memory_of``.
    """

    def __init__(self, message: str, memory: int):
        super().__init__(message)
        self.memory = memory


@dataclasses.dataclass
class Reading:
    """A value that a trace has used, and on which its program depends.

    Attributes:
        slots: tensors that it was computed of, with their values, by input node.
        steps: what computes it; None if it depends on all values of these.
    """

    slots: dict[torch.fx.Node, tuple[torch.Tensor, torch.Tensor]]
    steps: Steps | None
    node: torch.fx.Node
    value: torch.Tensor

    def holds(self) -> bool:
        """Return whether the value is the same now."""
        if all(torch.equal(now, before) for now, before in self.slots.values()):
            return True
        if self.steps is None:
            return False
        values: dict[Any, Any] = {node: now.clone() for node, (now, _) in self.slots.items()}
        with torch.no_grad():
            for node, target, args, kwargs in self.steps:
                own = torch.fx.map_arg((args, kwargs), values.__getitem__)
                values[node] = target(*own[0], **own[1])
        if not torch.equal(values[self.node], self.value):
            return False
        self.slots = {node: (now, now.clone()) for node, (now, _) in self.slots.items()}
        return True


class Adopted:
    """The real tensors that a traced function has used, as slots.

    Args:
        describe: returns the name and role of a tensor.
        whole: memory whose slot is one-dimensional and has all elements; see
            ``SharedMemoryError``.
        code: of the traced function, whose lines nodes are to have.
        note: called with each tensor that is met, before the function can change it.

    Attributes:
        named: the slots, in order.
        fakes: their tensors without data.
        tensors: the user's tensors that were met first, one per slot.
        met: all of the user's tensors that were met, by ``id``.
        read: values that the trace has used.
    """

    def __init__(
        self,
        describe: Callable[[torch.Tensor], tuple[str, Role]],
        whole: frozenset[int] = frozenset(),
        code: CodeType | None = None,
        note: Callable[[torch.Tensor], Any] = id,
    ):
        self._describe, self._whole, self.code, self._note = describe, whole, code, note
        self.named: list[Named] = []
        self.fakes: list[torch.Tensor] = []
        self.tensors: list[torch.Tensor] = []
        self.met: dict[int, torch.Tensor] = {}
        self.read: list[Reading] = []
        self._slots: dict[int, _Memory] = {}
        self._looked_at: dict[torch.fx.Node, tuple[torch.Tensor, torch.Tensor]] = {}
        self._readings: list[Reading] = []

    def meet(self, value: torch.Tensor) -> None:
        """Note a real tensor that an operator receives."""
        self.met[id(value)] = value
        self._note(value)

    def stand_in(
        self, trace: _torch.Interception, mode: _torch.FakeTensorMode, value: torch.Tensor
    ) -> torch.Tensor:
        """Return the traced tensor of a real one: a new slot, or a view of one.

        Raises:
            SharedMemoryError: another tensor in its memory has a slot that lacks elements of it.
        """
        if value.is_conj() or value.is_neg():
            raise CaptureError(
                f"The function uses a conjugated or negated view that was made outside, at "
                f"{user_line()}. Make the view inside, or pass resolve_conj() of it."
            )
        memory, held = _torch.memory_of(value), plain(value)
        order = by_strides(held)
        if memory not in self._slots:
            dense = held.permute(order).is_contiguous() and memory not in self._whole
            laid = held.permute(order) if dense else _all_of(held)
            self._slots[memory] = self._new_slot(trace, mode, value, laid)
        slot = self._slots[memory]
        if _layout(slot.laid) == _layout(held):
            return slot.fake
        view = _view(trace, slot, held, order, memory)
        fake = _torch.view_of(slot.fake, mode, held.shape, held.stride(), view.offset, held)
        view.node.meta["val"] = fake
        trace.stand_for(fake, view.node)
        return fake

    def value_of(self, node: torch.fx.Node) -> torch.Tensor | None:
        """Return the value of a small slot, on which the program depends if it is used; else None.

        That of an input or a number is another one at each call.
        """
        for slot in self._slots.values():
            if slot.node is node and slot.role not in (Role.INPUT, Role.HYPER):
                numbers = slot.laid.is_floating_point() or slot.laid.is_complex()
                if slot.laid.numel() <= (_MOST_READ if numbers else _MOST_INDICES):
                    return self._looked_at.setdefault(node, (slot.laid, slot.laid.clone()))[1]
        return None

    def note_value(self, node: torch.fx.Node, steps: Steps | None, value: torch.Tensor) -> None:
        """Note how a value follows from the slots that were looked at."""
        if self._looked_at:
            self._readings.append(Reading(self._looked_at, steps, node, value))
        self._looked_at = {}

    def note_read(self, *, used: bool) -> None:
        """Note that the trace has used the values that were noted, or not."""
        self.read += self._readings if used else []
        self._readings, self._looked_at = [], {}

    def tensor_of(self, node: Any) -> torch.Tensor | None:
        """Return the user's tensor whose slot a node is."""
        slots = zip(self._slots.values(), self.tensors, strict=True)
        return next((tensor for slot, tensor in slots if slot.node is node), None)

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether a traced tensor is in the memory of a slot."""
        node = _torch.traced_node(tensor)
        memory = None if node is None else base(node)
        return any(slot.node is memory for slot in self._slots.values())

    def _new_slot(
        self,
        trace: _torch.Interception,
        mode: _torch.FakeTensorMode,
        value: torch.Tensor,
        laid: torch.Tensor,
    ) -> _Memory:
        name, role = self._describe(value)
        fake = _torch.laid_out(laid.shape, laid.stride(), laid.dtype, laid.device, mode)
        inputs = trace.graph.find_nodes(op="placeholder")
        with trace.graph.inserting_before(next(iter(trace.graph.nodes), None)):
            node = trace.graph.placeholder(f"slot{len(self.named)}")
        for last in inputs[-1:]:
            last.append(node)
        node.meta["val"] = fake
        trace.stand_for(fake, node)
        self.named.append(Named(name, role, laid))
        self.fakes.append(fake)
        self.tensors.append(value)
        return _Memory(fake, laid, node, role)


@dataclasses.dataclass(frozen=True)
class _Memory:
    """A slot: its tensor without data, the real one as the slot has it, its node and role."""

    fake: torch.Tensor
    laid: torch.Tensor
    node: torch.fx.Node
    role: Role


@dataclasses.dataclass(frozen=True)
class _View:
    """A view of a slot: its node, and its offset in the slot."""

    node: torch.fx.Node
    offset: int


def _view(
    trace: _torch.Interception,
    slot: _Memory,
    value: torch.Tensor,
    order: list[int],
    memory: int,
) -> _View:
    if _layout(slot.laid) == _layout(value.permute(order)):
        inverse = [order.index(axis) for axis in range(value.dim())]
        return _View(trace.graph.call_function(_PERMUTE, (slot.node, inverse)), 0)
    offset = int(value.storage_offset() - slot.laid.storage_offset())
    steps = zip(value.shape, value.stride(), strict=True)
    end = offset + 1 + sum((size - 1) * stride for size, stride in steps)
    if value.dtype != slot.laid.dtype or offset < 0 or end > slot.laid.numel():
        raise SharedMemoryError(
            f"The function uses two tensors that overlap in memory, the second one at "
            f"{user_line()}, and have different types. Use one of them and views of it.",
            memory,
        )
    layout = [*value.shape], [*value.stride()], offset
    return _View(trace.graph.call_function(_AS_STRIDED, (slot.node, *layout)), offset)


def by_strides(tensor: torch.Tensor) -> list[int]:
    """Return the dimensions in the order in which a slot of a tensor has them."""
    return sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))


def _layout(value: torch.Tensor) -> tuple[object, ...]:
    return value.dtype, value.shape, value.stride(), value.storage_offset()


def _all_of(value: torch.Tensor) -> torch.Tensor:
    """Return all elements in the memory of a tensor, as one dimension."""
    storage = value.untyped_storage()
    count = storage.nbytes() // value.element_size()
    return torch.empty(0, dtype=value.dtype, device=value.device).set_(storage, 0, (count,), (1,))
