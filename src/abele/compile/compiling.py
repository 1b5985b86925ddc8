"""Every program of an executable through its lowering: what this process or another one does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from abele import passes
from abele.compile import estimates, executable, measuring
from abele.compile.executable import ChosenLowering, Executable
from abele.compile.measuring import Clocked, Way
from abele.errors import CompilerError, TargetError
from abele.program import Program
from abele.targets import Target
from abele.targets.base import Compiled


def compile_programs(
    target: Target,
    programs: Sequence[Program],
    parts: Mapping[str, Any],
    begins: Callable[[int, str], None] = lambda index, name: None,
    clocked: Clocked | None = None,
) -> Executable:
    """Compiles programs after all passes.

    Args:
        target: what they are for.
        programs: lowered, or before the passes of lowerings where several are to be measured.
        parts: see ``executable.key_parts``; they name each program's lowerings.
        begins: told of each program's index and name.
        clocked: runs a program and says how long that took; by default, the clock does.

    Raises:
        TargetError: the target cannot compile here.
        CompilerError: the compiler behind the target failed.
    """
    reason = target.cannot_compile()
    if reason is not None:
        raise TargetError(f"Target {target.name!r} cannot compile: {reason}")
    lowered: list[Program] = []
    compiled: dict[str, Compiled] = {}
    chosen: dict[str, ChosenLowering] = {}
    for index, program in enumerate(programs):
        begins(index, program.name)
        names = executable.lowerings_of(parts, program.name)
        if len(names) == 1:
            way = _compiled(target, program, names[0])
        else:
            way, chosen[program.name] = _fastest(target, program, names, clocked)
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
    )


def _compiled(target: Target, program: Program, name: str) -> Way:
    lowering = target.lowering(name)
    # What is made once per machine is no part of what a program takes.
    if not lowering.compiles or target.unprepared_s():
        return Way(name=name, program=program, compiled=lowering.compile(program))
    with estimates.noted(program, name, target.describe()):
        return Way(name=name, program=program, compiled=lowering.compile(program))


def _fastest(
    target: Target, program: Program, names: Sequence[str], clocked: Clocked | None
) -> tuple[Way, ChosenLowering]:
    """The fastest of several lowerings, all of which are compiled."""
    began = time.perf_counter()
    ways: list[Way] = []
    for name in names:
        lowered = passes.run_only(program, target.lowering(name).passes)
        if (lowered.inputs, lowered.outputs) != (program.inputs, program.outputs):
            continue  # interpreted steps could not be followed by it
        with contextlib.suppress(CompilerError) if ways else contextlib.nullcontext():
            ways.append(_compiled(target, lowered, name))
    way, times = measuring.fastest(ways, time.perf_counter() - began, clocked)
    return way, ChosenLowering(name=way.name, reason=times)
