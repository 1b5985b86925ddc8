"""Generation of C++ loops (one or nested) for fused elementwise operations."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Collection
from typing import cast

import torch

from abele.targets.translation.groups import Unit
from abele.targets.translation.operations import Pointwise
from abele.targets.translation.places import (
    Buffer,
    Kind,
    Place,
    broadcast_stride,
    contiguous_stride,
    is_contiguous,
)
from abele.targets.translation.pointwise import HALF, NAMES

# Waking a thread takes about as long as this many elements of a plain loop do.
_WORK_PER_THREAD = 8192
# Where the outermost loop has fewer iterations, such as those of a batch, threads share two loops.
_FEW_TURNS = 16
# Light updates of so many bytes stay with the thread that calls: other operations of few samples
# run there too, and what another thread wrote has to come from its cache.
_NEAR = 1 << 20
# A plain loop has so many operations; a function counts as so many, unless it is a comparison.
_PLAIN, _FUNCTION = 4, 8
_OF_TWO = "first", "last"  # of the second of two shared loops, for an iteration of the first
_LIGHT = re.compile(
    r"abele::(maximum|minimum|not_below|not_above|relu|magnitude|sign|whole_(sum|difference|product))\b"
    r"|std::(fabs|numeric_limits)\b"
)

# A loop is compiled once, whoever calls it: in each of its callers a compiler might join other
# products and sums to one operation, and so round otherwise.
LOOP = "static __attribute__((noinline, noclone)) void"

# Elements of 16 bits that are converted at a time: processors have instructions for that, but
# compilers do not use them in loops. What a loop reads of them stays in the first-level cache.
_BLOCK = 256
_LEAST_BLOCK = 64  # elements of an innermost loop

# Memory, the first element in it, and the strides with which a loop reads or writes it.
_Key = tuple[Buffer, int, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A generated C++ loop function, and the buffers that one call of it receives.

    Attributes:
        text: C++ of the function, named ``NAME``; equal texts are one function.
        pointers: buffer and offset in elements of each pointer argument.
        types: C++ type of each pointer, with const if it is only read.
        turns: iterations of the outermost loop, 0 without a loop.
        workers: maximum of useful threads.
    """

    text: str
    pointers: list[tuple[Buffer, int]]
    types: list[str]
    turns: int
    workers: int


@dataclasses.dataclass(frozen=True)
class Loop:
    """A fused loop nest before it becomes a function of C++ or CUDA.

    Attributes:
        shape: sizes of the loops, the outermost first; their indices are ``i0``, ``i1`` and so on.
        body: statements for one element, with pointers ``p0``, ``p1`` and so on.
        pointers: buffer and offset in elements of each pointer.
        types: C++ type of each pointer, with const if it is only read.
    """

    shape: list[int]
    body: list[str]
    pointers: list[tuple[Buffer, int]]
    types: list[str]


def goes_through_channels(unit: Unit, images: tuple[int, ...]) -> bool:
    """Return whether an elementwise unit can iterate over an NCHW shape."""
    return unit.size == math.prod(images) and unit.shape in (None, images)


