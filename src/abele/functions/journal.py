"""Effects of a traced call on real tensors: gradients, assigned data, and values that it reads."""

from __future__ import annotations

import collections
import dataclasses
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from abele import _torch
from abele._torch.casts import Casts
from abele.errors import CaptureError
from abele.functions.positions import write
from abele.functions.varying import Item, Slots
from abele.program.aliasing import base, written
from abele.trace.adopted import Adopted
from abele.trace.decompositions import constant_value
from abele.warn import called_by_user, user_line

_Tensor: Any = torch.Tensor  # its attributes have no types
_READS = {_Tensor.item, _Tensor.__float__, _Tensor.__int__, _Tensor.__bool__, _Tensor.__index__}
_NUMBER, _SETS = (_Tensor.item, _Tensor.__int__), (_Tensor.__setitem__, _Tensor.fill_)
_WHOLE = {_Tensor.item, _Tensor.tolist, _Tensor.numpy}
_OF_MEMORY, _OF_ARRAYS = (_Tensor.tolist, _Tensor.__dlpack__), (_Tensor.numpy, _Tensor.__array__)
_OF_GRADIENT = (_Tensor.grad.__set__, _Tensor.grad.__delete__)
_FREEZES = (_Tensor.requires_grad.__set__, _Tensor.requires_grad_)
# Conversions that autocast does not make, by which code may cast a weight.
_EXPLICIT = {_Tensor.to, _Tensor.type, _Tensor.type_as, _Tensor.bfloat16, _Tensor.half}
_OF_LAYOUT = {_Tensor.is_contiguous, _Tensor.stride, _Tensor.storage_offset}
_ALIASING = (_Tensor.data.__get__, _Tensor.detach)


@dataclasses.dataclass
class Grad:
    """``grad`` of a tensor before and after a traced call."""

    tensor: torch.Tensor
    before: torch.Tensor | None
    requires: bool
    after: torch.Tensor | None = None
    flag: bool | None = None  # to which the call sets requires_grad; None if it does not
    looked: bool = False  # the call depends on requires_grad as it finds it
    made: bool = False  # the call has made a gradient, and removed it
    emptied: bool = False  # before a gradient was made
    removed: bool = False  # likewise, by setting it to None
    missed: bool = False  # the call has looked for a gradient before that, and found none

    @property
    def is_absent(self) -> bool:
        """True if the call finds no gradient, and would add to one or use it."""
        stays = self.emptied and not self.removed and self.after is None
        adds = (self.made or self.after is not None) and not self.emptied
        unset = self.missed or stays or adds
        return self.before is None and unset

    @property
    def is_emptied(self) -> bool:
        """True if the call sets the gradient that it finds to None."""
        return self.after is None and (self.before is not None or self.removed)


