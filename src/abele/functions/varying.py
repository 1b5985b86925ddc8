"""Numbers of Python that change with each call, as slots of a program.

    loss + beta * penalty, with beta an argument   ->   beta is a 0-d float64 slot

Plain PyTorch rounds such a number to the type of the tensor that it is combined with, and so does
the program. A number whose value decides anything else stays a condition of the program.
"""

from __future__ import annotations

import contextlib
import math
import types
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, cast

import torch

from abele.errors import CaptureError
from abele.warn import user_line

_MOST = 2**31  # of integers: sums of some stay integers in float64
_FLOATS = (torch.float32, torch.float64)
# Functions of torch that round a number to the type of a tensor.
_NAMES = ("add", "sub", "mul", "div", "truediv", "true_divide", "subtract", "multiply", "divide")
_KNOWN = {
    *(f"{before}{name}{after}" for name in _NAMES for before in ("", "__", "__r", "__i")
      for after in ("", "_", "__")),
    *("rsub", "__rdiv__", "gt", "ge", "lt", "le", "eq", "ne"),
}  # fmt: skip
_WITHOUT_GRADIENTS = {"lerp", "lerp_"}  # whose derivatives round a number otherwise
_SUMS = {"add": 1, "add_": 1, "sub": -1, "sub_": -1}


class Place:
    """A variable, attribute or item whose number is compared before each call.

    Args:
        holder: a dictionary, list, or variable of an enclosing function.
        key: of the entry; empty for variables.
    """

    def __init__(self, holder: Any, key: Any = ""):
        self.holder, self.key = holder, key
        self.id = id(holder), key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def get(self) -> Any:
        """Return the present value."""
        is_cell = isinstance(self.holder, types.CellType)
        return self.holder.cell_contents if is_cell else self.holder[self.key]

    def put(self, value: Any) -> None:
        """Set the value."""
        if isinstance(self.holder, types.CellType):
            self.holder.cell_contents = value
        else:
            self.holder[self.key] = value


class ReadError(CaptureError):
    """A capture needs the value of something that it is not to depend on.

    Attributes:
        what: index of an argument, or a place.
    """

    def __init__(self, what: int | Place):
        super().__init__(f"The value of a number is computed with, at {user_line()}.")
        self.what = what


