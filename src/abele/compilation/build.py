"""From captured programs to an executable: choose the target, lower, compile or load.

The candidate lowerings of a program are chosen once, between the common passes and those of the
lowering, and are part of the key. If there are several, all are compiled and the fastest by
measurement is used; the executable records it.

Nothing is silent here. The record says which target was chosen, why it is not another one, where
the executable came from and how long each part took.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from abele import cpython, passes, systems, variables
from abele._torch import checks
from abele.compilation import keys, tiers
from abele.compilation.compiling import (
    Lowered,
    compile_programs,
    exchanges,
    lowered_by,
    needed_once,
)
from abele.compilation.executable import (
    Announce,
    ChosenLowering,
    Executable,
    ExecutableSource,
    Proving,
    Running,
)
from abele.compilation.start import Start
from abele.compilation.tiers import Gather, Wanted
from abele.errors import CompilerError, LoweringError, TargetError
from abele.passes.rounded_products import rounded_products
from abele.passes.trap_exceptions import trap_exceptions
from abele.program import Program
from abele.step.config import MatmulPrecision, StepConfig
from abele.targets import ENVIRONMENT, Target, get_target, requested
from abele.targets.candidates import ENVIRONMENT as LOWERING
from abele.targets.candidates import RULES, candidates, considered
from abele.warn import warn_user

# The fallback of a target that cannot compile.
_SLOWER = {"cuda": "cpu"}
_LAST = "reference"  # interprets, so it needs no compiler

Progress = Callable[[str, float], None]


class FallbackWarning(UserWarning):
    """Programs run on another target than this machine's best one, or by another lowering."""


@dataclasses.dataclass(kw_only=True)
class BuildRecord:
    """The record of building an executable.

    Attributes:
        target: the target that runs.
        forced: the environment or the caller insisted on it.
        fallback: why the better target or lowering could not be used, if so.
        executable: hash of the executable.
        cache: ``off``, ``hit`` or ``miss``.
        why: on a miss, in which parts the nearest stored executable differs.
        lowerings: how each program is lowered and why, by its name; where several ways were
            measured, with their times.
        declined: for each program, why lowerings that come before that one do not take it, by their
            names.
        seconds: wall time by part: ``passes``, ``compile``, ``load``, ``store``, and ``wait`` for
            another process that compiled the same.
        log: file with the native compiler's output if it failed, or with a lowering's traceback.
        running: which programs run now, which changes when compiled ones take over.
    """

    target: str = ""
    forced: bool = False
    fallback: str | None = None
    executable: str = ""
    cache: str = "off"
    why: str | None = None
    lowerings: dict[str, ChosenLowering] = dataclasses.field(
        default_factory=dict[str, ChosenLowering]
    )
    declined: dict[str, dict[str, str]] = dataclasses.field(
        default_factory=dict[str, dict[str, str]]
    )
    seconds: dict[str, float] = dataclasses.field(default_factory=dict[str, float])
    log: str | None = None
    running: Running = dataclasses.field(default_factory=Running)

    @contextlib.contextmanager
    def timed(self, part: str) -> Generator[None]:
        """Add the wall time of a ``with`` block to one part of the build's seconds."""
        started = time.perf_counter()
        yield
        took = time.perf_counter() - started
        self.seconds[part] = self.seconds.get(part, 0.0) + took


def choose_target() -> tuple[Target, bool]:
    """Return the target to try first, and whether the environment forces it.

    Raises:
        TargetError: ``ABELE_TARGET`` names a target that cannot be used here.
    """
    name = requested()
    if name is not None:
        target = get_target(name)
        reason = target.unavailable()
        if reason is not None:
            raise TargetError(
                f"{ENVIRONMENT}={name} was asked for, but {reason} "
                f"Unset {ENVIRONMENT} to let abele choose."
            )
        return target, True
    # Without CUDA in torch, loading that target would be for nothing.
    is_usable = torch.version.cuda is not None and get_target("cuda").unavailable() is None
    return get_target("cuda" if is_usable else "cpu"), False


