"""Generation of a program's C++ source file."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from abele.targets.cpu.emitted import headers
from abele.targets.cpu.emitted.calls import products
from abele.targets.cpu.emitted.channel_blocking import ChannelBlocks
from abele.targets.cpu.emitted.gemm_epilogues import GemmWithEpilogue
from abele.targets.cpu.emitted.memory import used_by
from abele.targets.translation import loops
from abele.targets.translation.groups import Unit
from abele.targets.translation.operations import Call, ChannelCall, Foreign
from abele.targets.translation.places import Buffer, Kind, Place
from abele.targets.translation.pointwise import NAMES

REPEAT = "abele_repeat"  # a function: several runs, of programs that are one segment
_VISIBLE = '__attribute__((visibility("default")))'
MOMENTS = "abele_moments"
COST = "abele_moments_cost"  # a function: ns that so many looks at the clock take
_COST = f"""extern "C" {_VISIBLE} Index {COST}(int looks) {{
  const Index began = abele::moment();
  for (int look = 1; look < looks; ++look) abele::moment();
  return abele::moment() - began;
}}"""

# Compilers need more than twice as long for a function that is twice as long.
_LONGEST = 32  # units
# What ``kernels.h`` takes by reference. Where it is written at each call, each call copies it.
_DESCRIPTION = re.compile(
    r"\bAbele(?:Product|Clamped|Attention|Recurrent|Conv|Depthwise|Pool)\{[^{}]*\}"
)
_FLUSHED = "const abele::FloatMode mode = abele::FloatMode::flushed();"
_REPEAT = f"""extern "C" {_VISIBLE} int {REPEAT}(
    char* arena, void** table, int threads, Index times, Index changing, const Index* entries,
    void* const* addresses, Index* moments) {{
  return abele::repeat(SEGMENT, arena, table, threads, times, changing, entries, addresses,
                       moments);
}}"""
# Programs that prepare constants have this kernel, for ``Changes``.
_CHECKSUM = "static auto* const checksum [[maybe_unused]] = &abele_checksum;"


@dataclasses.dataclass(frozen=True)
class Segment:
    """A generated C++ function that runs the units between two ATen calls.

    Attributes:
        name: of the function.
        calls: number of units.
        constants: positions of the inputs of which it computes what following segments read: it
            runs when these have changed. None for a segment that runs in each call.
    """

    name: str
    calls: int
    constants: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Source:
    """A program as generated C++ text and ATen calls.

    Attributes:
        text: the C++ source.
        parts: segments and ATen calls, in execution order.
        table: the buffer for each entry of the pointer table.
        kernels: number of loop functions.
    """

    text: str
    parts: Sequence[Segment | Foreign]
    table: Sequence[Buffer]
    kernels: int


def write(
    once: Sequence[Unit],
    units: Sequence[Unit],
    offsets: dict[Buffer, int],
    kept: Collection[Buffer],
    *,
    clocked: bool = False,
    subnormals: bool = False,
) -> Source:
    """Generate the C++ file of a program from its fused units.

    Args:
        once: units that run when constants have changed, before the others; see ``prepared``.
        units: in execution order.
        offsets: byte offset of each buffer in the arena.
        kept: buffers that are written to memory; other results of loops stay in registers.
        clocked: record timestamps in an array ``MOMENTS``: for each segment, its start and the end
            of each unit.
        subnormals: compute with subnormal numbers; else they are flushed to zero.
    """
    return _Writer(offsets, kept, clocked, subnormals).source(once, units)


def _inputs_of(units: Sequence[Unit]) -> tuple[int, ...]:
    read = {buffer for unit in units for buffer in used_by(unit)}
    return tuple(sorted(buffer.index for buffer in read if buffer.kind is Kind.INPUT))


class _Writer:
    def __init__(
        self,
        offsets: dict[Buffer, int],
        kept: Collection[Buffer],
        clocked: bool,
        subnormals: bool,
    ):
        self._offsets, self._kept, self._clocked = offsets, kept, clocked
        self._first = [] if subnormals else [_FLUSHED]
        self._moments = 0
        self._names: dict[str, str] = {}  # of functions, by their text
        self._table: dict[Buffer, int] = {}

    def source(self, once: Sequence[Unit], units: Sequence[Unit]) -> Source:
        clocked = self._clocked
        parts: list[Segment | Foreign] = []
        bodies: list[str] = []
        lines: list[str] = []

        def end_segment(constants: tuple[int, ...] | None = None) -> None:
            if lines:
                name = f"abele_segment_{len(bodies)}"
                timed = self._with_clocks(lines) if clocked else lines
                bodies.append(_segment(name, self._first, timed))
                parts.append(Segment(name, len(lines), constants))
                lines.clear()

        lines += map(self._line, once)
        end_segment(_inputs_of(once))
        for unit in units:
            operation = unit.operations[0]
            if isinstance(operation, Foreign):
                end_segment()
                parts.append(operation)
            else:
                lines.append(self._line(unit))
        end_segment()
        functions = [text.replace("NAME", name, 1) for text, name in self._names.items()]
        each_time = [p for p in parts if isinstance(p, Foreign) or p.constants is None]
        if len(each_time) == 1 and isinstance(each_time[0], Segment) and not clocked:
            bodies.append(_REPEAT.replace("SEGMENT", each_time[0].name))
        includes = [f'#include "{name}"' for name in headers.NAMES]
        begin = ["\n".join(includes), "using abele::Index;", *([_CHECKSUM] if once else [])]
        if clocked:
            array = f"Index {MOMENTS}[{max(1, self._moments)}]"
            begin += [f'extern "C" {{ {_VISIBLE} {array}; }}', _COST]
        text = "\n\n".join([*begin, *functions, _with_constants("\n\n".join(bodies))])
        return Source(text + "\n", parts, list(self._table), len(functions))

    def _line(self, unit: Unit) -> str:
        """Return the C++ statement of a unit that is no ATen call."""
        operation = unit.operations[0]
        if isinstance(unit, ChannelBlocks):
            return self._by_channels(unit)
        if isinstance(unit, GemmWithEpilogue):
            return self._by_rows(unit)
        return self._call(operation) if isinstance(operation, Call) else self._loop(unit)

    def _with_clocks(self, lines: Sequence[str]) -> list[str]:
        first, looks = self._moments, list[str]()
        self._moments += len(lines) + 1
        for index in range(first, self._moments):
            looks.append(f"{MOMENTS}[{index}] = abele::moment();")
        return [looks[0], *(text for pair in zip(lines, looks[1:], strict=True) for text in pair)]

    def _pointer(self, buffer: Buffer, offset: int, kind: str) -> str:
        bytes_ = offset * buffer.dtype.itemsize
        if buffer.kind is Kind.ARENA:
            return f"({kind}*)(arena + {self._offsets.get(buffer, 0) + bytes_})"
        entry = self._table.setdefault(buffer, len(self._table))
        shift = f" + {bytes_}" if bytes_ else ""
        return f"({kind}*)((char*)table[{entry}]{shift})"

    def _loop(self, unit: Unit) -> str:
        kernel = loops.LoopWriter(unit, self._kept).kernel()
        if kernel.workers == 1:
            return self._run(kernel, "0", str(kernel.turns))
        name, pointers = self._named(kernel)
        given = ", ".join([str(kernel.workers), name, str(kernel.turns), "threads", *pointers])
        return f"abele::share_loop({given});"

    def _by_rows(self, unit: GemmWithEpilogue) -> str:
        product, rows = unit.product, unit.product.sizes[0]
        kernel = loops.LoopWriter(unit.loop, self._kept).kernel(by_rows=True)
        call = self._run(kernel, "begin", "end", {product.writes[0].buffer: "c"})
        loop = f"[&](const float* c, Index begin, Index end) {{ {call} }}"
        text = products.by_rows(product, kernel.turns // rows, "LOOP")
        factors = [self._place(place) for place in product.reads]
        return text.format(*factors).replace("LOOP", loop) + ";"

    def _by_channels(self, unit: ChannelBlocks) -> str:
        lines: list[str] = []
        # Each thread has the first block of its part of such memory, and writes over it again.
        inside = {
            each: f"({self._pointer(each, 0, 'float')} + {unit.shift})" for each in unit.inside
        }
        for each in unit.units:
            call = each.operations[0]
            if isinstance(call, ChannelCall):
                pointers = [
                    inside.get(place.buffer) or self._place(place) for place in call.pointers()
                ]
                lines.append(call.part.format(*pointers, apart=unit.apart(call.reads[0])) + ";")
            else:
                writer = loops.LoopWriter(each, self._kept, unit.images)
                kernel = writer.by_channels(inside, unit.block_size)
                lines.append(self._run(kernel, "begin", "end", inside))
        body = "\n".join(f"      {line}" for line in lines)
        channels, most = unit.images[1], unit.images[1] // unit.block
        return (
            f"abele::share<{most}>({channels}, threads, [&](Index first, Index last) {{\n"
            f"    for (Index begin = first; begin < last; begin += {unit.block}) {{\n"
            f"      const Index end = std::min<Index>(last, begin + {unit.block});\n"
            f"{body}\n    }}\n  }});"
        )

    def _run(
        self,
        kernel: loops.Kernel,
        begin: str,
        end: str,
        names: Mapping[Buffer, str] = MappingProxyType({}),
    ) -> str:
        """Return the C++ call of a loop's function; ``names`` overrides buffer pointers."""
        name, pointers = self._named(kernel, names)
        return f"{name}({', '.join([*pointers, begin, end])});"

    def _named(
        self, kernel: loops.Kernel, names: Mapping[Buffer, str] = MappingProxyType({})
    ) -> tuple[str, list[str]]:
        """Return the name of a loop's function, and its pointer arguments."""
        name = self._names.get(kernel.text)
        if name is None:
            name = self._names[kernel.text] = f"k{len(self._names)}"
        return name, [
            names.get(buffer) or self._pointer(buffer, offset, kind)
            for (buffer, offset), kind in zip(kernel.pointers, kernel.types, strict=True)
        ]

    def _call(self, call: Call) -> str:
        pointers = [self._place(place) for place in call.pointers()]
        return call.text.format(*pointers) + ";"

    def _place(self, place: Place) -> str:
        return self._pointer(place.buffer, place.offset, NAMES[place.dtype])