class Unread:
    """Stands for a value of Python while a call is captured that does not depend on it.

    It is no number, so that nothing can compute with it, and only be passed on, returned or used by
    statements of the host.

    Attributes:
        what: index of an argument, or a place.
        error: of the first use of its value; None if there was none.
    """

    def __init__(self, what: int | Place, kind: type):
        self.what, self.kind = what, kind
        self.error: ReadError | None = None

    def now(self, leaves: Sequence[Any]) -> Any:
        """Return the value at a call with the given leaves of arguments."""
        return self.what.get() if isinstance(self.what, Place) else leaves[self.what]

    @property
    def __class__(self) -> Any:  # type: ignore[reportIncompatibleMethodOverride]
        """The type of the value, so that ``isinstance`` answers as for the value."""
        return self.kind

    def refuse(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an error: a program does not have the value."""
        self.error = self.error or ReadError(self.what)
        raise self.error

    __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = __getitem__ = refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = refuse
    __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = refuse
    __neg__ = __abs__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = refuse  # type: ignore[assignment]
    __hash__ = __format__ = __str__ = __contains__ = __call__ = refuse  # type: ignore[assignment]
    __round__ = __trunc__ = __floor__ = __ceil__ = __divmod__ = __complex__ = refuse


class Varying(Unread):
    """Stands for a number that tensors are combined with, whose value is a slot.

    Args:
        what: index of an argument, or a place.
        kind: float or int.
        slot: the 0-d float64 tensor that becomes the slot, or what is computed with it.
    """

    def __init__(self, what: int | Place, kind: type, slot: Callable[[], torch.Tensor]):
        super().__init__(what, kind)
        self.slot = slot

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        kinds: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Round numbers to the type of the tensors that they are combined with."""
        name, named = getattr(func, "__name__", ""), dict(kwargs or {})
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        dtypes = {each.dtype for each in tensors}
        known = name in _KNOWN or (name in _WITHOUT_GRADIENTS and not torch.is_grad_enabled())
        alpha: Any = named.pop("alpha", None) if name in _SUMS and len(tensors) == 2 else None
        numbers = [each for each in (*args, *named.values(), alpha) if _is_varying(each)]
        if not numbers:
            raise CaptureError(
                f"A list with a number of Python is passed to torch, at {user_line()}."
            )
        if not known or named or len(dtypes) != 1 or not dtypes.issubset(_FLOATS):
            return numbers[0].refuse()
        (dtype,) = dtypes
        if _is_varying(alpha):
            (first, second), value = tensors, alpha.slot().to(dtype)
            sum_of = first.addcmul_ if name.endswith("_") else first.addcmul
            return sum_of(second, value, value=_SUMS[name])
        extra = {} if alpha is None else {"alpha": alpha}
        return func(*(e.slot().to(dtype) if _is_varying(e) else e for e in args), **extra)

    def _with(self, name: str, other: Any) -> Any:
        """Combine the number with a tensor, or with a number of Python in float64."""
        if isinstance(other, torch.Tensor):
            return getattr(torch.Tensor, _MIRRORED[name])(other, self)
        if _is_varying(other) and self.kind is other.kind is float and name != "__truediv__":
            return Derived(self.what, float, lambda: getattr(self.slot(), name)(other.slot()), self)
        if type(other) not in (int, float) or not abs(other) <= _MOST:
            return self.refuse()
        kind = int if self.kind is type(other) is int and name != "__truediv__" else float
        if (kind is int and name in ("__mul__", "__rmul__")) or (
            name == "__truediv__" and not other
        ):
            return self.refuse()
        return Derived(self.what, kind, lambda: getattr(self.slot(), name)(float(other)), self)

    def __add__(self, other: Any) -> Any:
        return self._with("__add__", other)

    def __radd__(self, other: Any) -> Any:
        return self._with("__radd__", other)

    def __sub__(self, other: Any) -> Any:
        return self._with("__sub__", other)

    def __rsub__(self, other: Any) -> Any:
        return self._with("__rsub__", other)

    def __mul__(self, other: Any) -> Any:
        return self._with("__mul__", other)

    def __rmul__(self, other: Any) -> Any:
        return self._with("__rmul__", other)

    def __truediv__(self, other: Any) -> Any:
        return self._with("__truediv__", other)


class Derived(Varying):
    """A number that is computed of a varying one, whose value no statement of the host has."""

    def __init__(
        self, what: int | Place, kind: type, slot: Callable[[], torch.Tensor], origin: Varying
    ):
        super().__init__(what, kind, slot)
        self._origin = origin

    def refuse(self, *args: Any, **kwargs: Any) -> Any:
        """Raise the error of the number that it is computed of."""
        self._origin.refuse()


# The method of a tensor for the other order of operands.
_MIRRORED = {
    **{f"__{name}__": f"__r{name}__" for name in ("add", "sub", "mul", "truediv")},
    **{f"__r{name}__": f"__{name}__" for name in ("add", "sub", "mul")},
    "__truediv__": "__rdiv__",
}


def _is_varying(value: Any) -> bool:
    return issubclass(type(value), Varying)


class Slots:
    """The numbers that the capture of a call is not to depend on.

    Args:
        values: those of the call, by index of the argument or place.

    Attributes:
        stand_ins: what stands for each.
        tensors: by ``id``, the 0-d tensors that become slots, with the names of these.
    """

    def __init__(self, values: Mapping[int | Place, Any]):
        self.stand_ins: dict[int | Place, Unread] = {}
        self.tensors: dict[int, tuple[str, torch.Tensor]] = {}
        self._by_name: dict[str, Varying] = {}
        for what, value in values.items():
            kind = cast("Any", type(value))
            if kind is float or (kind is int and abs(value) <= _MOST):
                self._add(what, kind, float(value))
            else:
                self.stand_ins[what] = Unread(what, kind)

    def _add(self, what: int | Place, kind: type, number: float) -> None:
        tensor, name = torch.tensor(number, dtype=torch.float64), f"number{len(self._by_name)}"
        self.tensors[id(tensor)] = name, tensor
        made = Varying(what, kind, lambda: tensor)
        self._by_name[name] = self.stand_ins[what] = made

    @contextlib.contextmanager
    def in_place(self) -> Generator[None]:
        """Put stand-ins into attributes and variables in a ``with`` block.

        Raises:
            ReadError: on leaving, if the value of one was computed with.
        """
        places = [each for each in self.stand_ins if isinstance(each, Place)]
        values = [each.get() for each in places]
        for each in places:
            each.put(self.stand_ins[each])
        try:
            yield
        finally:
            for each, value in zip(places, values, strict=True):
                each.put(value)
        for each in self.stand_ins.values():
            if each.error is not None:
                raise each.error

    @property
    def read(self) -> set[int | Place]:
        """The numbers whose values were computed with."""
        return {what for what, each in self.stand_ins.items() if each.error is not None}

    def used(self, names: Collection[str]) -> dict[str, Varying]:
        """Return the numbers with slots in a program that has slots of the given names."""
        return {name: each for name, each in self._by_name.items() if name in names}


class Followed:
    """The slots of varying numbers in a program that runs.

    Args:
        numbers: those with slots, by the names of these.
        free: all that the program does not depend on, except on their types.
    """

    def __init__(self, numbers: Mapping[str, Varying], free: Iterable[Unread]):
        self._numbers = [(name, each.kind, each.now) for name, each in numbers.items()]
        self._kinds = [(each.kind, each.now) for each in free]
        self.values = {name: each.slot().item() for name, each in numbers.items()}

    def follow(self, leaves: Sequence[Any], write: Callable[[str, float], None]) -> bool:
        """Write the numbers of a call to slots; return whether they have the types for it."""
        if any(type(now(leaves)) is not kind for kind, now in self._kinds):
            return False
        for name, kind, now in self._numbers:
            value = now(leaves)
            if kind is int and abs(value) > _MOST:
                return False
            before = self.values[name]
            if value != before or math.copysign(1, value) != math.copysign(1, before):
                self.values[name] = float(value)
                write(name, float(value))
        return True