def choose_target_of(device: torch.device) -> tuple[Target, bool]:
    """Return the target for tensors that are on a device, and whether the environment forces it.

    Raises:
        TargetError: ``ABELE_TARGET`` names a target that cannot be used here, or not with them.
    """
    if device.type == "cpu" and requested() is None:
        return get_target("cpu"), False
    target, forced = choose_target()
    if target.device().type != device.type:
        raise TargetError(
            f"{ENVIRONMENT}={target.name} was asked for, but the tensors are on {device}. Unset "
            f"{ENVIRONMENT} to let abele choose."
        )
    return target, forced


@cpython.with_room
def build(
    programs: Sequence[Program],
    config: StepConfig,
    *,
    target: Target | None = None,
    device: torch.device | None = None,
    cache: ExecutableSource | None = None,
    log_folder: str | Path | None = None,
    progress: Progress = lambda stage, fraction: None,
    start: Start = Start.WAIT,
    announce: Announce = lambda text: None,
    gather: Gather | None = None,
) -> tuple[Executable, BuildRecord]:
    """Build an executable for the best target of this machine.

    Args:
        programs: as captured.
        config: the configuration they were captured with.
        target: use this one instead of choosing; no fallback then.
        device: choose a target that runs tensors of this device; None: any.
        cache: the source and store of executables between runs.
        log_folder: where a failing compiler's output goes; default a temporary folder.
        progress: called with each stage and the fraction done, as ``Observer.on_stage`` is.
        start: how the first steps run if nothing is cached; ``ABELE_START`` wins, except that a
            caller who waits is not made to start ``tiered``. ``BuildRecord.running`` says what
            was done and why. Where the target was forced, compiled programs that fail later are
            an error of the next step.
        announce: called with a sentence when compiled programs take over, or cannot, and before
            they are compiled again because they do not agree with interpreted ones.
        gather: connects the processes that share updates, which start alike; without it they wait
            for the compiler.

    Raises:
        TargetError: the requested target cannot be used, or the environment asks for something
            that does not exist.
        CompilerError: the compiler failed and the target was forced.
    """
    variables.warn_of_misspelt()
    record = BuildRecord(forced=target is not None)
    wanted = Wanted.of(start, announce, gather)
    if target is None:
        progress("choose the target", 0.05)
        chosen = choose_target() if device is None else choose_target_of(device)
        target, record.forced = chosen
        wanted = wanted.insisted() if record.forced else wanted
    while True:
        try:
            with cpython.uncollected():
                return _build_for(target, programs, config, cache, record, progress, wanted), record
        except TargetError as error:
            record.log = _write_log(error, log_folder)
            where = _where(error, record.log)
            if record.forced or target.name == _LAST:
                log = (error.log,) if isinstance(error, CompilerError) else ()
                raise type(error)(f"{error}{where}", *log) from None
            failed, target = target, _next_to(target, error)
            record.fallback = str(error)
            # Whoever comes here has compiled, so all processes have agreed to do so.
            wanted = dataclasses.replace(wanted, start=Start.WAIT, gather=None)
            if target.name == failed.name:
                cache = None  # the next process shall not find this and say nothing
            _warn_fallback(failed, target, f"{record.fallback}{where}")


