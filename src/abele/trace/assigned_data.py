"""Assignments to ``tensor.data`` and calls of ``set_`` in a trace.

    w.data = new   ->   w stands for the node of new; at the end of the program copy_(w's slot, w)

Neither is an operator that a trace records: the tensor gets other memory, and whoever holds the
old memory keeps it. Nodes of a trace name memory, so the tensor gets another node. Autograd sees
what it sees in plain PyTorch: the assignment has no history, and a parameter stays a leaf.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from abele import _torch
from abele._torch import OpOverload
from abele.errors import CaptureError
from abele.program.aliasing import base
from abele.trace import scopes
from abele.warn import user_line

aten = torch.ops.aten

_Tensor: Any = torch.Tensor  # its attributes have no types
_SETS_DATA = _Tensor.data.__set__
#: The operators that give a tensor other memory.
SET = aten.set_


@dataclasses.dataclass(frozen=True)
class Kept:
    """A tensor of the trace whose last value the program writes into a slot.

    Attributes:
        name: of the slot, as users know it.
        tensor: in the trace.
        slot: the node of the slot.
        layout: shape and dtype of the slot.
    """

    name: str
    tensor: torch.Tensor
    slot: torch.fx.Node
    layout: tuple[torch.Size, torch.dtype]


class AssignedData(TorchFunctionMode):
    """While open, tensors of the trace whose data is assigned stand for the new value.

    Args:
        trace: the trace under way.
    """

    def __init__(self, trace: _torch.Interception):
        super().__init__()
        self._trace = trace
        self._kept: list[Kept] = []
        self._lines: dict[int, str] = {}

    def keep(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Declare the tensors of the trace whose last value is written into their slots."""
        for name, tensor in tensors:
            node = self._trace.node_of(tensor)
            assert node is not None, name
            self._kept.append(Kept(name, tensor, node, (tensor.shape, tensor.dtype)))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func == _SETS_DATA and isinstance(args[1], torch.Tensor):
            tensor, value = args
            if not _is_same_view(tensor, value):
                self._assign(tensor, value.detach(), func)
            return None
        return func(*args, **(kwargs or {}))

    def set(
        self, function: OpOverload, args: Any, detached: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Trace ``set_``.

        Args:
            function: the overload.
            args: its arguments.
            detached: traces a view of a whole tensor.

        Raises:
            CaptureError: its source is no tensor.
        """
        if function is not SET.source_Tensor:
            raise CaptureError(
                f"forward calls set_ with a storage or without a source, at {user_line()}. A "
                "program knows tensors, not storages. Call set_ with a tensor, such as a view of "
                "one, or write its values with copy_()."
            )
        self._assign(args[0], detached(args[1]), function)
        return args[0]

    def _assign(
        self, tensor: torch.Tensor, value: torch.Tensor, put: Callable[..., object]
    ) -> None:
        """Let a tensor of the trace represent a value, whose memory ``put`` assigns."""
        line = user_line()
        node = self._trace.node_of(value)
        if not isinstance(tensor, _torch.FakeTensor) or self._trace.node_of(tensor) is None:
            raise CaptureError(
                f"forward assigns to the data of a tensor that it did not compute, at {line}. It "
                "is neither a parameter nor a buffer nor an input, so that the program has it as a "
                "constant. Use register_buffer in __init__, or write into it with copy_()."
            )
        if node is None:
            raise CaptureError(
                f"forward assigns data that are no value of the program, at {line}. Compute them "
                "from parameters, buffers and inputs, or pass them as an argument."
            )
        if scopes.are_moved():
            raise CaptureError(
                "forward assigns to the data of a tensor within a loop or branch of the program, "
                f"at {line}. Return the new value from the body, and assign it outside."
            )
        with (
            torch.no_grad(),
            _torch.outside_the_trace(),
            _torch.without_torch_function_modes(),
        ):
            put(tensor, value)
        self._trace.stand_for(tensor, node)
        self._lines[id(tensor)] = line

    def write_back(self) -> None:
        """Trace what writes the last values of assigned tensors into their slots.

        Raises:
            CaptureError: a value does not fit, or lies in memory that something else keeps.
        """
        assigned = [each for each in self._kept if id(each.tensor) in self._lines]
        with torch.no_grad():
            values = [self._value(each) for each in assigned]
            for each, value in zip(assigned, values, strict=True):
                _torch.tracked_fake(each.slot).copy_(value)

    def _value(self, kept: Kept) -> torch.Tensor:
        tensor, line = kept.tensor.detach(), self._lines[id(kept.tensor)]
        if (tensor.shape, tensor.dtype) != kept.layout:
            shape, dtype = kept.layout
            raise CaptureError(
                f"forward assigns data of shape {list(tensor.shape)} and {tensor.dtype} to "
                f"{kept.name}, at {line}, which has shape {list(shape)} and {dtype}. A program "
                "keeps the shapes and dtypes of its state."
            )
        memory = self._memory(tensor)
        others = [each.name for each in self._kept if each is not kept and self._share(kept, each)]
        if memory.op == "get_attr":
            others.append("a tensor that is neither a parameter nor a buffer")
        if others:
            raise CaptureError(
                f"forward assigns data to {kept.name}, at {line}, that lie in the memory of "
                f"{others[0]}: writes into one would change the other. Assign a clone(), or use "
                "copy_()."
            )
        # A slot's old value is read before any slot is written: parameters may change places.
        return tensor.clone() if memory.op == "placeholder" else tensor

    def _memory(self, tensor: torch.Tensor) -> torch.fx.Node:
        node = self._trace.node_of(tensor)
        assert node is not None
        return base(node)

    def _share(self, one: Kept, other: Kept) -> bool:
        """Return whether two tensors overlap in memory at the end of forward."""
        if self._memory(one.tensor) is not self._memory(other.tensor):
            return False
        with _torch.outside_the_trace(), _torch.without_torch_function_modes():
            return _range(one.tensor).stop > _range(other.tensor).start and (
                _range(other.tensor).stop > _range(one.tensor).start
            )


def _is_same_view(tensor: torch.Tensor, value: torch.Tensor) -> bool:
    """Return whether a tensor has the memory and layout of another one already."""
    with _torch.outside_the_trace(), _torch.without_torch_function_modes():
        fakes = isinstance(tensor, _torch.FakeTensor) and isinstance(value, _torch.FakeTensor)
        return fakes and all(
            layout(tensor) == layout(value) for layout in (_torch.memory_of, _range, _layout)
        )


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.shape, tensor.stride()


def _range(tensor: torch.Tensor) -> range:
    """Return the elements of its memory that a tensor spans."""
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    begin, length = tensor.storage_offset(), 1 + sum((side - 1) * step for side, step in sides)
    return range(begin, begin + (length if tensor.numel() else 0))
