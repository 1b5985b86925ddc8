"""Instrumented generated code: the same C++ with a clock read between its units."""

from __future__ import annotations

import ctypes
import itertools
import re
import time
from collections.abc import Callable, Collection, Sequence

import torch

from abele.program import Program
from abele.targets.base import Clocked, Compiled
from abele.targets.cpu.emitted.calling import Calling
from abele.targets.cpu.emitted.channel_blocking import ChannelBlocks
from abele.targets.cpu.emitted.run import Runner
from abele.targets.cpu.emitted.source import COST, MOMENTS, Segment
from abele.targets.index_checks import checked
from abele.targets.kernel_choice import LOOP, TORCH, Kernel
from abele.targets.translation.groups import Unit
from abele.targets.translation.operations import Call, ChannelCall, Foreign
from abele.targets.translation.places import Buffer

_LOOKS = 1000
_NAME = re.compile(r"(?:abele::)?(\w+)\s*[<(]")


def with_clocks(
    program: Program,
    calling: Calling,
    library: ctypes.CDLL,
    units: Sequence[Unit],
    kept: Collection[Buffer],
) -> Clocked:
    """Return a program's generated code as a callable that times each unit.

    Args:
        program: after the passes of the lowering.
        calling: the call plan.
        library: the instrumented code.
        units: in execution order.
        kept: buffers that are written to memory.
    """
    runner = _Runner(program, calling, library)
    return Clocked(
        run=checked(program, Compiled(runner.run)).run,
        kernels=tuple(kernel_of(unit, kept) for unit in units),
        times=runner.times,
        cost_ns=_cost_ns(library),
    )


class _Runner(Runner):
    """An instrumented executor of generated code that also times ATen calls."""

    def __init__(self, program: Program, calling: Calling, library: ctypes.CDLL):
        super().__init__(program, calling, library)
        self._called = parts = calling.parts
        self._foreign_times: dict[int, tuple[int, int]] = {}
        segments = [each.calls + 1 for each in parts if isinstance(each, Segment)]
        self._moments = (ctypes.c_int64 * max(1, sum(segments))).in_dll(library, MOMENTS)
        for index, part in enumerate(parts):
            if isinstance(part, Foreign):
                self._parts[index] = self._clocked(index)

    def _clocked(self, index: int) -> Callable[[int], None]:
        part = self._parts[index]

        def call(threads: int) -> None:
            began = time.perf_counter_ns()
            part(threads)
            self._foreign_times[index] = began, time.perf_counter_ns()

        return call

    def times(self) -> list[tuple[int, int]]:
        """Return the start and end time of each unit in the latest run."""
        times: list[tuple[int, int]] = []
        first = 0
        for index, part in enumerate(self._called):
            if isinstance(part, Foreign):
                times.append(self._foreign_times.get(index, (0, 0)))
                continue
            moments = self._moments[first : first + part.calls + 1]
            times += itertools.pairwise(moments)
            first += part.calls + 1
        return times


def kernel_of(unit: Unit, kept: Collection[Buffer]) -> Kernel:
    """Return a fused unit's operators, backend and bytes of memory traffic.

    Args:
        unit: the fused unit.
        kept: buffers that are written to memory.
    """
    nodes: dict[torch.fx.Node, None] = {}
    for operation in unit.operations:
        nodes |= dict.fromkeys(operation.nodes)
    return Kernel(what=who(unit), nodes=tuple(nodes), bytes=_bytes(unit, kept))


def who(unit: Unit) -> str:
    """Return a unit's backend: ``torch``, ``loop``, or the name of a kernel function."""
    operation = unit.operations[0]
    if isinstance(unit, ChannelBlocks) or isinstance(operation, ChannelCall):
        return "channels"
    if isinstance(operation, Foreign):
        return TORCH
    if not isinstance(operation, Call):
        return LOOP
    named = _NAME.search(operation.text.removeprefix("status |= "))
    return named.group(1) if named else "call"


def _bytes(unit: Unit, kept: Collection[Buffer]) -> int:
    """Return a unit's memory traffic in bytes, each buffer once, without registers."""
    pieces: dict[tuple[Buffer, int], int] = {}
    for operation in unit.operations:
        for place in (*operation.reads, *operation.writes):
            if place.buffer in kept:
                elements = min(place.size, place.buffer.size)
                key = place.buffer, place.offset
                pieces[key] = max(pieces.get(key, 0), elements * place.dtype.itemsize)
    return sum(pieces.values())


def _cost_ns(library: ctypes.CDLL) -> float:
    """Return the nanoseconds of one clock read in instrumented code."""
    function = getattr(library, COST)
    function.restype = ctypes.c_int64
    return min(function(_LOOKS) for _ in range(3)) / _LOOKS