def _build_for(
    target: Target,
    programs: Sequence[Program],
    config: StepConfig,
    cache: ExecutableSource | None,
    record: BuildRecord,
    progress: Progress,
    wanted: Wanted,
) -> Executable:
    record.target = target.name
    untried = checks.why_not_compiled()
    if untried is not None and target.name not in (_LAST, "null"):
        raise TargetError(untried)
    progress("passes", 0.1)
    with record.timed("passes"):
        common = [_common(each, config) for each in programs]
        parts = keys.key_parts(common, config, target)
        record.executable = keys.key_of(parts)
    cache = cache if target.cacheable else None
    lowered = Lowered(
        programs=common, parts=parts, target=target, config=config, cache=cache, stored=None
    )
    stored = _load(lowered, record)
    if stored is None:
        with record.timed("passes"):
            parts = {**parts, **_choice(target, common, config)}
    else:
        parts, record.executable = dict(stored.key_parts), stored.key
    lowered = dataclasses.replace(lowered, parts=parts, stored=stored)
    record.lowerings = {each.name: keys.reasons_of(parts, each.name) for each in common}
    record.declined = {name: dict(each) for name, each in parts.get("declined", {}).items()}
    if stored is None and _runs_uncompiled(lowered):
        # A process that has a compiler later shall not find this.
        lowered = dataclasses.replace(lowered, cache=None)
    running = record.running = tiers.decided(wanted, lowered)
    running.required = target.name if record.forced else None
    running.lowerings = record.lowerings
    made = _begun(lowered, record, wanted) if running.interpreted else stored
    if wanted.gather is not None and exchanges(config):
        made = tiers.agreed(made, lowered, running, wanted.gather)
    made = made or _compiled_once(lowered, record, progress)
    record.lowerings.update(made.chosen)
    if made.is_proven() and made.verdict is not None:
        running.check = made.verdict.sentence()
    proving = Proving(running=running, source=lowered.cache, announce=wanted.announce)
    return dataclasses.replace(made, proving=proving)


def _runs_uncompiled(lowered: Lowered) -> bool:
    """Return whether programs run without a compiler, by packaged kernels; warn if so."""
    reason = lowered.target.cannot_compile()
    if reason is None or lowered.target.cannot_compile(lowered.names) is not None:
        return False
    warn_user(
        f"Programs run operator by operator, with kernels that abele's package brings: {reason}",
        FallbackWarning,
    )
    return True


def _begun(lowered: Lowered, record: BuildRecord, wanted: Wanted) -> Executable | None:
    """Return interpreted programs to run while compilation may be going on; see ``tiers.begun``."""
    made = tiers.begun(lowered, record.running, wanted.announce)
    if made is not None and lowered.cache is not None and lowered.stored is None:
        record.cache, record.why = "miss", lowered.cache.why_missing(lowered.parts)
    return made


def _compiled_once(lowered: Lowered, record: BuildRecord, progress: Progress) -> Executable:
    """Compile the programs, or wait for another process that compiles for the same cache."""
    cache = lowered.cache
    if cache is None:
        return _compile(lowered, record, progress)
    started: float | None = None

    def waiting() -> None:
        nonlocal started
        started = time.perf_counter()
        progress("waiting for another process that compiles this", 0.15)

    with cache.only_one(record.executable, waiting) as may_be_there:
        if started is not None:
            record.seconds["wait"] = time.perf_counter() - started
        stored = _load(lowered, record) if may_be_there else None
        if stored is not None:
            return stored
        record.cache, record.why = "miss", cache.why_missing(lowered.parts)
        made = _compile(lowered, record, progress)
        with record.timed("store"):
            cache.store(made)
    return made


def _common(program: Program, config: StepConfig) -> Program:
    """Return the program after the passes that are common to all lowerings."""
    # Traps come before lowering: the user's operations are watched, not what replaces them.
    extra: list[passes.Pass] = [trap_exceptions] if config.trap_exceptions else []
    if config.matmul_precision is MatmulPrecision.MEDIUM:
        extra.append(rounded_products)
    return passes.run(program, extra)


class _Choice(NamedTuple):
    """The candidate lowerings of a program, and the reasons against declined lowerings."""

    ways: list[ChosenLowering]
    declined: dict[str, str]


def _choice_of(target: Target, program: Program, config: StepConfig) -> _Choice:
    with passes.one_after_the_other():
        ways = candidates(target, program, measured=config.processes == 1)
        declined = target.why_not_chosen(considered(target, program), before=ways[0][0])
    chosen = [ChosenLowering(name=each.name, reason=reason) for each, reason in ways]
    return _Choice(chosen, declined)