class GradJournal:
    """A record of changes of ``grad`` and ``requires_grad`` by a traced call.

    Attributes:
        read: whether the call has looked at a gradient.
    """

    def __init__(self):
        self.read = False
        self._first: dict[int, Grad] = {}
        self._given = set[int]()  # gradients that the call finds, by their ``id``

    def note(self, tensor: torch.Tensor) -> Grad:
        """Note a tensor before a traced call changes its gradient; return what is known of it."""
        if not tensor.is_leaf:
            return Grad(tensor, None, requires=True)  # which nothing reads
        if id(tensor) not in self._first:
            self._first[id(tensor)] = Grad(tensor, tensor.grad, tensor.requires_grad)
            self._given.add(id(tensor.grad))
        return self._first[id(tensor)]

    def note_flag(self, tensor: torch.Tensor, *, sets: bool = False) -> None:
        """Note that the function depends on ``requires_grad`` of a tensor, or sets it."""
        first = self.note(tensor)
        first.looked |= not sets and first.flag is None
        first.flag = first.requires if sets else first.flag

    def has_given(self, gradient: torch.Tensor) -> bool:
        """Return whether a tensor is a gradient that a call finds."""
        return id(gradient) in self._given

    def made(self) -> list[torch.Tensor]:
        """Return the tensors with a gradient that the trace has made."""
        tensors = [each.tensor for each in self._first.values()]
        return [each for each in tensors if isinstance(each.grad, _torch.FakeTensor)]

    def note_emptied(self, tensors: Iterable[torch.Tensor], *, removed: bool = True) -> None:
        """Note that the function sets gradients to None, or to zero unless ``removed``."""
        with _torch.without_torch_function_modes():  # which would note that it is read
            for tensor in tensors:
                first = self.note(tensor)
                first.made |= isinstance(tensor.grad, _torch.FakeTensor)
                first.emptied |= not first.made
                first.removed |= removed and not first.made

    def note_read(self, tensor: torch.Tensor) -> None:
        """Note that the function looks at a gradient."""
        self.read = True
        first = self.note(tensor)
        first.missed |= tensor.is_leaf and tensor.grad is None and not first.emptied

    def starts_empty(self, tensor: torch.Tensor) -> bool:
        """Return whether each call makes the gradient of a tensor anew."""
        first = self._first[id(tensor)]
        return first.emptied or first.before is not None

    def restored(self) -> list[Grad]:
        """Give tensors the gradients that they had; return what the call did to them."""
        for each in self._first.values():
            each.after = each.tensor.grad
            if each.flag is not None:
                each.flag = each.tensor.requires_grad
                each.tensor.requires_grad_(each.requires)
            each.tensor.grad = each.before
        return list(self._first.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gradients:
    """The effects of a call on ``grad`` of the tensors that it trains.

    Attributes:
        kept: tensors whose gradient stays, and the index of the program's output that has it.
        emptied: tensors whose ``grad`` is None after the call.
        absent: tensors whose ``grad`` has to be None before the call.
        pinned: tensors whose gradient the call finds in memory of state, and that gradient.
        dropped: how many gradients an update has used up, which are not written to memory.
        flags: tensors whose ``requires_grad`` the call sets, and to what.
        looked: tensors on whose ``requires_grad`` before the call it depends.
    """

    kept: Mapping[torch.Tensor, int]
    emptied: Sequence[torch.Tensor]
    absent: Sequence[torch.Tensor]
    pinned: Sequence[tuple[torch.Tensor, torch.Tensor]]
    dropped: int
    flags: Mapping[torch.Tensor, bool]
    looked: Sequence[torch.Tensor]

    def leave(self, outputs: Sequence[torch.Tensor]) -> None:
        """Set ``grad`` and ``requires_grad`` of tensors as the call leaves them."""
        for tensor in self.emptied:
            tensor.grad = None
        for tensor, index in self.kept.items():
            tensor.grad = outputs[index]
        for tensor, flag in self.flags.items():
            tensor.requires_grad_(flag)


class RealTensors(TorchFunctionMode):
    """A mode for what a traced function does to real tensors beside computing with them."""

    def __init__(
        self,
        grads: GradJournal,
        adopted: Adopted,
        numbers: Slots,
        moved: dict[int, tuple[torch.Tensor, torch.Tensor]],
        casting: Casts | None = None,
        laid: Mapping[int, tuple[torch.Tensor, torch.Tensor]] = MappingProxyType({}),
    ):
        super().__init__()
        self._errors: list[Exception] = []  # of values that were read and are not known
        self._moved = moved  # by id, what was assigned to the data of a tensor, and the tensor
        self._grads, self._adopted, self._numbers = grads, adopted, numbers
        self._casting, self._laid = casting, laid
        self._aliases = collections.defaultdict[int, list[weakref.ref[Any]]](list)

    def __torch_function__(
        self, func: Callable[..., Any], kinds: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if self._moved:
            args = tuple(self._moved.get(id(each), (each, each))[1] for each in args)
        first = args[0] if args else None
        if not kwargs and (made := self._of_numbers(func, *args)) is not None:
            return made
        if func in _OF_LAYOUT and self._laid and called_by_user():
            return func(self._as_laid(first), *args[1:], **(kwargs or {}))
        if func in _READS:
            try:
                return func(*args)
            except Exception as error:
                self._errors.append(error)
                raise
        if isinstance(first, torch.Tensor) and not isinstance(first, _torch.FakeTensor):
            if func == _Tensor.data.__set__:
                return self._assign(*args)
            if func == _Tensor.grad.__get__:
                self._grads.note_read(first)
            elif func in _FREEZES or func == _Tensor.requires_grad.__get__:
                self._grads.note_flag(first, sets=func in _FREEZES)
            elif func in _OF_GRADIENT:
                self._grads.read = True
                self._grads.note(first)
                if func == _Tensor.grad.__delete__ or args[-1] is None:
                    self._grads.note_emptied([first])
            if func in _EXPLICIT and self._casting is not None:
                with self._casting.paused():
                    return func(*args, **(kwargs or {}))
            if func in _OF_MEMORY:  # which read it past the trace
                read = _listed(first.detach())
                return read if func == _Tensor.tolist else func(*args, **(kwargs or {}))
            if func in _OF_ARRAYS:
                return func(first.detach(), *args[1:], **(kwargs or {}))
            if func in _ALIASING:
                alias = func(*args, **(kwargs or {}))
                self._aliases[id(first)].append(weakref.ref(alias))
                return alias
        return func(*args, **(kwargs or {}))

    def aliases_of(self, tensor: torch.Tensor) -> list[Any]:
        """Return what the function has made of a tensor's memory by ``data`` or ``detach``."""
        found = [alias() for alias in self._aliases[id(tensor)]]
        return [e for each in found if each is not None for e in (each, *self.aliases_of(each))]

    def require_known(self) -> None:
        """Raise the error of a value that was read, if the user's code has caught it."""
        for error in self._errors:
            raise error

    def _read(self, read: Callable[..., Any], tensor: torch.Tensor) -> Any:
        """Return what is read of a tensor, or what stands for it in the user's code."""
        known = isinstance(tensor, _torch.FakeTensor) and constant_value(tensor) is not None
        shares = read == _Tensor.numpy  # memory, with what is written later
        read = _Tensor.item if read == _Tensor.tolist and not tensor.dim() else read
        fails = tensor.requires_grad if shares else read == _Tensor.item and tensor.numel() != 1
        if known or fails or tensor.is_complex() or not called_by_user():
            return read(tensor)
        with torch.no_grad():
            made = Item(tensor if shares else tensor.detach().clone(), read, self._numbers)
        self._numbers.items.append(made)
        return made

    def _of_numbers(self, func: Callable[..., Any], tensor: Any = None, *others: Any) -> Any:
        """Return what a function does with a number that changes with each call; None if none."""
        if func in _NUMBER and (made := self._element(tensor)) is not None:
            return made
        if func in _SETS and write(tensor, (*others[:-1], ...)[0], others[-1]):
            return tensor  # as fill_ does
        return self._read(func, tensor) if func in _WHOLE and self._numbers.defers else None

    def _element(self, tensor: torch.Tensor) -> Any:
        """Return what stands for the only element of a tensor of state; None if nothing does."""
        if tensor.numel() != 1 or not self._numbers.elements or not called_by_user():
            return None
        node = _torch.traced_node(tensor.detach())
        memory = None if node is None else base(node)
        nodes = [*map(base, chain.from_iterable(map(written, _torch.traced_nodes())))]
        state = None if memory in nodes else self._adopted.tensor_of(memory)
        if state is None or state.numel() != 1 or state.dtype != tensor.dtype:
            return None
        return self._numbers.element(state)

    def _as_laid(self, tensor: Any) -> torch.Tensor:
        """Return a tensor with the layout that an argument has in the user's memory."""
        if id(tensor) in self._laid:
            return self._laid[id(tensor)][1]
        if any(_torch.memory_of(tensor) == _torch.memory_of(e) for e, _ in self._laid.values()):
            raise CaptureError(
                f"The function asks for the layout of a view, at {user_line()}, of an argument "
                "whose elements do not lie together in memory. Pass contiguous() of it."
            )
        return tensor

    def _assign(self, tensor: torch.Tensor, value: Any) -> None:
        """Write assigned data into a tensor's own memory."""
        fits = isinstance(value, _torch.FakeTensor) and value.dtype == tensor.dtype
        if not fits or value.shape != tensor.shape or self._adopted.has(value):
            raise CaptureError(
                f"The function assigns to the data of a tensor, at {user_line()}: another tensor "
                "that it did not compute, or one of another shape or type. Use copy_()."
            )
        if any(alias() is not None for alias in self._aliases[id(tensor)]):
            raise CaptureError(
                f"The function assigns to the data of a tensor, at {user_line()}, and keeps what "
                "was there before. Keep clone() of it."
            )
        with torch.no_grad():
            tensor.copy_(value)
        self._moved[id(value)] = value, tensor


def _listed(tensor: torch.Tensor) -> Any:
    """Return the numbers of a tensor as a list, read one by one."""
    return [*map(_listed, tensor)] if tensor.dim() else tensor.item()
