"""Every program of an executable through its lowering: what this process or another one does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import Any

from abele import passes
from abele.compile import estimates, executable, measuring
from abele.compile.executable import ChosenLowering, Executable
from abele.compile.measuring import Clocked, Way
from abele.errors import CompilerError, CorruptExecutable, ProgramError, TargetError
from abele.program import Program
from abele.targets import Target
from abele.targets.base import Compiled

#: Programs that have been compiled, by their names and those of the lowerings that did; each raises
#: ``CompilerError`` where the compiler failed.
Ready = Mapping[tuple[str, str], Callable[[], Way]]

_FOLDERS = (
    "Compiling needs a temporary folder (TMPDIR) and a cache (XDG_CACHE_HOME, else ~/.cache) that "
    "can be written and have free space."
)


def compile_programs(
    target: Target,
    programs: Sequence[Program],
    parts: Mapping[str, Any],
    begins: Callable[[int, str], None] = lambda index, name: None,
    clocked: Clocked | None = None,
    ready: Ready | None = None,
) -> Executable:
    """Compiles programs after all passes.

    Args:
        target: what they are for.
        programs: before the passes of lowerings.
        parts: see ``executable.key_parts``; they name each program's lowerings.
        begins: told of each program's index and name.
        clocked: runs a program and says how long that took; by default, the clock does.
        ready: what need not be compiled any more.

    Raises:
        TargetError: the target cannot compile here.
        CompilerError: the compiler behind the target failed.
    """
    named = {name for each in programs for name in executable.lowerings_of(parts, each.name)}
    reason = target.cannot_compile(named)
    if reason is not None:
        raise TargetError(f"Target {target.name!r} cannot compile: {reason}")
    lowered: list[Program] = []
    compiled: dict[str, Compiled] = {}
    chosen: dict[str, ChosenLowering] = {}
    for index, program in enumerate(programs):
        begins(index, program.name)
        names = executable.lowerings_of(parts, program.name)
        ways = _ways(target, program, names, ready or {})
        if len(names) == 1:
            (way,) = ways
        else:
            way, chosen[program.name] = _fastest(ways, clocked)
            measuring.return_memory()
        lowered.append(way.program)
        compiled[program.name] = way.compiled
    return Executable(
        key=executable.key_of(parts),
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
    """What of what is made once per machine the programs need; nothing where all is there.

    Args:
        target: what they are for.
        programs: before the passes of lowerings.
        parts: see ``executable.key_parts``.

    Returns:
        names that the target knows; None: all.
    """
    if not target.unprepared_s():
        return frozenset()
    needed = set[str]()
    with passes.one_after_the_other():
        for program in programs:
            for name in executable.lowerings_of(parts, program.name):
                lowering = target.lowering(name)
                at_most = lowering.may_need(program)
                if at_most is None:
                    return None
                if target.unprepared_s(at_most):
                    needed.update(lowering.needs(lowered_by(target, program, name)))
    return needed


def _compiled(target: Target, program: Program, name: str) -> Way:
    lowering = target.lowering(name)
    if not lowering.compiles:
        return Way(name=name, program=program, compiled=lowering.compile(program))
    with estimates.noted(program, name, target.describe()):
        return Way(name=name, program=program, compiled=lowering.compile(program))


def lowered_by(target: Target, program: Program, name: str) -> Program:
    """The program after the passes of one of its lowerings.

    Args:
        target: has the lowering.
        program: before the passes of lowerings.
        name: of the lowering.

    Raises:
        ProgramError: it takes or gives something else then, so that it could not follow
            interpreted steps.
    """
    lowered = passes.run_only(program, target.lowering(name).passes)
    if (lowered.inputs, lowered.outputs) != (program.inputs, program.outputs):
        raise ProgramError(
            f"Program {program.name!r} takes or gives something else after the passes of lowering "
            f"{name!r} than before."
        )
    return lowered


def _ways(target: Target, program: Program, names: Sequence[str], ready: Ready) -> Generator[Way]:
    """The program as each lowering compiles it; the first that can has to."""
    some = False
    for name in names:
        with contextlib.suppress(CompilerError) if some else contextlib.nullcontext():
            yield _way(target, program, name, ready)
            some = True


def _way(target: Target, program: Program, name: str, ready: Ready) -> Way:
    try:
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
            f"written: {error}. {_FOLDERS}"
        ) from error


def _fastest(each: Iterable[Way], clocked: Clocked | None) -> tuple[Way, ChosenLowering]:
    """The fastest of several lowerings, all of which are compiled."""
    began = time.perf_counter()
    ways = list(each)
    way, times = measuring.fastest(ways, time.perf_counter() - began, clocked)
    return way, ChosenLowering(name=way.name, reason=times)
