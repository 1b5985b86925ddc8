"""Arguments of a function's call: inputs of a program, and values that it depends on."""

from __future__ import annotations

import collections
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast

import torch

from abele import _torch
from abele.errors import CaptureError
from abele.functions import batches
from abele.functions.arrays import GivenArray, as_tensor
from abele.functions.frames import PLAIN
from abele.functions.state import KINDS, same
from abele.functions.varying import Unread
from abele.program import Role
from abele.program.aliasing import other_kind
from abele.trace.adopted import Named


class Arguments:
    """The arguments of a call, and the calls that have the same program.

    Args:
        args: by position.
        kwargs: by name.
        unread: what stands for leaves of both that the program is not to depend on, by index.
        expands: objects that hold tensors are taken apart.

    Attributes:
        named: the inputs of the program, contiguous.
        present: the leaves of the call that was accepted last.
        tensors: those among them, in the user's memory.
        given: the leaves with which the call is traced.
        others: the arguments that are no tensors.
        objects: those that are taken apart, of the call that was accepted last.
        copies: of these, with which the call is traced.
        places: the order of those with which the call is traced, by ``id``.
        arrays: the NumPy arrays among the leaves, their types by index.
        laid: by ``id`` of traced tensors without the gaps that these have, tensors with them.
    """

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        unread: Mapping[Any, Unread] | None = None,
        *,
        expands: bool = False,
    ):
        self._expands, self.copies = expands, list[Any]()
        self.objects, self._errors = list[Any](), list[CaptureError]()
        self._latest: tuple[Any, Any] = (), {}
        self.places, self.laid = dict[int, int](), dict[int, tuple[torch.Tensor, torch.Tensor]]()
        leaves, self._structure = self._flat(args, kwargs)
        self._unread = {i: each for i, each in (unread or {}).items() if isinstance(i, int)}
        self.present: Sequence[Any] = leaves
        self.given: Sequence[Any] = leaves
        converted = [*map(as_tensor, leaves)]
        self._tensors = [i for i, leaf in enumerate(converted) if isinstance(leaf, torch.Tensor)]
        self.arrays = {i: leaves[i].dtype for i in self._tensors if converted[i] is not leaves[i]}
        self._leaves = [None if i in self._tensors else leaf for i, leaf in enumerate(leaves)]
        taken = {*self._tensors, *self._unread}
        self._compared = [index for index in range(len(leaves)) if index not in taken]
        tensors = [converted[index] for index in self._tensors]
        for tensor in tensors:
            _check(tensor)
        self._layouts = [layout(tensor) for tensor in tensors]
        self._orders = [order(tensor) for tensor in tensors]
        self._is_contiguous = all(tensor.is_contiguous() for tensor in tensors)
        all_tensors = not kwargs and all(isinstance(each, torch.Tensor) for each in args)
        self._plain = all_tensors and not self.arrays
        is_quick = self._plain and self._is_contiguous and not any(map(vars, tensors))
        self._are_alike = _torch.comparison_with(tensors) if is_quick else None
        self._examples = self.tensors = tensors
        values = self.inputs(tensors)
        self.named = [
            Named(f"input{i}", Role.INPUT, value, tensor.requires_grad)
            for i, (value, tensor) in enumerate(zip(values, tensors, strict=True))
        ]

    def _flat(self, args: Any, kwargs: Any) -> tuple[list[Any], Any]:
        """Return the leaves of arguments, and their structure."""
        if not self._expands:
            return _torch.flatten((args, dict(kwargs)))
        leaves, structure, self.objects = batches.flatten((args, dict(kwargs)))
        return leaves, structure

    @property
    def others(self) -> list[Any]:
        """The leaves of the arguments that are no tensors."""
        return [self._leaves[index] for index in {*self._compared, *self._unread}]

    @property
    def containers(self) -> list[Any]:
        """The lists and dictionaries of the call that was accepted last."""
        return [*containers_of(self._latest)]

    @property
    def contiguous(self) -> list[int | None]:
        """The index of each tensor whose memory an input of the program has; None for others."""
        pairs = zip(self._tensors, self._layouts, strict=True)
        return [index if expected[4] else None for index, expected in pairs]

    def rebuilt(self, inputs: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments with other tensors, in the layouts of the call's own."""
        leaves = list(self._leaves)
        self._errors.clear()
        self.laid.clear()
        for index, stand_in in self._unread.items():
            leaves[index] = stand_in
        kinds = zip(self._tensors, self._orders, self._layouts, inputs, strict=True)
        for index, how, expected, tensor in kinds:
            if how != sorted(how):
                tensor = tensor.permute([how.index(axis) for axis in range(len(how))])
            leaves[index] = tensor
            if expected[5] not in (None, tensor.stride()):
                with _torch.outside_the_trace():
                    laid = torch.empty_strided(tensor.shape, expected[5], device="meta")
                self.laid[id(tensor)] = tensor, laid
            if index in self.arrays:
                now = operator.itemgetter(index)
                dtype = self.arrays[index]
                leaves[index] = GivenArray(index, tensor, dtype, now, self._errors)
        self.given = leaves
        if not self._expands:
            result = _torch.unflatten(leaves, self._structure)
        else:
            result, self.copies = batches.unflatten(leaves, self._structure)
        self.places = {id(each): i for i, each in enumerate(containers_of(result))}
        return result

    def require_unchanged(self, args: Any, kwargs: Any) -> None:
        """Refuse a function that has changed the lists or dictionaries that it was given.

        Raises:
            CaptureError: ``args`` and ``kwargs`` have other leaves than the trace has begun with,
                or the function has computed with elements of an array.
        """
        for error in self._errors:  # which the user's code has caught
            raise error
        leaves, structure = self._flat(args, kwargs)
        if structure != self._structure or any(
            a is not b for a, b in zip(leaves, self.given, strict=True)
        ):
            raise CaptureError(
                "The function changes a list or dictionary that it was given, or a batch. Return "
                "the new values, or change a copy."
            )

    def inputs(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors of a call as a program takes them."""
        return [
            tensor.detach().permute(how).contiguous() if tensor.dim() else tensor.detach()
            for tensor, how in zip(tensors, self._orders, strict=True)
        ]

    def accepts(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> list[torch.Tensor] | None:
        """Return the inputs of another call if it has the same program; else None."""
        self._latest = args, kwargs
        if self._plain and not kwargs and len(args) == len(self._layouts):
            tensors: Sequence[Any] = args
            self.present = args
            if self._are_alike and self._are_alike(*args) and not any(map(vars, args)):
                self.tensors = args
                return [*args]
        else:
            leaves, structure = self._flat(args, kwargs)
            if structure != self._structure or self._different(leaves):
                return None
            self.present = leaves
            tensors = [leaves[index] for index in self._tensors]
            if self.arrays:
                kinds = zip(self._tensors, tensors, strict=True)
                tensors = [as_tensor(leaf) if i in self.arrays else leaf for i, leaf in kinds]
                if any(isinstance(leaves[index], torch.Tensor) for index in self.arrays):
                    return None
        for tensor, expected in zip(tensors, self._layouts, strict=True):
            if not isinstance(tensor, torch.Tensor) or layout(tensor) != expected:
                return None
        self.tensors = tensors
        if self._is_contiguous:
            return list(tensors)
        return self.inputs(tensors)

    def _different(self, leaves: Sequence[Any]) -> list[int]:
        return [index for index in self._compared if not same(self._leaves[index], leaves[index])]

    def changed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[int, Any]:
        """Return plain values that differ in another call with the same structure, by index."""
        leaves, structure = self._flat(args, kwargs)
        if structure != self._structure:
            return {}
        different = self._different(leaves)
        if not all(isinstance(self._leaves[index], PLAIN) for index in different):
            return {}
        return {index: leaves[index] for index in (*different, *self._unread)}

    def check_memory(
        self, state: Sequence[torch.Tensor], written: Collection[tuple[Role, str]]
    ) -> None:
        """Refuse inputs that share memory with state or another input, where one is written.

        Raises:
            CaptureError: a write to one would change the other.
        """
        if not written:
            return
        memory = {_torch.memory_of(tensor) for tensor in state}
        for tensor in self._examples:
            if _torch.memory_of(tensor) in memory:
                raise CaptureError(
                    "An argument shares its memory with a tensor that the function reaches "
                    "otherwise and writes. Pass a clone."
                )
        inputs = [_torch.memory_of(tensor) for tensor in self._examples]
        for role, name in written:
            if role is not Role.INPUT or not name.startswith("input"):
                continue
            index = int(name[5:])
            if not self._examples[index].permute(self._orders[index]).is_contiguous():
                raise CaptureError(
                    "The function writes to an argument whose elements do not lie together in "
                    "memory. Pass contiguous() of it."
                )
            if inputs.count(inputs[index]) > 1:
                raise CaptureError(
                    "The function writes to an argument that shares its memory with another one. "
                    "Pass a clone."
                )

    def forget_examples(self) -> None:
        """Release the tensors of the traced call."""
        self._examples, self.present, self.given, self.tensors = [], [], [], []
        self.copies, self.objects, self._latest = [], [], ((), {})


def containers_of(value: Any) -> Iterator[Any]:
    """Yield the lists and dictionaries of arguments, which a function may change."""
    kind = cast("Any", type(value))
    if issubclass(kind, dict | list | collections.deque):
        yield value
    if issubclass(kind, dict | list | collections.deque | tuple):
        for part in [*(value.values() if issubclass(kind, dict) else value)]:
            yield from containers_of(part)


def layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what a program depends on of an input."""
    contiguous = tensor.is_contiguous()
    return (
        type(tensor),
        tensor.dtype,
        tensor.shape,
        tensor.requires_grad,
        contiguous,
        None if contiguous else tensor.stride(),
        tensor.device,
        bool(tensor.__dict__),  # attributes of its own; see ``_check``
        tensor.is_neg(),
    )


def order(tensor: torch.Tensor) -> list[int]:
    """Return the dimensions of a tensor by falling strides; as they are if these do not tell."""
    axes = list(range(tensor.dim()))
    if tensor.is_contiguous() or 0 in tensor.stride():
        return axes
    return sorted(axes, key=lambda axis: -tensor.stride(axis))


def _check(tensor: torch.Tensor) -> None:
    kind = "a negated view" if tensor.is_neg() else other_kind(tensor)
    if kind is not None:
        raise CaptureError(f"An argument is {kind}; a program takes dense tensors.")
    if type(tensor) not in KINDS:
        raise CaptureError(
            f"An argument is a {type(tensor).__name__}, which may compute otherwise than tensors. "
            "Pass as_subclass(torch.Tensor) of it."
        )
    names = [name for name in vars(tensor) if name[0] != "_" and name != "persistent"]
    if names:
        raise CaptureError(
            f"An argument is a tensor with an attribute {names[0]!r} of its own. Pass that apart."
        )
    if tensor.requires_grad and tensor.is_leaf:
        raise CaptureError(
            "An argument requires a gradient, which a call would leave in its grad. Call "
            "requires_grad_() on a detached tensor inside the function."
        )