def _choice(target: Target, programs: Sequence[Program], config: StepConfig) -> dict[str, Any]:
    """Return each program's candidate lowerings and their reasons, as derived key parts."""
    each = {program.name: _choice_of(target, program, config) for program in programs}
    names = {name: [way.name for way in choice.ways] for name, choice in each.items()}
    return {
        "lowerings": {name: one[0] if len(one) == 1 else one for name, one in names.items()},
        "reasons": {name: choice.ways[0].reason for name, choice in each.items()},
        "declined": {name: choice.declined for name, choice in each.items()},
    }


def lowered_for(
    target: Target, programs: Sequence[Program], config: StepConfig
) -> dict[str, list[tuple[Program, ChosenLowering]]]:
    """Return every program after all passes for a target, by name; nothing is compiled.

    Returns:
        The program after each candidate lowering's passes: several if timing decides.
    """
    result: dict[str, list[tuple[Program, ChosenLowering]]] = {}
    for program in (_common(each, config) for each in programs):
        ways = _choice_of(target, program, config).ways
        with passes.one_after_the_other():
            result[program.name] = [(lowered_by(target, program, way.name), way) for way in ways]
    return result


def _load(lowered: Lowered, record: BuildRecord) -> Executable | None:
    started = time.perf_counter()
    if lowered.cache is None:
        return None
    stored = lowered.cache.load(lowered.programs, lowered.parts, lowered.target)
    if stored is not None:
        record.cache = "hit"
        record.seconds["load"] = time.perf_counter() - started
    return stored


def _compile(lowered: Lowered, record: BuildRecord, progress: Progress) -> Executable:
    target, programs, parts = lowered.target, lowered.programs, lowered.parts
    started = time.perf_counter()
    needed = needed_once(target, programs, parts)
    if target.setup_seconds_left(needed) and target.cannot_compile() is None:
        progress("compile abele's kernels, once on this machine", 0.12)
        with contextlib.suppress(CompilerError, OSError):
            target.prepare(needed)
        record.seconds["kernels"] = time.perf_counter() - started
        started = time.perf_counter()

    def begins(index: int, name: str) -> None:
        progress(f"compile {name}", 0.15 + 0.8 * index / len(programs))

    made = compile_programs(target, programs, parts, begins)
    record.seconds["compile"] = time.perf_counter() - started
    return made


def _next_to(target: Target, error: TargetError) -> Target:
    """Return the target without the lowering that failed, if it has others; else a slower target.

    Where the environment names lowerings, there are no others.
    """
    if isinstance(error, LoweringError) and os.environ.get(LOWERING, RULES) == RULES:
        others = tuple(each for each in target.lowerings if each.name != error.lowering)
        if any(not each.trusted for each in others):
            target = copy.copy(target)
            target.lowerings = others
            return target
    return get_target(_SLOWER.get(target.name, _LAST))


def _where(error: TargetError, log: str | None) -> str:
    what = "traceback" if isinstance(error, LoweringError) else "compiler's output"
    return f" The {what} is in {log}." if log else ""


def _write_log(error: TargetError, folder: str | Path | None) -> str | None:
    """Write the compiler's raw output to a file, and return its path."""
    if not isinstance(error, CompilerError) or not error.log:
        return None
    try:
        with tempfile.NamedTemporaryFile(
            "w",
            encoding="utf-8",
            errors="backslashreplace",
            dir=folder or systems.temporary_folder(),
            prefix="abele-compiler-",
            suffix=".log",
            delete=False,
        ) as file:
            file.write(error.log)
    except OSError:  # no error may hide another
        return None
    return file.name


def _warn_fallback(failed: Target, target: Target, why: str) -> None:
    another = f"Running on the slower {target.name!r} target."
    if target.name == failed.name:
        another = f"Running by another lowering of the {target.name!r} target."
    warn_user(
        f"{another} {why} Set {ENVIRONMENT}={failed.name} to make this an error.",
        FallbackWarning,
    )
