"""Generation of the CUDA C++ of a program's kernel launches."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence

from abele.targets.cuda.emitted.blocks import Blocks
from abele.targets.translation.groups import Unit
from abele.targets.translation.loops import Loop, LoopWriter
from abele.targets.translation.places import Buffer

#: Threads of a block, as in device.h.
THREADS = 256
# Each thread computes so many elements of launches that fill a GPU anyway.
_SEVERAL, _LARGE = 4, 1 << 19
# A kernel's arguments may take 4 KiB on all GPUs.
_MOST_POINTERS = 500
_LARGEST_INDEX = 2**31
_HEADERS = '#include "device.h"\n#include "functions.h"\n#include "convolutions.h"'
_NAME = "LAUNCH"  # of a kernel, until it has one
#: Buffer and offset in elements of a tensor, or a number.
Pointer = tuple[Buffer, int] | int


@dataclasses.dataclass(frozen=True)
class Launch:
    """A launch of a generated CUDA kernel.

    Attributes:
        name: of the kernel.
        blocks: number of thread blocks.
        pointers: contents of its argument, an array.
        units: the units that it computes.
    """

    name: str
    blocks: int
    pointers: Sequence[Pointer]
    units: Sequence[Unit]


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part of a kernel launch: one loop or device function call in some of the thread blocks.

    Attributes:
        kind: key of parts that run the same code on other tensors.
        body: CUDA code for a block; ``EACH`` stands for the elements per thread.
        size: of all blocks together: elements of a loop, columns of sums.
        of_block: part of ``size`` per block; None for the elements of its threads.
        pointers: contents of ``p`` in the body.
        unit: the unit that it computes.
    """

    kind: str
    body: str
    size: int
    of_block: int | None
    pointers: Sequence[Pointer]
    unit: Unit

    def blocks(self, each: int) -> int:
        """Return the number of thread blocks if each thread computes ``each`` elements."""
        return -(-self.size // (self.of_block or THREADS * each))


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """The text of a generated CUDA kernel, with the names of the functions that it may call."""

    text: str
    functions: set[str]


class Writer:
    """A generator of all CUDA kernels of a program.

    Args:
        kept: buffers that are written to memory; other results of loops stay in registers.
    """

    def __init__(self, kept: Collection[Buffer]):
        self._kept = kept
        self._names: dict[str, str] = {}  # of functions, by their text
        self._kernels: list[_Kernel] = []
        self._launches: dict[str, str] = {}  # names of kernels, by their text without it

    def launches(self, units: Sequence[Unit]) -> list[Launch]:
        """Generate launches for independent units; usually a single one."""
        parts = sorted(map(self._part, units), key=lambda part: part.kind)
        parts = [part for part in parts if part.size]
        result: list[Launch] = []
        taken: list[_Part] = []
        for part in parts:
            if sum(len(each.pointers) for each in (*taken, part)) > _MOST_POINTERS:
                result.append(self._launch(taken))
                taken = []
            taken.append(part)
        return [*result, self._launch(taken)] if taken else result

    def texts(self, count: int) -> list[str]:
        """Return the kernels in at most ``count`` CUDA files, for parallel compilation."""
        return [self._text(kernels) for kernels in _divided(self._kernels, count)]

    def _text(self, kernels: Sequence[_Kernel]) -> str:
        used = {name for kernel in kernels for name in kernel.functions}
        named = ((name, text) for text, name in self._names.items() if name in used)
        functions = [text.replace("NAME", name, 1) for name, text in named]
        texts = [kernel.text for kernel in kernels]
        return "\n\n".join([_HEADERS, *functions, *texts]) + "\n"

    def _part(self, unit: Unit) -> _Part:
        operation = unit.operations[0]
        if isinstance(operation, Blocks):
            return _blocks(operation, unit)
        loop = LoopWriter(unit, self._kept).loop()
        largest = max([unit.size, *(buffer.size for buffer, _ in loop.pointers)])
        index = "int64_t" if largest >= _LARGEST_INDEX else "unsigned"
        name = self._names.setdefault(_function(loop, index), f"f{len(self._names)}")
        arguments = [f"({kind}*)p[{i}]" for i, kind in enumerate(loop.types)]
        call = f"{name}({', '.join([*arguments, f'{index}(i)'])});"
        body = f"abele::elements<EACH>(block, size, [&](int64_t i) {{ {call} }});"
        return _Part(name, body, unit.size, None, loop.pointers, unit)

    def _launch(self, parts: Sequence[_Part]) -> Launch:
        total = sum(part.size for part in parts if part.of_block is None)
        each = _SEVERAL if total >= _LARGE else 1
        lines: list[str] = []
        tables: list[str] = []
        pointers: list[Pointer] = []
        blocks = 0
        for _, group in itertools.groupby(parts, key=lambda part: part.kind):
            alike = list(group)
            counts = [part.blocks(each) for part in alike]
            blocks += sum(counts)
            if len(alike) == len(parts) and _are_equal(parts):
                lines = _equal(parts, each)
                pointers = [*(pointer for part in parts for pointer in part.pointers)]
                pointers += [counts[0], parts[0].size]
                break
            table = f"{_NAME}_{len(tables)}"
            lines += _alike(alike, counts, len(pointers), each, table)
            tables += [_table(alike, counts, table)] if len(alike) > 1 else []
            pointers += [pointer for part in alike for pointer in part.pointers]
        head = f'extern "C" __global__ void __launch_bounds__({THREADS}) {_NAME}('
        given = f"    const __grid_constant__ abele::Pointers<{len(pointers)}> all) {{"
        begin = "  unsigned block = blockIdx.x;"
        text = "\n".join([*tables, head, given, begin, *lines, "}"])
        name = self._named(text, {part.kind for part in parts})
        return Launch(name, blocks, pointers, [part.unit for part in parts])

    def _named(self, text: str, functions: set[str]) -> str:
        """Return the name of a kernel by its text; equal layers share a kernel."""
        if text not in self._launches:
            name = self._launches[text] = f"launch_{len(self._kernels)}"
            self._kernels.append(_Kernel(text.replace(_NAME, name), functions))
        return self._launches[text]


def _are_equal(parts: Sequence[_Part]) -> bool:
    """Return whether launch parts have equal sizes that fit a 32-bit kernel argument."""
    return len({part.size for part in parts}) == 1 and parts[0].size < _LARGEST_INDEX


def _equal(parts: Sequence[_Part], each: int) -> list[str]:
    """Return CUDA code of equal-sized launch parts, whose size is a kernel argument.

    Args:
        parts: with block count and size after the pointers in the argument.
        each: elements per thread.
    """
    step = len(parts[0].pointers)
    at = step * len(parts)
    return [
        f"  const unsigned of_part = abele::number(all.at[{at}]), part = block / of_part;",
        f"  void* const* p = all.at + part * {step};",
        f"  const int64_t size = abele::number(all.at[{at + 1}]);",
        "  block -= part * of_part;",
        f"  {parts[0].body.replace('EACH', str(each), 1)}",
    ]


def _alike(
    parts: Sequence[_Part], counts: Sequence[int], at: int, each: int, table: str
) -> list[str]:
    """Return CUDA code that runs launch parts which differ only in tensors and size.

    Args:
        parts: parts of one kind.
        counts: thread blocks of each part.
        at: index of their first pointer.
        each: elements per thread.
        table: name of the ``_table`` of several parts.
    """
    first = parts[0]
    find = [f"    void* const* p = all.at + {at};", f"    const int64_t size = {first.size};"]
    if len(parts) > 1:
        find = [
            f"    const unsigned part = abele::part_of(first_{table}, {len(parts)}, block);",
            f"    void* const* p = all.at + {at} + part * {len(first.pointers)};",
            f"    const int64_t size = size_{table}[part];",
            f"    block -= first_{table}[part];",
        ]
    body = first.body.replace("EACH", str(each), 1)
    condition = f"  if (block < {sum(counts)}) {{"
    return [condition, *find, f"    {body}", "    return;", "  }", f"  block -= {sum(counts)};"]


def _table(parts: Sequence[_Part], counts: Sequence[int], name: str) -> str:
    """Return constant CUDA arrays with the first block and the size of each launch part."""
    begins = [0, *itertools.accumulate(counts)][:-1]
    return (
        f"__constant__ unsigned first_{name}[] = {{{', '.join(map(str, begins))}}};\n"
        f"__constant__ int64_t size_{name}[] = {{{', '.join(str(part.size) for part in parts)}}};"
    )


def _divided(kernels: Sequence[_Kernel], count: int) -> list[list[_Kernel]]:
    """Divide kernels into groups of about equal text length."""
    groups: list[list[_Kernel]] = [[] for _ in range(count)]
    for kernel in sorted(kernels, key=lambda each: -len(each.text)):
        min(groups, key=lambda group: sum(len(each.text) for each in group)).append(kernel)
    return [group for group in groups if group]


def _blocks(operation: Blocks, unit: Unit) -> _Part:
    places = (*operation.reads, *operation.writes)
    pointers = [*((place.buffer, place.offset) for place in places), *operation.numbers]
    body = operation.body
    return _Part(body, body, operation.size, operation.of_block, pointers, unit)


def _function(loop: Loop, index: str) -> str:
    """Return the CUDA function that computes one element of a loop."""
    arguments = [f"{name}* __restrict__ p{i}" for i, name in enumerate(loop.types)]
    lines = [f"ABELE_INLINE void NAME({', '.join([*arguments, f'const {index} i'])}) {{"]
    rest = "i"
    for d in reversed(range(1, len(loop.shape))):
        lines.append(
            f"  const {index} i{d} = {rest} % {loop.shape[d]}, r{d} = {rest} / {loop.shape[d]};"
        )
        rest = f"r{d}"
    if loop.shape:
        lines.append(f"  const {index} i0 = {rest};")
    return "\n".join([*lines, *(f"  {line}" for line in loop.body), "}"])