def _segment(name: str, first: list[str], lines: list[str]) -> str:
    """Return the C++ function of a segment, split into several functions if long."""
    parts: list[str] = []
    if len(lines) > _LONGEST:
        for begin in range(0, len(lines), _LONGEST):
            part = f"{name}_{len(parts)}"
            head = f"static __attribute__((noinline, noclone)) int {part}"
            parts.append(_function(head, lines[begin : begin + _LONGEST]))
        called = (f"{name}_{number}" for number in range(len(parts)))
        lines = [f"status |= {part}(arena, table, threads);" for part in called]
    return "\n".join([*parts, _function(f'extern "C" {_VISIBLE} int {name}', [*first, *lines])])


def _function(head: str, lines: list[str]) -> str:
    head += "(char* arena, void* const* table, int threads) {"
    return "\n".join(
        [head, "  int status = 0;", *(f"  {line}" for line in lines), "  return status;", "}"]
    )


def _with_constants(text: str) -> str:
    """Hoist size descriptors of kernel calls to static constants, deduplicated."""
    names: dict[str, str] = {}

    def name_of(described: re.Match[str]) -> str:
        return names.setdefault(described[0], f"d{len(names)}")

    text = _DESCRIPTION.sub(name_of, text)
    kinds = ((each.partition("{"), name) for each, name in names.items())
    lines = [f"static const {kind} {name} = {{{rest};" for (kind, _, rest), name in kinds]
    return "\n\n".join(["\n".join(lines), text] if lines else [text])
