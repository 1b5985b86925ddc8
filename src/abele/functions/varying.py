"""Numbers of Python that change with each call, as slots of a program.

    loss + beta * penalty, with beta an argument   ->   beta is a 0-d float64 slot

Plain PyTorch rounds such a number to the type of the tensor that it is combined with, and so does
the program. A number whose value decides anything else stays a condition of the program.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import math
import operator
import types
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from numbers import Number
from typing import Any, cast

import numpy as np
import torch

from abele import _torch
from abele._torch.replaced import replaced
from abele.capture.leftovers import write
from abele.containers import is_dict, is_list
from abele.errors import CaptureError, DataDependentError
from abele.functions.frames import attribute
from abele.warn import user_line

_MOST = 2**53  # integers above may be no float64
_FLOATS = (torch.float32, torch.float64)
# Functions of torch that round a number to the type of a tensor.
_NAMES = ("add", "sub", "mul", "div", "truediv", "true_divide", "subtract", "multiply", "divide")
_KNOWN = {
    *(f"{before}{name}{after}" for name in _NAMES for before in ("", "__", "__r", "__i")
      for after in ("", "_", "__")),
    *("rsub", "__rdiv__", "gt", "ge", "lt", "le", "eq", "ne"),
}  # fmt: skip
_WITHOUT_GRADIENTS = {"lerp", "lerp_"}  # whose derivatives round a number otherwise
# Types of numbers that may have slots; those of NumPy compute in Python as they are.
NUMBERS = (int, float, np.float64, np.float32, np.float16, np.int64, np.int32)
_SUMS = {"add": 1, "add_": 1, "sub": -1, "sub_": -1}
_OF_MATH = ("sqrt", "exp", "log", "pow", "cos", "sin", "tanh")
_PRODUCTS = ("addcmul", "addcmul_", "addcdiv", "addcdiv_")


class Place:
    """A variable, attribute or item whose value is compared before each call.

    Args:
        holder: a dictionary, list, variable of an enclosing function, class or object with slots.
        key: of the entry.
    """

    def __init__(self, holder: Any, key: Any):
        self.holder, self.key = holder, key
        self.id = id(holder), key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def get(self) -> Any:
        """Return the present value.

        Raises:
            LookupError: there is none.
        """
        holder: Any = self.holder
        if is_dict(holder) or is_list(holder):
            return holder[self.key]
        if isinstance(holder, type):
            return vars(holder)[self.key]
        try:
            return object.__getattribute__(holder, self.key)
        except (AttributeError, ValueError):  # a slot or variable that is not set
            raise KeyError(self.key) from None

    @property
    def read(self) -> tuple[str, Any, Any]:
        """An expression of the present value for ``same_reads``."""
        holder: Any = vars(self.holder) if isinstance(self.holder, type) else self.holder
        if holder is self.holder and not (is_dict(holder) or is_list(holder)):
            return "object.__getattribute__({o}, {k})", holder, self.key
        return "{o}[{k}]", holder, self.key

    def put(self, value: Any) -> None:
        """Set the value."""
        write(self.holder, self.key, value, None)


def place_of(holder: Any, key: Any, before: Any, after: Any) -> Place | None:
    """Return the place of an entry that a call changes from one number to another one."""
    late = issubclass(type(after), Unread)
    if type(before) not in NUMBERS or not (late or type(before) is type(after)):
        return None
    return entry_of(holder, key)


def entry_of(holder: Any, key: Any) -> Place | None:
    """Return the place of an entry of an object; None if the object has it elsewhere."""
    if is_list(holder):
        return Place(holder, key) if key < len(holder) else None
    if is_dict(holder):
        return Place(holder, key) if key in holder else None
    if isinstance(holder, types.CellType | type):
        return Place(holder, key)
    found = attribute(holder, key)
    return None if found is None or isinstance(found[0], type) else Place(found[0], key)


class Element:
    """The integer in a tensor of the user's state, which is read before each call."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor, self._number = tensor, int(tensor.item())

    def look(self) -> int:
        """Read the number before a call."""
        self._number = int(self.tensor.item())
        return self._number

    def get(self) -> int:
        """Return the number before the latest call."""
        return self._number


def elements_of(tensors: Iterable[torch.Tensor]) -> dict[int, Element]:
    """Return the elements of those tensors that have one integer, by the tensors' memory."""
    kinds = (torch.int64, torch.int32)
    found = (each for each in tensors if each.numel() == 1 and each.dtype in kinds)
    return {_torch.memory_of(each): Element(each) for each in found}


What = int | Place | Element  # the index of an argument, or what has a number


