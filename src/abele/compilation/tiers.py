"""Steps that are interpreted while another process compiles their programs.

Whether that is so, and why not, is decided here; any lowering that compiles may be the faster one.
Interpreted and compiled programs take the same tensors, so that no state moves when one takes over
from the other.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence

from abele.compilation import estimates, keys, start
from abele.compilation.cache import ExecutableCache
from abele.compilation.compiler_process import FromCompiler
from abele.compilation.compiling import Lowered, compile_programs, exchanges
from abele.compilation.estimates import wall_s
from abele.compilation.executable import (
    Announce,
    Executable,
    Later,
    Ready,
    Running,
)
from abele.compilation.start import Start
from abele.program import Program
from abele.step.config import StepConfig
from abele.targets import get_target
from abele.targets.base import COMPILED

#: The target that interprets: needs no compiler, and results are bitwise those of PyTorch.
INTERPRETING = "reference"
#: Compilation of at most this many seconds runs before the first step: in parallel with steps, it
#: would take several times as long and slow them down.
WORTH_WAITING_S = 1.25
_STORED = "stored"  # sent by a process that has loaded the programs
#: The reason for compiled first steps without waiting for a compiler.
COMPILED_BEFORE = "the programs were compiled before"


#: An all-gather of text: takes this process's, returns all processes' by rank.
Gather = Callable[[str], Sequence[str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """A caller's request for a start mode: how a program's first steps run.

    Attributes:
        start: if the programs and the machine allow it.
        announce: called with a sentence on what runs, at the start and at changes.
        gather: connects processes that train together; None for one process, or without a
            connection.
        at_once: also if compiling takes hardly longer than interpreting the first step.
    """

    start: Start = Start.WAIT
    announce: Announce = lambda text: None
    gather: Gather | None = None
    at_once: bool = False

    @classmethod
    def of(cls, asked: Start, announce: Announce, gather: Gather | None = None) -> Wanted:
        """Create a caller's request for a start mode, changed by the environment.

        A caller who waits has a reason, so the environment then changes it to ``interpret`` only.

        Raises:
            TargetError: the environment asks for something that does not exist.
        """
        start.check()
        requested = start.requested()
        at_once = requested is Start.TIERED or start.swap_at() is not None
        if requested is None or (asked is Start.WAIT and requested is Start.TIERED):
            requested = asked
        return cls(start=requested, announce=announce, gather=gather, at_once=at_once)

    def insisted(self) -> Wanted:
        """Return the start mode on a forced target: compiled, unless requested otherwise.

        Programs that cannot run there are an error of the first call, not of a later one.
        """
        if self.start is not Start.TIERED or self.at_once:
            return self
        return dataclasses.replace(self, start=Start.WAIT)


def decided(wanted: Wanted, lowered: Lowered) -> Running:
    """Decide how the first steps of this process run (interpreted or compiled), and why."""
    manner, reason = _manner(lowered), _why_wait(wanted, lowered)
    if reason is not None:
        return Running(start=Start.WAIT, why=reason, manner=manner)
    if wanted.start is Start.INTERPRET:
        return Running(start=Start.INTERPRET, why="as asked", manner=manner, interpreted=True)
    why = "steps run while another process compiles"
    if _is_ready(lowered):
        why = "the first step does not wait for the comparison of programs"
    running = Running(start=Start.TIERED, why=why, manner=manner, interpreted=True)
    if lowered.stored is not None:
        return running
    running.once, seconds = lowered.setup_seconds_left > 0, lowered.expected_s
    if seconds:
        running.processor_s = seconds
        running.expected_s = wall_s(seconds, once=running.once)
        running.began = time.monotonic()
    return running


def _manner(lowered: Lowered) -> str:
    """Return a phrase for how lowered programs run, such as ``are compiled``."""
    lowerings = [lowered.target.lowering(name) for name in lowered.names]
    if any(lowering.compiles or lowering.manner == COMPILED for lowering in lowerings):
        return COMPILED
    return " and ".join(lowering.manner for lowering in lowerings)


def _why_wait(wanted: Wanted, lowered: Lowered) -> str | None:
    target = lowered.target
    if wanted.start is Start.WAIT:
        return "as asked"
    # ABELE_SWAP_AT may name the update at which compiled programs take over.
    asked = start.swap_at() is not None and target.name != INTERPRETING
    if _is_ready(lowered) and not asked:
        trusted = all(target.lowering(name).trusted for name in lowered.names)
        if trusted or wanted.start is not Start.TIERED:
            return "nothing is compiled for these programs"
    if target.device() != get_target(INTERPRETING).device():
        return f"only the host interprets, and these programs run on {target.device()}"
    if wanted.start is Start.INTERPRET:
        return None
    if exchanges(lowered.config) and wanted.gather is None:
        return "processes that train together wait where they cannot agree"
    if exchanges(lowered.config) and start.swap_at() == 0:
        return f"{start.SWAP_AT}=0: processes that train together agree in an update before"
    if lowered.stored is not None:
        may_have_to_wait = start.swap_at() is not None or exchanges(lowered.config)
        return None if may_have_to_wait else COMPILED_BEFORE
    if _is_ready(lowered):  # the first result does not wait for the comparison
        return None
    return _why_no_worker(lowered) or (None if wanted.at_once else _why_not_worth_it(lowered))


def _is_ready(lowered: Lowered) -> bool:
    """Return whether programs run without a compiler, by kernels that exist already."""
    compiles = any(lowered.target.lowering(name).compiles for name in lowered.names)
    return not compiles and not lowered.setup_seconds_left


def _why_not_worth_it(lowered: Lowered) -> str | None:
    seconds = lowered.expected_s
    if seconds is None or seconds > WORTH_WAITING_S:
        return None
    return f"compiling takes {estimates.about(seconds)}, which is sooner than another process could"


def _why_no_worker(lowered: Lowered) -> str | None:
    if lowered.target.cannot_compile(lowered.names) is not None:
        return "there is no compiler"
    if lowered.cache is not None and not isinstance(lowered.cache, ExecutableCache):
        return "the programs come out of a file"
    return None if sys.executable else "it is unknown which program Python is"


def begun(lowered: Lowered, running: Running, announce: Announce) -> Executable | None:
    """Return interpreted programs to run now, with the compilation of their successors if wanted.

    Returns:
        None if compiled programs have to run from the start after all; ``running`` says why.

    Raises:
        TargetError: the environment names no number for the update at which to take over.
    """
    if running.start is not Start.TIERED:
        return interpreted(lowered.programs, lowered.config, None)
    later = _following(lowered, running, announce)
    if isinstance(later, str):
        running.start, running.why, running.interpreted = Start.WAIT, later, False
        return None
    return interpreted(lowered.programs, lowered.config, later)


def agreed(
    made: Executable | None, lowered: Lowered, running: Running, gather: Gather
) -> Executable | None:
    """Return the programs that run first, the same in all processes that train together.

    Programs of one bit more or less in one process would make the weights differ from then on. So
    all wait if one has to, all interpret if one is asked to, and none runs what it has cached
    before all can.
    """
    stored = lowered.stored is not None and start.swap_at() is None
    mine = _STORED if running.start is Start.TIERED and stored else str(running.start)
    each = [text.partition(": ") for text in gather(f"{mine}: {running.why}")]
    first = {kind: (rank, why) for rank, (kind, _, why) in reversed(list(enumerate(each)))}
    if set(first) == {_STORED}:
        return _instead(made, lowered, running, Start.WAIT, COMPILED_BEFORE)
    slowest = next((kind for kind in (Start.WAIT, Start.INTERPRET) if kind in first), None)
    if slowest is None or slowest is running.start:
        return made
    rank, why = first[slowest]
    return _instead(made, lowered, running, slowest, f"like process {rank}: {why}")


def _instead(
    made: Executable | None, lowered: Lowered, running: Running, kind: Start, why: str
) -> Executable | None:
    """Return the programs that run first because other processes start in another mode."""
    if made is not None and made.later is not None:
        made.later.close()
    running.start, running.why, running.interpreted = kind, why, kind is Start.INTERPRET
    if kind is Start.WAIT:
        return lowered.stored
    return None if made is None else dataclasses.replace(made, later=None)


def _following(lowered: Lowered, running: Running, announce: Announce) -> Later | str:
    """Start the background compilation; return it, or the reason why there is none."""
    at = start.swap_at()
    if lowered.stored is not None:
        return Ready(lowered.stored, running, at, announce)
    if _is_ready(lowered) and at is None:
        made = compile_programs(lowered.target, lowered.programs, lowered.parts)
        if made.is_proven():
            return "nothing is compiled for these programs"
        return Ready(made, running, at, announce, after_first=True)
    return FromCompiler(lowered, running, at, announce)


def interpreted(programs: Sequence[Program], config: StepConfig, later: Later | None) -> Executable:
    """Return an executable that runs programs by the interpreter."""
    target = get_target(INTERPRETING)
    (lowering,) = target.lowerings
    parts = keys.key_parts(
        programs, config, target, {program.name: lowering.name for program in programs}
    )
    return Executable(
        key=keys.key_of(parts),
        key_parts=parts,
        programs=tuple(programs),
        compiled={program.name: lowering.compile(program) for program in programs},
        target=target,
        later=later,
    )
