"""Which of several lowerings of a program is the fastest here, by running each a few times.

Programs run on inputs that are made up, so nobody's state is touched, and random numbers are
afterwards as before. What is measured is bounded; where a run takes too long, nothing is measured.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch

from abele.program import Program, Role, Slot
from abele.targets.base import Compiled

# Whatever compiling took, this may be spent on first runs, which find no memory ready, and this on
# those that count, for which the first step waits; or this share of what compiling took.
_FIRST_BUDGET_S, _BUDGET_S, _SHARE = 0.5, 0.2, 0.1
_MOST_RUNS = 7
# What needs so many times the shortest time is not run again. Where one way is left, nothing is.
_HOPELESS = 2.0
# Runs that take longer together than may be spent are long. Of these, one whose first run took so
# much longer than the shortest is not run again: a first run of theirs loses less than that.
_LONG_HOPELESS = 1.33
# Another lowering is taken if it needs less than this share of the first one's time; after a
# single run of each that counts, less than the second.
_CLEARLY, _BY_ONE_RUN = 0.95, 0.75
# State that takes more memory is not made a second time.
_LARGEST_BYTES = 2**30

# Wall time of a run, in seconds, of a compiled program with its inputs.
Clocked = Callable[[Compiled, list[torch.Tensor]], float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Way:
    """A program that was lowered in one of several ways.

    Attributes:
        name: of the lowering.
        program: after its passes.
        compiled: what runs.
    """

    name: str
    program: Program
    compiled: Compiled


def seconds(compiled: Compiled, inputs: list[torch.Tensor]) -> float:
    """The wall time of one run."""
    began = time.perf_counter()
    compiled.run(inputs)
    return time.perf_counter() - began


def fastest(
    ways: Sequence[Way], compile_s: float, clocked: Clocked | None = None
) -> tuple[Way, str]:
    """The way to take, and the times that speak for it, in words.

    Args:
        ways: of the same program; the first is taken unless another is clearly faster.
        compile_s: how long compiling took; what may be spent depends on it.
        clocked: runs a program and says how long that took.
    """
    first = ways[0]
    size = sum(math.prod(slot.shape) * slot.dtype.itemsize for slot in first.program.inputs)
    if size > _LARGEST_BYTES:
        return first, f"not measured, because its inputs take {size / 2**30:.1f} GiB"
    random_state = torch.get_rng_state()
    try:
        share_s, clocked = _SHARE * compile_s, clocked or seconds
        inputs = made_up(first.program)
        cold = _first_times(ways, inputs, max(_FIRST_BUDGET_S, share_s), clocked)
        if len(cold) == 1:
            return first, f"not measured, because a run takes {cold[0]:.1f} s"
        ways = ways[: len(cold)]
        times = _times(ways, inputs, max(_BUDGET_S, share_s), clocked, cold)
        return _chosen(ways, times, clocked)
    # Some operators refuse values, such as a division by the zeros that were made up; the user's
    # own may suit them.
    except Exception as problem:  # noqa: BLE001 - whatever an operator raises
        return first, f"not measured, because made-up inputs do not suit it ({_in_short(problem)})"
    finally:
        torch.set_rng_state(random_state)


def _in_short(problem: Exception) -> str:
    first_line = str(problem).strip().partition("\n")[0]
    return f"{type(problem).__name__}: {first_line}" if first_line else type(problem).__name__


def _first_times(
    ways: Sequence[Way], inputs: list[torch.Tensor], budget_s: float, clocked: Clocked
) -> list[float]:
    """The time of a first run of each way, in seconds, of as many as the budget allows."""
    times: list[float] = []
    for way in ways:
        if sum(times) > budget_s:
            break
        times.append(clocked(way.compiled, list(inputs)))
    return times


def _times(
    ways: Sequence[Way],
    inputs: list[torch.Tensor],
    budget_s: float,
    clocked: Clocked,
    cold: Sequence[float],
) -> list[list[float]]:
    """Times of each way after its first, in seconds, in turns, while the budget lasts; one each."""
    times: list[list[float]] = [[] for _ in ways]
    are_long = sum(cold) > budget_s
    for _ in range(_MOST_RUNS):
        running = 0
        for way, each, first in zip(ways, times, cold, strict=True):
            shortest = min((min(one) for one in times if one), default=math.inf)
            if each and min(each) > _HOPELESS * shortest:
                continue
            if are_long and not each and first > _LONG_HOPELESS * shortest:
                each.append(first)
                continue
            if each and sum(map(sum, times)) + each[-1] > budget_s:
                return times
            each.append(clocked(way.compiled, list(inputs)))
            running += 1
        if running == 1 and len(ways) > 1:
            return times
    return times


def _chosen(ways: Sequence[Way], times: Sequence[list[float]], clocked: Clocked) -> tuple[Way, str]:
    """The way to take, from the times of each, and what speaks for it."""
    medians = [statistics.median(each) for each in times]
    best = min(range(len(ways)), key=medians.__getitem__)
    once = min(len(times[0]), len(times[best])) == 1
    if medians[best] >= (_BY_ONE_RUN if once else _CLEARLY) * medians[0]:
        best = 0
    if once and best:  # something may have disturbed the only run of the first
        inputs = made_up(ways[0].program)
        for index in (0, best):
            medians[index] = clocked(ways[index].compiled, list(inputs))
        if medians[best] >= _CLEARLY * medians[0]:
            best = 0
    return ways[best], _in_words(ways, medians)


def _in_words(ways: Sequence[Way], medians: Sequence[float]) -> str:
    order = sorted(zip(medians, ways, strict=True), key=lambda pair: pair[0])
    # In one unit, so that they can be compared; of the slow ones, no digit that says nothing.
    return "measured: " + ", ".join(f"{_ms(each)} ms {way.name}" for each, way in order)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f}" if seconds >= 1 else f"{seconds * 1e3:.3g}"


def return_memory() -> None:
    """Gives freed memory back to the system, where the C library can do that.

    Else what was measured and thrown away would count as memory of the run that follows.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; others have no such call
        if trim is not None:
            trim(0)


def made_up(program: Program) -> list[torch.Tensor]:
    """Inputs of the right shapes: small numbers, the first class or row, no empty variance."""
    generator = torch.Generator().manual_seed(0)
    return [_made_up(slot, generator) for slot in program.inputs]


def _made_up(slot: Slot, generator: torch.Generator) -> torch.Tensor:
    if not slot.dtype.is_floating_point:
        return torch.zeros(slot.shape, dtype=slot.dtype)
    if slot.role not in (Role.INPUT, Role.PARAMETER):  # most are an optimizer's state, as large
        value = 5e-4 if slot.role is Role.HYPER else 0.5
        return torch.full(slot.shape, value, dtype=slot.dtype)
    values = torch.rand(slot.shape, generator=generator, dtype=torch.float32)
    if slot.role is Role.PARAMETER:  # so that results of products stay of order one
        fan_in = math.prod(slot.shape[1:]) if len(slot.shape) > 1 else 1
        values = (values - 0.5) * (2 / math.sqrt(fan_in))
    return values.to(slot.dtype)