class ReadError(CaptureError):
    """A capture needs the value of something that it is not to depend on.

    Attributes:
        what: index of an argument, place, or element of a tensor.
    """

    def __init__(self, what: What):
        super().__init__(f"The value of a number is computed with, at {user_line()}.")
        self.what = what


class Opaque:
    """A base of stand-ins, whose values no code gets."""

    def __deepcopy__(self, memo: Any = None) -> Any:
        """Return the stand-in itself, as for numbers."""
        return self

    __copy__ = __deepcopy__

    def refuse(self) -> Any:
        """Raise an error: the value was asked for."""
        raise NotImplementedError

    def used(self, operator: str, *args: Any, **kwargs: Any) -> Any:
        """Return what the value's method of this name does; refuses it."""
        return self.refuse()


def _using(operator: str) -> Callable[..., Any]:
    def call(stand_in: Opaque, *args: Any, **kwargs: Any) -> Any:
        return stand_in.used(operator, *args, **kwargs)

    return call


for _name in (
    *("bool", "int", "float", "complex", "index", "len", "iter", "getitem", "setitem", "contains"),
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "divmod"),
    *("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow", "rmatmul", "rdivmod"),
    *("neg", "abs", "lt", "le", "gt", "ge", "eq", "ne", "hash", "format", "str", "call"),
    *("round", "trunc", "floor", "ceil", "array", "repr", "pos", "invert", "reversed"),
    *(f"{r}{name}" for name in ("and", "or", "xor", "lshift", "rshift") for r in ("", "r")),
):
    setattr(Opaque, f"__{_name}__", _using(f"__{_name}__"))


class Unread(Opaque):
    """Stands for a value of Python while a call is captured that does not depend on it.

    It is no number, so that nothing can compute with it, and only be passed on, returned or used by
    statements of the host.

    Attributes:
        what: index of an argument, place, or element of a tensor.
        error: of the first use of its value; None if there was none.
    """

    def __init__(self, what: What, kind: type):
        self.what, self.kind = what, kind
        self.error: CaptureError | None = None

    def now(self, leaves: Sequence[Any]) -> Any:
        """Return the value at a call with the given leaves of arguments."""
        return leaves[self.what] if isinstance(self.what, int) else self.what.get()

    @property
    def __class__(self) -> Any:  # type: ignore[reportIncompatibleMethodOverride]
        """The type of the value, so that ``isinstance`` answers as for the value."""
        return self.kind

    def __getattr__(self, name: str) -> Any:
        return self.refuse() if hasattr(self.kind, name) else object.__getattribute__(self, name)

    def refuse(self) -> Any:
        """Raise an error: a program does not have the value."""
        self.error = self.error or ReadError(self.what)
        raise self.error


