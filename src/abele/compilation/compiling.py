"""Compilation of all programs of an executable, and the measured choice between lowerings."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import Any

import torch

from abele import arena, passes
from abele.compilation import estimates, keys
from abele.compilation.executable import (
    ChosenLowering,
    Executable,
    ExecutableSource,
    lowerings_of,
)
from abele.errors import (
    AbeleError,
    CompilerError,
    CorruptExecutable,
    LoweringError,
    ProgramError,
    TargetError,
)
from abele.kernels.build import FOLDERS
from abele.program import Program, Role, Slot
from abele.step.config import StepConfig
from abele.targets import Target
from abele.targets.base import Compiled, Run
from abele.targets.candidates import considered
from abele.warn import warn_user

# Time budgets of measuring, in seconds: of first runs, which allocate memory, and of the runs that
# count, for which the first step waits; or this share of the compile time.
_FIRST_BUDGET_S, _BUDGET_S, _SHARE = 0.5, 0.2, 0.1
_MOST_RUNS = 7
# A shorter run is repeated for this long, in seconds, so that threads and caches are warm.
_SHORT_S = 2e-3
# A lowering that takes this many times the shortest time is not run again.
_HOPELESS = 2.0
# The limit for first runs where these exceed the time budget: allocation slows them down little.
_LONG_HOPELESS = 1.33
# Another lowering is chosen if it takes less than this share of the first candidate's time; the
# second share applies after a single counted run of each.
_CLEARLY, _BY_ONE_RUN = 0.95, 0.75
# Larger state is not allocated a second time for measuring.
_LARGEST_BYTES = 2**30

# Wall time of a run, in seconds, of a compiled program with its inputs.
Clocked = Callable[[Compiled, list[torch.Tensor]], float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Way:
    """A program compiled by one of several lowerings.

    Attributes:
        program: after its passes.
        compiled: what runs.
    """

    name: str
    program: Program
    compiled: Compiled


def seconds(compiled: Compiled, inputs: list[torch.Tensor], *, adopts: bool = False) -> float:
    """Return the wall time of a run of a compiled program, in seconds: of short ones, the median.

    Short runs pack their constants once, as sessions with such a ``StepConfig.adopts`` do.
    """
    once = _seconds(compiled.run, inputs)
    if once > _SHORT_S:
        return once
    run = compiled.with_state(inputs, adopted=adopts)
    _seconds(run, inputs)
    times = [_seconds(run, inputs)]
    while sum(times) < _SHORT_S:
        times.append(_seconds(run, inputs))
    return statistics.median(times)


def _seconds(run: Run, inputs: list[torch.Tensor]) -> float:
    given = list(inputs)
    began = time.perf_counter()
    run(given)
    return time.perf_counter() - began


def fastest(
    ways: Sequence[Way], compile_s: float, clocked: Clocked | None = None
) -> tuple[Way, str]:
    """Return the fastest lowering of a program, and the measured times as text."""
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
        return _chosen(ways, times, clocked, inputs)
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
    """Time a first run of each lowering, in seconds, as far as the time budget allows."""
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
    """Time further runs of the lowerings in turn, in seconds, within the time budget."""
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


def _chosen(
    ways: Sequence[Way],
    times: Sequence[list[float]],
    clocked: Clocked,
    inputs: Sequence[torch.Tensor],
) -> tuple[Way, str]:
    """Return the lowering with the shortest run, and the shortest runs of all as text.

    Other processes lengthen runs, and most of them on a busy machine.
    """
    shortest = [min(each) for each in times]
    best = min(range(len(ways)), key=shortest.__getitem__)
    once = min(len(times[0]), len(times[best])) == 1
    if shortest[best] >= (_BY_ONE_RUN if once else _CLEARLY) * shortest[0]:
        best = 0
    if once and best:  # something may have disturbed the only run of the first
        for index in (0, best):
            shortest[index] = clocked(ways[index].compiled, list(inputs))
        if shortest[best] >= _CLEARLY * shortest[0]:
            best = 0
    return ways[best], _in_words(ways, shortest)


def _in_words(ways: Sequence[Way], seconds_each: Sequence[float]) -> str:
    order = sorted(zip(seconds_each, ways, strict=True), key=lambda pair: pair[0])
    # In one unit, so that they can be compared; of the slow ones, no digit that says nothing.
    return "measured: " + ", ".join(f"{_ms(each)} ms {way.name}" for each, way in order)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f}" if seconds >= 1 else f"{seconds * 1e3:.3g}"


def return_memory() -> None:
    """Return freed heap memory, where the C library supports it, and idle arenas to the system.

    Else what was measured and thrown away would count as memory of the run that follows.
    """
    arena.release()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; others have no such call
        if trim is not None:
            trim(0)


def made_up(program: Program) -> list[torch.Tensor]:
    """Create synthetic inputs of a program: small numbers, index 0, no zero variance."""
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


# -- programs to be compiled ----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lowered:
    """Programs with their candidate lowerings, and the executable if one is stored.

    Attributes:
        programs: before the passes of lowerings.
        parts: of the executable's key; they name each program's lowerings.
        target: the target that runs the programs.
        config: how a call consumes its batch.
        stored: the executable, if it was there.
    """

    programs: Sequence[Program]
    parts: Mapping[str, Any]
    target: Target
    config: StepConfig
    cache: ExecutableSource | None
    stored: Executable | None

    @functools.cached_property
    def names(self) -> list[str]:
        """The names of all candidate lowerings of the programs."""
        each = (lowerings_of(self.parts, program.name) for program in self.programs)
        return sorted({name for names in each for name in names})

    @functools.cached_property
    def setup_seconds_left(self) -> float:
        """Processor seconds for kernels that are still to be compiled once per machine."""
        return self.target.setup_seconds_left(needed_once(self.target, self.programs, self.parts))

    @functools.cached_property
    def expected_s(self) -> float | None:
        """Estimated processor time of compilation, in seconds; None if unknown."""
        lowerings = {
            program.name: [
                name
                for name in lowerings_of(self.parts, program.name)
                if self.target.lowering(name).compiles
            ]
            for program in self.programs
        }
        programs = [considered(self.target, program) for program in self.programs]
        seconds = estimates.expected_s(programs, lowerings, self.parts["target"])
        return None if seconds is None else seconds + self.setup_seconds_left


def exchanges(config: StepConfig) -> bool:
    """Return whether a training step exchanges updates with other processes."""
    return config.training and config.processes > 1


# -- compiling -------------------------------------------------------------------------------

#: Compiled programs, by the names of program and lowering; a call raises ``CompilerError`` if the
#: compiler failed.
Ready = Mapping[tuple[str, str], Callable[[], Way]]


def compile_programs(
    target: Target,
    programs: Sequence[Program],
    parts: Mapping[str, Any],
    begins: Callable[[int, str], None] = lambda index, name: None,
    clocked: Clocked | None = None,
    ready: Ready | None = None,
) -> Executable:
    """Compile programs by their candidate lowerings, and keep the fastest of each.

    Args:
        target: the target of the code.
        programs: before the passes of lowerings.
        parts: see ``keys.key_parts``; they name each program's lowerings.
        begins: called with each program's index and name.
        clocked: runs a program and says how long that took; by default, the clock does.
        ready: programs that are compiled already.

    Raises:
        TargetError: the target cannot compile here.
        CompilerError: the compiler behind the target failed.
    """
    named = {name for each in programs for name in lowerings_of(parts, each.name)}
    reason = target.cannot_compile(named)
    if reason is not None:
        raise TargetError(f"Target {target.name!r} cannot compile: {reason}")
    slow = target.why_slow()
    if slow is not None:
        _warn_slow(slow)
    lowered: list[Program] = []
    compiled: dict[str, Compiled] = {}
    chosen: dict[str, ChosenLowering] = {}
    for index, program in enumerate(programs):
        begins(index, program.name)
        names = lowerings_of(parts, program.name)
        ways = _ways(target, program, names, ready or {})
        if len(names) == 1:
            (way,) = ways
        else:
            if clocked is None and parts["config"]["adopts"]:
                clocked = functools.partial(seconds, adopts=True)
            return_memory()  # of what runs meanwhile, which measuring takes again
            way, chosen[program.name] = _fastest(ways, clocked)
            return_memory()
        lowered.append(way.program)
        compiled[program.name] = way.compiled
    return Executable(
        key=keys.key_of(parts),
        key_parts=parts,
        programs=tuple(lowered),
        compiled=compiled,
        target=target,
        chosen=chosen,
        common=tuple(programs),
    )


def needed_once(
    target: Target, programs: Sequence[Program], parts: Mapping[str, Any]
) -> Collection[str] | None:
    """Return the kernels that programs need and this machine has not compiled yet.

    Returns:
        names that the target knows; None: all.
    """
    if not target.setup_seconds_left():
        return frozenset()
    needed = set[str]()
    with passes.one_after_the_other():
        for program in programs:
            for name in lowerings_of(parts, program.name):
                lowering = target.lowering(name)
                at_most = lowering.possible_kernels(program)
                if at_most is None:
                    return None
                if target.setup_seconds_left(at_most):
                    # A lowering that fails needs nothing; compiling the program says why it failed.
                    with contextlib.suppress(LoweringError), blamed(program, name):
                        needed.update(lowering.required_kernels(lowered_by(target, program, name)))
    return needed


@functools.cache
def _warn_slow(reason: str) -> None:
    """Warn that compiled programs are slow here, once per process."""
    warn_user(f"Compiled programs run, but slowly: {reason}.", RuntimeWarning)


@contextlib.contextmanager
def blamed(program: Program, lowering: str) -> Generator[None]:
    """Raise an unexpected exception of a lowering as ``LoweringError``, with the traceback as log.

    Errors for the user, warnings that are errors, and exhausted memory pass unchanged.
    """
    try:
        yield
    except Exception as error:
        meant = AbeleError, Warning, OSError, MemoryError, torch.OutOfMemoryError
        if isinstance(error, meant) and not isinstance(error, ProgramError):
            raise
        said = _in_short(error).removesuffix(".")
        raise LoweringError(
            f"Program {program.name!r} could not be compiled: lowering {lowering!r} failed with "
            f"{said}. This is a bug of abele: please report it, with the output of `abele doctor "
            "--json`.",
            traceback.format_exc(),
            lowering,
        ) from error


def _compiled(target: Target, program: Program, name: str) -> Way:
    lowering = target.lowering(name)
    if not lowering.compiles:
        return Way(name=name, program=program, compiled=lowering.compile(program))
    with estimates.noted(program, name, target.describe()):
        return Way(name=name, program=program, compiled=lowering.compile(program))


def lowered_by(target: Target, program: Program, name: str) -> Program:
    """Return a program after the passes of one of its lowerings.

    Raises:
        ProgramError: its inputs or outputs changed, so that it could not replace the
            interpreted program.
    """
    lowered = passes.run_only(program, target.lowering(name).passes)
    if (lowered.inputs, lowered.outputs) != (program.inputs, program.outputs):
        raise ProgramError(
            f"Program {program.name!r} takes or gives something else after the passes of lowering "
            f"{name!r} than before."
        )
    return lowered


def _ways(target: Target, program: Program, names: Sequence[str], ready: Ready) -> Generator[Way]:
    """Yield a program compiled by each candidate lowering; later lowerings may fail."""
    some = False
    for name in names:
        try:
            way = _way(target, program, name, ready)
        except CompilerError as error:
            if not some:
                raise
            if isinstance(error, LoweringError):
                warn_user(f"Lowering {name!r} is not timed. {error}", RuntimeWarning)
            continue
        some = True
        yield way


def _way(target: Target, program: Program, name: str, ready: Ready) -> Way:
    try:
        with blamed(program, name):
            if (program.name, name) in ready:
                return ready[program.name, name]()
            return _compiled(target, lowered_by(target, program, name), name)
    except CorruptExecutable as error:  # made a moment ago, so nothing is damaged
        raise CompilerError(
            f"Program {program.name!r} was compiled, and what the C++ compiler made does not load: "
            f"{error}"
        ) from error
    except OSError as error:
        raise CompilerError(
            f"Program {program.name!r} could not be compiled, because a file could not be read or "
            f"written: {error}. {FOLDERS}"
        ) from error


def _fastest(each: Iterable[Way], clocked: Clocked | None) -> tuple[Way, ChosenLowering]:
    """Return the fastest of several compiled lowerings, and the reason."""
    began = time.perf_counter()
    ways = list(each)
    way, times = fastest(ways, time.perf_counter() - began, clocked)
    return way, ChosenLowering(name=way.name, reason=times)
