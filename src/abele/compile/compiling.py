"""Every program of an executable through its lowering: what this process or another one does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from abele.compile import executable
from abele.compile.executable import Executable
from abele.errors import TargetError
from abele.program import Program
from abele.targets import Target
from abele.targets.base import Compiled


def compile_programs(
    target: Target,
    programs: Sequence[Program],
    parts: Mapping[str, Any],
    begins: Callable[[int, str], None] = lambda index, name: None,
) -> Executable:
    """Compiles programs after all passes.

    Args:
        target: what they are for.
        programs: lowered.
        parts: see ``executable.key_parts``; they name each program's lowering.
        begins: told of each program's index and name.

    Raises:
        TargetError: the target cannot compile here.
        CompilerError: the compiler behind the target failed.
    """
    reason = target.cannot_compile()
    if reason is not None:
        raise TargetError(f"Target {target.name!r} cannot compile: {reason}")
    compiled: dict[str, Compiled] = {}
    for index, program in enumerate(programs):
        begins(index, program.name)
        lowering = target.lowering(parts["lowerings"][program.name])
        compiled[program.name] = lowering.compile(program)
    return Executable(
        key=executable.key_of(parts),
        key_parts=parts,
        programs=tuple(programs),
        compiled=compiled,
        target=target,
    )