class Varying(Unread):
    """Stands for a number that tensors are combined with, whose value is a slot.

    Args:
        what: index of an argument, place, or element of a tensor.
        number: its value in the captured call.
        slots: gets the slot.
        key: is the same for numbers that have the same value at each call.
    """

    late = False  # whether its value follows from a tensor that the program computes

    def __init__(self, what: What, number: Any, slots: Slots, key: Any = None):
        super().__init__(what, cast("Any", type(number)))
        self.number, self._slots, self.key = number, slots, what if key is None else key

    def slot(self) -> torch.Tensor:
        """Return the 0-d float64 tensor that becomes the slot."""
        if self.late or self.kind not in NUMBERS or not _fits(self.kind, self.number):
            return self.refuse()
        return self._slots.tensor_of(self)

    def rounded(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the number as a 0-d tensor of a type to which plain PyTorch converts it."""
        if self.kind is int:
            return self.slot().long().to(dtype)
        return self.slot().to(dtype) if dtype in _FLOATS else self.refuse()

    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Round numbers to the type of the tensors that they are combined with."""
        name, named = getattr(func, "__name__", ""), dict(kwargs or {})
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        dtypes = {each.dtype for each in tensors}
        value: Any = named.pop("value", None) if name in _PRODUCTS and len(tensors) == 3 else None
        known = (
            name in _KNOWN
            or value is not None
            or (name in _WITHOUT_GRADIENTS and not torch.is_grad_enabled())
        )
        alpha: Any = named.pop("alpha", None) if name in _SUMS and len(tensors) == 2 else None
        given = (*args, *named.values(), alpha, value)
        numbers: list[Any] = [each for each in given if is_varying(each)]
        if not numbers:
            raise CaptureError(
                f"A list with a number of Python is passed to torch, at {user_line()}."
            )
        if not known or named or len(dtypes) != 1 or not dtypes.issubset(_FLOATS):
            return numbers[0].refuse()
        (dtype,) = dtypes
        if is_varying(alpha):
            first, second = tensors
            sum_of = first.addcmul_ if name.endswith("_") else first.addcmul
            return sum_of(second, alpha.slot().to(dtype), value=_SUMS[name])
        if value is not None:
            if torch.is_grad_enabled() or not is_varying(value):
                return numbers[0].refuse()
            return func(tensors[0], tensors[1] * value.slot().to(dtype), tensors[2])
        extra = {} if alpha is None else {"alpha": alpha}
        return func(*(e.slot().to(dtype) if is_varying(e) else e for e in args), **extra)

    def combined(self, name: str, other: Any, *, mirrored: str | None = None) -> Any:
        """Combine the number with a tensor, or compute with it as Python does.

        ``mirrored`` is the tensor's method; it is empty if the number is the second operand.
        """
        if isinstance(other, torch.Tensor) and mirrored != "":
            return getattr(torch.Tensor, mirrored)(other, self) if mirrored else self.refuse()
        is_number = issubclass(self.kind, Number)  # and no list or array that was read
        if not (is_number and _are_numbers([other])):
            return self.refuse()
        operands = (other, self) if mirrored == "" else (self, other)
        return Derived(self._slots, getattr(operator, name), *operands)

    def computed(self, function: Callable[..., Any], *others: Any) -> Derived:
        """Return what a function gives for the number and others."""
        return Derived(self._slots, function, self, *others)

    def decides(self, comparison: Callable[..., bool], *others: Any) -> bool:
        """Return whether a comparison is true; the program is for calls in which it is so, too."""
        may_decide = self._slots.decides or isinstance(self.what, Element)
        if not (may_decide and _are_numbers(others)):
            return self.refuse()
        made = self.computed(comparison, *others)
        if made.late:
            return made.refuse()
        return bool(self._slots.conditions.setdefault(made.key, (made, bool(made.number)))[1])

    def require(self, condition: Callable[..., bool], *others: Any) -> None:
        """Let the program be for calls in which a condition holds, as it has to in this one."""
        made = self.computed(condition, *others)
        if made.late or not made.number:
            self.refuse()
        self._slots.conditions.setdefault(made.key, (made, True))

    def __bool__(self) -> bool:
        return self.decides(operator.truth)


# The method of a tensor for the other order of operands.
_MIRRORED = {"add": "__radd__", "sub": "__rsub__", "mul": "__rmul__", "truediv": "__rdiv__"}
for _name in (*_MIRRORED, "pow", "mod", "floordiv"):
    _combined: Any = functools.partial(functools.partialmethod, Varying.combined, f"__{_name}__")
    setattr(Varying, f"__{_name}__", _combined(mirrored=_MIRRORED.get(_name)))
    setattr(Varying, f"__r{_name}__", _combined(mirrored=""))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    _comparison: Any = functools.partialmethod(Varying.decides, getattr(operator, _name))
    setattr(Varying, f"__{_name}__", _comparison)
for _name, _of in (("neg", operator.neg), ("abs", abs), ("round", round)):
    setattr(Varying, f"__{_name}__", functools.partialmethod(Varying.computed, _of))


class Derived(Varying):
    """A number that Python computes of varying ones before each call."""

    def __init__(self, slots: Slots, function: Callable[..., Any], *operands: Any):
        self._function, self._operands = function, operands
        self._origins = [each for each in operands if is_varying(each)]
        self.late = any(each.late for each in self._origins)
        numbers = [each.number if is_varying(each) else each for each in operands]
        try:
            number = function(*numbers)
        except (ArithmeticError, ValueError):  # which the user's code may catch
            number = self.refuse()
        keys = (e.key if is_varying(e) else f"{type(e)} {e!r}" for e in operands)
        super().__init__(self._origins[0].what, number, slots, (function, *keys))
        if not self.late and function not in _ALWAYS_DEFINED:
            slots.conditions.setdefault((self.key, "raises"), (self, None))

    def now(self, leaves: Sequence[Any]) -> Any:
        """Return the value at a call with the given leaves of arguments."""
        return self._function(
            *(each.now(leaves) if is_varying(each) else each for each in self._operands)
        )

    def slot(self) -> torch.Tensor:
        """Return the number as a 0-d float64 tensor, with the bits that Python computes."""
        if not self.late:
            return super().slot()
        function: Any = self._function
        operands = [each.slot() if is_varying(each) else each for each in self._operands]
        operands = [float(n) if type(n) is int and abs(n) <= _MOST else n for n in operands]
        divides = function is _operators.truediv and is_varying(self._operands[1])
        if function not in _EXACT or divides or not {*map(type, operands)} <= _OPERANDS:
            return self.refuse()
        return function(*operands)

    def refuse(self) -> Any:
        """Raise the error of a number that it is computed of."""
        max(self._origins, key=lambda each: each.late).refuse()


class Item(Varying):
    """Stands for what Python reads of a traced tensor, and gets once the program has run.

    Args:
        tensor: the traced tensor.
        read: ``item``, ``tolist`` or ``numpy`` of tensors.
        slots: of the capture.

    Attributes:
        leaf: the tensor among the results of a call.
        value: what was read in the latest call.
    """

    late = True

    def __init__(self, tensor: torch.Tensor, read: Callable[[torch.Tensor], Any], slots: Slots):
        example: Any = 0.625 if tensor.is_floating_point() else 3
        example = True if tensor.dtype == torch.bool else example
        if read.__name__ != "item":
            example = [] if read.__name__ == "tolist" else np.empty(0)
        super().__init__(-1, example, slots, object())
        self.tensor, self.read = tensor, read
        self.leaf: Any = None
        self.value: Any = None

    def now(self, leaves: Sequence[Any]) -> Any:
        """Return what was read in the latest call."""
        return self.value

    def slot(self) -> torch.Tensor:
        """Return the number as a 0-d float64 tensor of the program."""
        return self.tensor.double() if self.kind is float else self.refuse()

    def refuse(self) -> Any:
        """Raise an error: the number is not known while the call is captured."""
        self.error = self.error or DataDependentError(
            f"The function reads the value of a tensor while the program is being captured, and "
            f"decides by it at {user_line()}. Use tensor operations such as torch.where."
        )
        raise self.error


_operators: Any = operator  # whose stubs are incomplete
# Functions that raise no error, whatever the numbers.
_ALWAYS_DEFINED = (_operators.add, _operators.sub, _operators.mul, _operators.neg)
# Functions that float64 tensors compute as Python does, but for division by zero.
_EXACT = (*_ALWAYS_DEFINED, _operators.truediv)
_OPERANDS = {float, torch.Tensor, _torch.FakeTensor}


_CONVERSIONS: Mapping[str, Any] = {"float": float, "int": int}


def _conversion(kind: Any, slots: Slots) -> type:
    """Return a class that converts as a type of numbers does, and stand-ins to stand-ins."""

    def convert(self: Any, *args: Any, **kwargs: Any) -> Any:
        value = args[0].item() if args and isinstance(args[0], torch.Tensor) else (*args, None)[0]
        return Derived(slots, kind, value) if is_varying(value) else kind(*args, **kwargs)

    class Conversion(type):
        __call__ = convert
        __instancecheck__ = staticmethod(kind.__instancecheck__)
        __subclasscheck__ = staticmethod(kind.__subclasscheck__)

    return Conversion(kind.__name__, (kind,), {})


def _fits(kind: type, number: Any) -> bool:
    """Return whether a float64 slot has the value of a number."""
    return issubclass(kind, float | np.floating) or abs(number) <= _MOST


def is_varying(value: Any) -> bool:
    """Return whether a value stands for a number that changes with each call."""
    return issubclass(type(value), Varying)


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(type(each) in NUMBERS or is_varying(each) for each in values)


class Slots:
    """The numbers that the capture of a call is not to depend on.

    Args:
        values: those of the call, by index of the argument, place or element.
        defers: numbers of tensors get stand-ins, too.
        decides: Python may decide by the numbers; the program then is for calls that do so alike.

    Attributes:
        stand_ins: what stands for each; for an element once the call has read it.
        elements: those of the state, by the tensor's memory.
        items: what stands for numbers of tensors.
        conditions: numbers by which Python has decided, and whether they were true, by key; None
            for numbers whose computation may raise an error.
        tensors: by ``id``, the 0-d tensors that become slots, with the names of these.
    """

    def __init__(self, values: Mapping[What, Any], *, defers: bool = False, decides: bool = False):
        self.defers, self.decides, self.items = defers, decides, list[Item]()
        self.conditions: dict[Any, tuple[Varying, bool | None]] = {}
        self.stand_ins: dict[What, Unread] = {}
        self.elements = dict[int, Element]()
        self.tensors: dict[int, tuple[str, torch.Tensor]] = {}
        self._made: dict[Any, tuple[Varying, str, torch.Tensor]] = {}
        for what, value in values.items():
            kind = cast("Any", type(value))
            if isinstance(what, Element):  # stands in once it is read
                self.elements[_torch.memory_of(what.tensor)] = what
                continue
            if value is None or kind is bool:
                continue  # code may ask what it `is`, and gets no answer of a stand-in
            varies = kind in NUMBERS
            self.stand_ins[what] = Varying(what, value, self) if varies else Unread(what, kind)

    def tensor_of(self, number: Varying) -> torch.Tensor:
        """Return the tensor that becomes the slot of a number."""
        if number.key not in self._made:
            with _torch.outside_the_trace():
                tensor = torch.tensor(float(number.number), dtype=torch.float64)
            made = f"number{len(self._made)}", tensor
            self.tensors[id(tensor)] = made
            self._made[number.key] = number, *made
        return self._made[number.key][2]

    def element(self, tensor: torch.Tensor) -> Unread | None:
        """Return what stands for the integer in a tensor of state; None if nothing does."""
        element = self.elements.get(_torch.memory_of(tensor))
        if element is None:
            return None
        return self.stand_ins.setdefault(element, Varying(element, element.get(), self))

    @contextlib.contextmanager
    def in_place(self, spaces: Iterable[dict[str, Any]] = (), *functions: Any) -> Generator[None]:
        """Put stand-ins into attributes and variables in a ``with`` block.

        Args:
            spaces: globals of code of the user's, whose ``float`` and ``int`` give stand-ins.
            functions: further builtins of theirs.

        Raises:
            CaptureError: on leaving, if the value of one was computed with.
        """
        converts = self.defers or self.elements
        own = {name: _conversion(kind, self) for name, kind in _CONVERSIONS.items() if converts}
        own |= {each.__name__: each for each in functions}
        computed = [*((math, each) for each in _OF_MATH), (builtins, "min"), (builtins, "max")]
        with contextlib.ExitStack() as stack:
            for each in [place for place in self.stand_ins if isinstance(place, Place)]:
                stack.callback(each.put, each.get())
                each.put(self.stand_ins[each])
            for space, name in [(s, n) for s in spaces for n in own if n not in s]:
                stack.callback(space.pop, name, None)
                space[name] = own[name]
            stack.enter_context(replaced(*((*each, self._compute) for each in computed)))
            yield
        for each in (*self.stand_ins.values(), *self.items):
            if each.error is not None:  # which the user's code may have caught
                raise each.error

    def _compute(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        varies = not kwargs and any(map(is_varying, args)) and _are_numbers(args)
        return Derived(self, function, *args) if varies else function(*args, **kwargs)

    @property
    def read(self) -> set[What]:
        """The numbers whose values were computed with."""
        return {what for what, each in self.stand_ins.items() if each.error is not None}

    def followed(self, names: Collection[str]) -> Followed:
        """Return the numbers for a program that has slots of the given names."""
        used = {name: each for each, name, _ in self._made.values() if name in names}
        return Followed(used, self.stand_ins.values(), self.conditions.values())


class Followed:
    """The slots of varying numbers in a program that runs.

    Args:
        numbers: those with slots, by the names of these.
        free: all that the program does not depend on, except on their types.
        conditions: as in ``Slots``.
    """

    def __init__(
        self,
        numbers: Mapping[str, Varying],
        free: Collection[Unread],
        conditions: Iterable[tuple[Varying, bool | None]],
    ):
        self._numbers = [(name, each.kind, each.now) for name, each in numbers.items()]
        self._kinds = [(each.kind, each.now) for each in free]
        self._elements = [each.what for each in free if isinstance(each.what, Element)]
        self._conditions = [*conditions]
        self.values = {name: float(each.number) for name, each in numbers.items()}

    def follow(self, leaves: Sequence[Any], write: Callable[[str, float], None]) -> bool:
        """Write the numbers of a call to slots; return whether they have the types for it."""
        if not (self.values or self._kinds or self._conditions):  # as nearly always
            return True
        for each in self._elements:
            each.look()
        try:
            if any(type(now(leaves)) is not kind for kind, now in self._kinds):
                return False
            if any(bool(e.now(leaves)) is not t and t is not None for e, t in self._conditions):
                return False
            values = [now(leaves) for _, _, now in self._numbers]
        except (ArithmeticError, LookupError, TypeError, ValueError):  # the call will say so
            return False
        for (name, kind, _), value in zip(self._numbers, values, strict=True):
            if type(value) is not kind or not _fits(kind, value):
                return False
            before = self.values[name]
            if value != before or math.copysign(1, value) != math.copysign(1, before):
                self.values[name] = float(value)
                write(name, float(value))
        return True
