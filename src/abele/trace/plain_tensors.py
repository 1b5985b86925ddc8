"""Plain tensors in a trace: neither parameters, buffers nor inputs of the program.

    self.mask, a tensor of a closure   ->   a constant of the program, with a stand-in without data

A stand-in takes the place of its tensor before anything is computed from it, so that views of it
and writes into it are traced like any others. Every call of the program starts from the value that
the tensor had; what forward wrote into it is written into the tensor once, when the trace is over,
if it does not depend on an input or on state.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from abele import _torch
from abele._torch import OpOverload
from abele.containers import is_sequence
from abele.contexts import held
from abele.errors import CaptureError
from abele.program import node_argument, writes
from abele.program.aliasing import INSTEAD, SHARES, base, other_kind
from abele.trace.adopted import Adopted
from abele.trace.module_state import plain
from abele.warn import user_line, warn_user

aten = torch.ops.aten

_active: contextvars.ContextVar[PlainTensors | None] = contextvars.ContextVar(
    "plain tensors", default=None
)


@dataclasses.dataclass
class PlainMemory:
    """The memory of plain tensors that share it, as a constant of a trace.

    Attributes:
        node: the first constant in it.
        constant: the value of that node, in the memory itself.
        tensors: the user's objects in it that were met.
        written: whether forward changes it.
    """

    node: torch.fx.Node
    constant: torch.Tensor
    tensors: list[torch.Tensor] = dataclasses.field(default_factory=list[torch.Tensor])
    written: bool = False

    def leave(self, value: torch.Tensor | None) -> None:
        """Write the values that a traced forward computed to a plain tensor's memory, if known.

        The tensors lose the autograd history of the trace.
        """
        for tensor in self.tensors:
            if tensor.grad_fn is not None and not tensor._is_view():
                tensor.detach_()
        if value is not None:
            self.constant.untyped_storage().copy_(value.untyped_storage())


class PlainTensors:
    """The plain tensors of one trace and their stand-ins without data.

    Args:
        trace: the trace under way.
        mode: the fake tensor mode of the stand-ins.
        state: memory of parameters and buffers, with their names.
        adopted: receives the tensors as slots of the program, instead of constants.
    """

    def __init__(
        self,
        trace: _torch.Interception,
        mode: _torch.FakeTensorMode,
        state: Mapping[int, str],
        adopted: Adopted | None = None,
    ):
        self._trace, self._mode, self._state = trace, mode, state
        self._adopted = adopted
        self._memories: dict[int, PlainMemory] = {}
        self._by_node: dict[torch.fx.Node, PlainMemory] = {}
        self._stand_ins: dict[Any, torch.Tensor] = {}

    def open(self) -> contextlib.AbstractContextManager[None]:
        """Have ``written_stand_in`` query these plain tensors in a ``with`` block."""
        return held(_active, self)

    def exchanged(self, value: Any, originals: dict[int, torch.Tensor]) -> Any:
        """Replace each plain tensor in an operator's argument by its stand-in.

        Args:
            value: an argument of an operator, or a structure of them.
            originals: receives each plain tensor under the ``id`` of its stand-in.
        """
        if isinstance(value, torch.Tensor):
            if isinstance(value, _torch.FakeTensor):
                return value
            stand_in = self.stand_in(value)
            originals[id(stand_in)] = value
            return stand_in
        if is_sequence(value):
            return type(value)([self.exchanged(each, originals) for each in value])
        return value

    def check_strided(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Refuse ``as_strided`` beyond the elements of the traced tensor.

        A constant of a program has the tensor's own elements only, and a tensor without data does
        not notice.

        Raises:
            CaptureError: the view reads other elements, or a plain tensor is a part of its memory.
        """
        value, *others = args
        names = ("size", "stride", "storage_offset")
        given = {**dict(zip(names, others, strict=False)), **kwargs}
        with _torch.outside_the_trace(), _torch.without_torch_function_modes():
            count = value.untyped_storage().nbytes() // value.element_size()
            if not isinstance(value, _torch.FakeTensor) and count != value.numel():
                count = 0
            offset = given.get("storage_offset")
            offset = int(value.storage_offset()) if offset is None else offset
            _refuse_beyond(count, given["size"], given["stride"], offset)

    def stand_in(self, value: torch.Tensor) -> torch.Tensor:
        """Return a plain tensor's stand-in in the trace, the same for equal memory and layout."""
        with _torch.outside_the_trace(), _torch.without_torch_function_modes():
            kind = other_kind(value)
            if kind is not None:
                raise CaptureError(
                    "forward uses a tensor that is neither a parameter nor a buffer and is "
                    f"{kind}; a program keeps dense tensors. {INSTEAD}"
                )
            if self._adopted is not None:
                self._adopted.meet(value)
            storage = _torch.memory_of(value)
            layout = tuple(value.shape), value.stride(), value.storage_offset()
            key = storage, value.dtype, layout, value.is_conj(), value.is_neg()
            if storage in self._state:
                self._refuse_state(storage)
            if key not in self._stand_ins:
                if self._adopted is not None:
                    self._stand_ins[key] = self._adopted.stand_in(self._trace, self._mode, value)
                    return self._stand_ins[key]
                self._stand_ins[key] = self._new(storage, plain(value))
            if self._adopted is None:
                self._memories[storage].tensors.append(value)
        return self._stand_ins[key]

    def lifted(self, value: torch.Tensor) -> torch.Tensor:
        """Return a traced tensor that starts as a copy of a tensor without other users."""
        with _torch.outside_the_trace(), _torch.without_torch_function_modes():
            constant, fake = self._constant(value), _torch.laid_out_like(value, self._mode)
        constant.node.meta["val"] = fake
        copied = self._trace.tracer.create_proxy(
            "call_function", aten.lift_fresh_copy.default, (constant,), {}
        )
        return _torch.track_tensor_tree(fake, copied, constant=None, tracer=self._trace.tracer)

    def note_writes(self, function: OpOverload, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Note which plain tensors an operator is about to write; warn once for each."""
        if not self._memories or not _torch.schema_of(function).is_mutable:
            return
        for index, argument in enumerate(_torch.schema_of(function).arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            for tensor in value if is_sequence(value) else [value]:
                self._note_write(tensor)

    def refuse_new_shape(self, function: OpOverload, tensor: torch.Tensor) -> None:
        """Refuse an operator that reshapes an input, state or a plain tensor in place."""
        node = self._trace.node_of(tensor)
        while node is not None and writes(node):
            node = node_argument(node, 0)
        if node is not None and node.op != "call_function":
            name = _torch.operator_name(function).split(".")[0].removeprefix("aten::")
            raise CaptureError(
                f"forward changes the shape of a tensor that it was given, with {name} at "
                f"{user_line()}. The caller's tensor would keep its shape. Use the function that "
                f"returns a view, {name.removesuffix('_')}."
            )

    def _note_write(self, tensor: Any) -> None:
        node = self._trace.node_of(tensor) if isinstance(tensor, torch.Tensor) else None
        memory = None if node is None else self._by_node.get(base(node))
        if memory is None or memory.written:
            return
        memory.written = True
        warn_user(
            "forward changes a tensor in place that is neither a parameter nor a buffer nor an "
            "input. It is a constant of the program: every call starts from the value that it has "
            "now, and changes of later calls are not seen outside. Use register_buffer for a "
            "tensor that is to keep its value from call to call.",
            UserWarning,
        )

    def written_stand_in(self, value: torch.Tensor) -> torch.Tensor | None:
        """Return the stand-in of a plain tensor that forward has written, or None."""
        with _torch.without_torch_function_modes():
            dense = not isinstance(value, _torch.FakeTensor) and other_kind(value) is None
            memory = self._memories.get(_torch.memory_of(value)) if dense else None
        return self.stand_in(value) if memory is not None and memory.written else None

    def written(self) -> list[PlainMemory]:
        """Return the memory of plain tensors that forward has written."""
        return [memory for memory in self._memories.values() if memory.written]

    def _new(self, storage: int, value: torch.Tensor) -> torch.Tensor:
        proxy = self._constant(value)
        memory = self._memories.setdefault(storage, PlainMemory(proxy.node, value))
        if proxy.node is not memory.node:
            proxy.node.meta[SHARES] = memory.node
        self._by_node[memory.node] = memory
        if value.is_conj() or value.is_neg() or value.is_complex():
            fake: Any = self._mode.from_tensor(value)
        else:
            fake = _torch.laid_out_like(value, self._mode)
        _torch.track_tensor_tree(fake, proxy, constant=None, tracer=self._trace.tracer)
        return fake

    def _constant(self, value: torch.Tensor) -> torch.fx.Proxy:
        tracer = self._trace.tracer
        name = tracer.get_fresh_qualname("_tensor_constant")
        setattr(tracer.root, name, value)
        return tracer.create_proxy("get_attr", name, (), {})

    def _refuse_state(self, storage: int) -> None:
        name = self._state[storage]
        raise CaptureError(
            f"forward reaches the memory of {name} through another tensor, at {user_line()}. The "
            f"program updates {name} on the device, so that the other tensor would keep its old "
            f"value. Use self.{name} in forward."
        )


def _refuse_beyond(count: int, size: Sequence[int], stride: Sequence[int], offset: int) -> None:
    """Refuse a view of more than ``count`` elements, which fake tensors do not notice."""
    end = offset + 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if 0 not in size and end > count:
        raise CaptureError(
            f"forward reads {end} elements of memory by as_strided at {user_line()}, and a program "
            "has only those of the tensor itself. Call it on a tensor that has all of them, "
            "each once."
        )


def written_stand_in(value: torch.Tensor) -> torch.Tensor | None:
    """Return the stand-in of a plain tensor that the active forward has written, or None."""
    active = _active.get()
    return None if active is None else active.written_stand_in(value)


def stand_in(value: torch.Tensor) -> torch.Tensor:
    """Return the traced tensor of a real one in the active trace; traced ones as they are."""
    active = _active.get()
    assert active is not None, "no trace under way"
    return value if isinstance(value, _torch.FakeTensor) else active.stand_in(value)