class LoopWriter:
    """A generator of the loop nest of an elementwise unit.

    Args:
        unit: its operations are all ``Pointwise``.
        kept: buffers that are accessed outside the unit; other results stay in registers.
        shape: NCHW shape to iterate over; None for the shape of the unit.
    """

    def __init__(self, unit: Unit, kept: Collection[Buffer], shape: tuple[int, ...] | None = None):
        self._operations = cast("list[Pointwise]", unit.operations)
        self._shape = shape or (unit.shape if unit.shape is not None else (unit.size,))
        self._size, self._kept = unit.size, kept
        self._pointers: list[tuple[Buffer, int]] = []
        self._written: set[int] = set()
        # All elements are read before anything is computed. g++ 11.3 and 12.2 move a read that is
        # between two selections, as in relu(x) > 0 ? y : 0, into a branch of them, read y under a
        # mask, and where a short inner loop becomes several vectors they use the first one's mask
        # for all.
        self._loads: list[str] = []
        self._names = 0
        # Conversions before and after each block; None where elements are converted one by one.
        self._before: list[str] | None = None
        self._after: list[str] = []
        self._unrounded: dict[str, str] = {}  # registers before they were rounded to 16 bits
        # Registers that hold elements of float32 tensors through which the innermost loop goes.
        self._loaded: dict[str, Place] = {}
        # Registers that hold an element of a tensor: by its memory and where in it.
        self._values: dict[_Key, str] = {}

    def goes_through_rows(self, matrix: Place) -> bool:
        """Return whether a loop reads a contiguous matrix by rows, some iterations per row."""
        shape, by_access = self._turned()
        strides = [stride for key, stride in by_access.items() if key[0] is matrix.buffer]
        in_order = all(tuple(stride) == contiguous_stride(tuple(shape)) for stride in strides)
        return in_order and bool(shape) and shape[0] % matrix.shape[0] == 0

    def _turned(self, apart: int = 0) -> tuple[list[int], dict[_Key, list[int]]]:
        """Return loop sizes, the outermost first, and each tensor's strides in them.

        Args:
            apart: number of leading dimensions that are not merged with others.
        """
        accesses = self._accesses()
        strides = [self._stride(place) for place in accesses]
        shape, inner = _merged(self._shape[apart:], [stride[apart:] for stride in strides])
        return [*self._shape[:apart], *shape], {
            self._key(place): [*outer[:apart], *further]
            for place, outer, further in zip(accesses, strides, inner, strict=True)
        }

    def steps(self) -> list[tuple[Place, tuple[int, ...]]]:
        """Return a loop's tensors, with strides along each dimension of the shape."""
        return [(place, self._stride(place)) for place in self._accesses()]

    def by_channels(self, inside: Collection[Buffer], apart: int) -> Kernel:
        """Return a C++ loop function for channels from ``begin`` to ``end``.

        Args:
            inside: buffers with batch stride ``apart``.
            apart: batch stride in elements.
        """
        shape, by_access = self._turned(apart=2)
        for key, stride in by_access.items():
            if key[0] in inside:
                stride[0] = apart
        loop = self.loop(shape, by_access)
        text = _function(self._arguments(loop), loop.shape, loop.body, shared=1)
        return Kernel(text, loop.pointers, loop.types, loop.shape[1], 1)

    def _arguments(self, loop: Loop) -> list[str]:
        return [f"{name}* __restrict p{i}" for i, name in enumerate(loop.types)]

    def loop(
        self, shape: list[int] | None = None, by_access: dict[_Key, list[int]] | None = None
    ) -> Loop:
        """Return the loop nest before it becomes a function."""
        if shape is None or by_access is None:
            shape, by_access = self._turned()
        self._index = {key: _index(stride) for key, stride in by_access.items()}
        self._strides, self._depth = by_access, len(shape)
        lines = [line for each in self._operations for line in self._lines(each)]
        types = [
            NAMES[buffer.dtype] if i in self._written else f"const {NAMES[buffer.dtype]}"
            for i, (buffer, _) in enumerate(self._pointers)
        ]
        return Loop(shape, [*self._loads, *lines], self._pointers, types)

    def kernel(self, *, by_rows: bool = False) -> Kernel:
        """Return the loop nest as a C++ function.

        Args:
            by_rows: threads share the outermost loop, however few iterations it has.
        """
        if self._converts_in_blocks():
            self._before = []
        loop = self.loop()
        cost = len(self._operations) + _FUNCTION * sum(map(functions, loop.body))
        work = self._size * max(1, cost // _PLAIN)
        useful = work // _WORK_PER_THREAD
        turns = loop.shape[0] if loop.shape else 0
        plain = self._before is None and len(loop.shape) > 1 and not by_rows
        both = plain and turns < min(_FEW_TURNS, useful)
        if both:
            turns *= loop.shape[1]
        text = (
            _function(self._arguments(loop), loop.shape, loop.body, both=both)
            if self._before is None
            else self._function_in_blocks(loop, self._before)
        )
        near = self._updates() and cost == len(self._operations) and self._bytes() <= _NEAR
        workers = 1 if near else max(1, min(turns, useful))
        return Kernel(text, loop.pointers, loop.types, turns, workers)

    def _converts_in_blocks(self) -> bool:
        """Return whether the innermost loop has 16-bit tensors and goes through all in order."""
        shape, by_access = self._turned()
        narrow = [stride for key, stride in by_access.items() if key[0].dtype in HALF]
        long = len(shape) == 1 or bool(shape and shape[-1] >= _LEAST_BLOCK)
        return long and bool(narrow) and all(stride[-1] == 1 for stride in narrow)

    def _function_in_blocks(self, loop: Loop, before: list[str]) -> str:
        """Return C++ of a loop nest that converts 16 bits before and after blocks of elements."""
        inner = len(loop.shape) - 1
        begin, end = ("0", str(loop.shape[-1])) if inner else ("begin", "end")
        block = [
            f"for (Index first = {begin}; first < {end}; first += {_BLOCK}) {{",
            f"  const Index last = {end} - first < {_BLOCK} ? {end} : first + {_BLOCK};",
            *(f"  {line}" for line in before),
            "#pragma GCC ivdep",
            f"  for (Index i{inner} = first; i{inner} < last; ++i{inner}) {{",
            *(f"    {line}" for line in loop.body),
            "  }",
            *(f"  {line}" for line in self._after),
            "}",
        ]
        return _function(self._arguments(loop), loop.shape[:-1], block, innermost=False)

    def _converted(self, function: str, place: Place, kind: str, to: str) -> str:
        """Return C++ that converts a block of a tensor to an array of floats."""
        call = f"{function}<{kind}>({self._block_of(place)}, last - first, {to});"
        return f"float {to}[{_BLOCK}]; abele::{call}"

    def _block_of(self, place: Place) -> str:
        """Return C++ of the address of a tensor's first element in a block."""
        index = re.sub(rf"\bi{self._depth - 1}\b", "first", self._index[self._key(place)])
        return f"p{self._pointer(place)} + {index}"

    @property
    def _in_block(self) -> str:
        """C++ of the position of an element in its block."""
        return f"i{self._depth - 1} - first"

    def _updates(self) -> bool:
        """Return whether the loop writes an input slot (state)."""
        return any(each.result.buffer.kind is Kind.INPUT for each in self._operations)

    def _bytes(self) -> int:
        """Return the memory traffic of the loop in bytes."""
        places = {
            key: place for place in self._accesses() if (key := self._key(place))[0] in self._kept
        }
        return sum(place.size * place.dtype.itemsize for place in places.values())

    def _accesses(self) -> list[Place]:
        """Return all tensors that the loop may read or write, the first result first."""
        result: dict[_Key, Place] = {}
        for each in self._operations:
            for place in (each.result, *each.reads):
                result.setdefault(self._key(place), place)
        return list(result.values())

    def _key(self, place: Place) -> _Key:
        return place.buffer, place.offset, self._stride(place)

    def _stride(self, place: Place) -> tuple[int, ...]:
        return _steps(place.shape, place.stride, self._shape, self._size)

    def _lines(self, operation: Pointwise) -> list[str]:
        lines: list[str] = []
        texts = [
            self._element(operand, dtype) if isinstance(operand, Place) else operand
            for operand, dtype in zip(operation.operands, operation.types, strict=True)
        ]
        name = self._name()
        result = operation.result
        kind, value = NAMES[result.dtype], operation.expression(*texts)
        source = operation.operands[0] if operation.operands else None
        copied = [value] == texts[:1] and isinstance(source, Place) and source.dtype is result.dtype
        if copied and isinstance(source, Place):
            value = self._values[self._key(source)]  # a copy, which need not be rounded again
        if result.dtype in HALF and self._before is not None:
            return self._lines_in_block(result, name, value, copied=copied)
        if result.dtype in HALF and result.buffer not in self._kept and not copied:
            kind, value = "float", f"{kind}::rounded({value})"  # nothing stores the 16 bits
        lines.append(f"const {kind} {name} = {kind}({value});")
        self._values[self._key(result)] = name
        if result.buffer in self._kept:
            pointer = self._pointer(result)
            self._written.add(pointer)
            lines.append(f"p{pointer}[{self._index[self._key(result)]}] = {name};")
        return lines

    def _lines_in_block(self, result: Place, name: str, value: str, *, copied: bool) -> list[str]:
        """Return the lines that compute an element of 16 bits as a float, rounded when read."""
        assert self._before is not None
        kind, self._values[self._key(result)] = NAMES[result.dtype], name
        if copied:
            lines = [f"const float {name} = {value};"]
            self._unrounded[name] = self._unrounded.get(value, value)
        elif value in self._loaded:
            rounded = self._converted("round_all", self._loaded[value], kind, f"r{name}")
            self._before.append(rounded)
            lines = [f"const float {name} = r{name}[{self._in_block}];"]
            self._unrounded[name] = name
        else:
            lines = [f"const float {name}_ = {value};"]
            lines.append(f"const float {name} = {kind}::rounded({name}_);")
            self._unrounded[name] = f"{name}_"
        if result.buffer in self._kept:
            self._written.add(self._pointer(result))
            self._before.append(f"float w{name}[{_BLOCK}];")
            lines.append(f"w{name}[{self._in_block}] = {self._unrounded[name]};")
            call = f"narrow<{kind}>(w{name}, last - first, {self._block_of(result)});"
            self._after.append(f"abele::{call}")
        return lines

    def _element(self, place: Place, dtype: torch.dtype) -> str:
        key = self._key(place)
        if key not in self._values:
            name = self._name()
            pointer = self._pointer(place)
            kind, index = NAMES[place.dtype], self._index[key]
            if self._before is not None and place.dtype in HALF:
                self._before.append(self._converted("widen", place, kind, f"h{name}"))
                self._loads.append(f"const float {name} = h{name}[{self._in_block}];")
            else:
                self._loads.append(f"const {kind} {name} = p{pointer}[{index}];")
                if place.dtype is torch.float32 and self._strides[key][-1:] == [1]:
                    self._loaded[name] = place
            self._values[key] = name
        name = self._values[key]
        return name if place.dtype is dtype else f"{NAMES[dtype]}({name})"

    def _name(self) -> str:
        self._names += 1
        return f"v{self._names}"

    def _pointer(self, place: Place) -> int:
        wanted = (place.buffer, place.offset)
        if wanted not in self._pointers:
            self._pointers.append(wanted)
        return self._pointers.index(wanted)


@functools.lru_cache(maxsize=1 << 12)  # a program has few shapes, and asks often
def _steps(
    shape: tuple[int, ...], stride: tuple[int, ...], loop: tuple[int, ...], turns: int
) -> tuple[int, ...]:
    """Return the strides with which a loop of a shape iterates over a tensor."""
    size = math.prod(shape)
    if size == 1:
        return (0,) * len(loop)
    if shape != loop and size == turns and is_contiguous(shape, stride):
        stride = contiguous_stride(loop)
    else:
        stride = broadcast_stride(shape, stride, loop)
    return tuple(0 if n == 1 else s for n, s in zip(loop, stride, strict=True))


def functions(line: str) -> int:
    """Count the expensive function calls in a line of C++."""
    return _LIGHT.sub("", line).count("::")


def _merged(
    shape: tuple[int, ...], strides: list[tuple[int, ...]]
) -> tuple[list[int], list[list[int]]]:
    """Merge loop dimensions that are contiguous in all tensors, in the first tensor's order."""
    order = [d for d in range(len(shape)) if shape[d] != 1]
    order.sort(key=lambda d: -strides[0][d])
    sizes: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    for d in order:
        steps = [stride[d] for stride in strides]
        if sizes and all(m[-1] == step * shape[d] for m, step in zip(merged, steps, strict=True)):
            sizes[-1] *= shape[d]
            for each, step in zip(merged, steps, strict=True):
                each[-1] = step
        else:
            sizes.append(shape[d])
            for each, step in zip(merged, steps, strict=True):
                each.append(step)
    return sizes, merged


def _index(stride: list[int]) -> str:
    terms = [
        f"i{d}" if step == 1 else f"i{d} * {step}" for d, step in enumerate(stride) if step != 0
    ]
    return " + ".join(terms) or "0"


def _function(
    arguments: list[str],
    shape: list[int],
    body: list[str],
    *,
    shared: int = 0,
    innermost: bool = True,
    both: bool = False,
) -> str:
    """Return C++ of a loop nest whose loop number ``shared`` runs from ``begin`` to ``end``.

    Args:
        arguments: of the function.
        shape: sizes of the loops.
        body: statements for one element, or a loop.
        shared: number of the loop that threads share.
        innermost: the body is no loop.
        both: these are iterations of the two outermost loops together.
    """
    lines = [f"{LOOP} NAME({', '.join([*arguments, 'Index begin, Index end'])}) {{"]
    limits = [("0", str(size)) for size in shape]
    if shape and not both:
        limits[shared] = "begin", "end"
    if both:
        limits[:2] = (f"begin / {shape[1]}", f"(end + {shape[1] - 1}) / {shape[1]}"), _OF_TWO
    for d, size in enumerate(shape):
        if both and d == 1:
            lines.append(f"const Index before = i0 * {size};")
            lines.append("const Index first = begin > before ? begin - before : 0;")
            lines.append(f"const Index last = end - before < {size} ? end - before : {size};")
        if innermost and d == len(shape) - 1:
            lines.append("#pragma GCC ivdep")
        lines.append(f"for (Index i{d} = {limits[d][0]}; i{d} < {limits[d][1]}; ++i{d}) {{")
    lines += [f"  {line}" for line in body]
    lines += ["}"] * len(shape)
    return "\n".join([*lines, "}"])
