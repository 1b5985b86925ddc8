"""The memory of a run on one device: what lives all the time, and its programs at their peaks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch

from abele import cpython
from abele.compile.build import lowered_for
from abele.fit import intermediates, moments
from abele.fit.estimate import Estimate, Interval, Moment, Part, Work
from abele.fit.intermediates import Need
from abele.fit.moments import together
from abele.fit.results import of_calls
from abele.fit.workspaces import PIECES, WHOLE
from abele.program import Program, Role
from abele.program.summary import state_bytes
from abele.report.operators import moved_bytes, operations
from abele.step import batching
from abele.step.config import StepConfig
from abele.targets import Target, get_target
from abele.targets.kernel_choice import operators_of

_INTERPRETING = "reference"
_ON_HOST = "the module's own weights and buffers"
#: Roles of what a smaller batch and recomputation leave as it is.
STATE = ("parameters", "buffers", "optimizer state", _ON_HOST)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calls:
    """Memory of calls in addition to the programs'.

    Attributes:
        module: bytes of the user's weights and buffers on the host.
        batch: bytes of the inputs of one call.
        tiered: first steps are interpreted, before the switch to compiled code.
        handed: bytes of earlier programs' results that a program finds, by its name.
        returned: outputs that callers get; None for all.
    """

    module: int
    batch: int
    tiered: bool = False
    handed: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    returned: Collection[str] | None = None


def estimate(
    programs: Sequence[Program],
    config: StepConfig,
    target: Target,
    calls: Calls,
) -> Estimate:
    """Estimate the memory of a run, and count its work.

    Args:
        programs: as captured.
        config: the configuration they were captured with.
        target: what runs them.
        calls: what is known of the run.
    """
    with cpython.uncollected():
        ways = _ways(programs, config, target)
        return Estimate(
            target=target.name,
            lowerings={name: _joined(way.lowering for way in each) for name, each in ways.items()},
            basis={name: _joined(way.basis for way in each) for name, each in ways.items()},
            moments=tuple(_moments(programs, config, target, calls, ways)),
            work=_work([way.program for way, *_ in ways.values()], config),
        )


def _work(programs: Sequence[Program], config: StepConfig) -> Work:
    """Count the work of a call; programs behind the first apply gradients."""
    micro_steps = sum(1 for _ in batching.schedule(config))
    operators: list[tuple[int, torch.fx.Node]] = []
    for index, program in enumerate(programs):
        times = config.device_iterations if index else micro_steps
        operators += [(times, node) for node in operators_of(program)]
    return Work(
        operations=sum(times * operations(node) for times, node in operators),
        bytes=sum(times * moved_bytes(node) for times, node in operators),
    )


def _moments(
    programs: Sequence[Program], config: StepConfig, target: Target, calls: Calls, ways: _Ways
) -> list[Moment]:
    always = _always(programs, config, target, calls)
    on_host = target.device().type == "cpu"
    results = of_calls(programs[0], config, on_host=on_host, returned=calls.returned)
    needs = _needs(ways)
    most = together(needs)
    alone = sum(each.reserved - each.shared for each in needs)
    made = [moments.start(always, Interval(alone, alone, most))]
    made += [
        moments.of_program(
            name,
            way.need,
            (*always, *_handed(calls, name)),
            _beside(way.need, name, ways),
            results,
        )
        for name, each in ways.items()
        for way in each
    ]
    least = together(_needs(ways, min))
    made += moments.joining(always, Interval(least, most, most), results)
    if all(way.trusted for each in ways.values() for way in each):
        return made
    tiered = calls.tiered and any(way.compiles for each in ways.values() for way in each)
    interpreted = _ways(programs, config, get_target(_INTERPRETING))
    for name, (way,) in interpreted.items():
        first, alone = way.need, Interval.exact(0)
        if tiered:
            running = moments.of_program(f"{name}, interpreted", first, always, alone, results)
            made.append(running)
        for then in ways[name]:
            others = [each for each in needs if each is not then.need]
            made.append(moments.comparison(name, first, then.need, always, others, results))
    return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Way:
    """A lowering of a program, with its memory.

    Attributes:
        program: the program after all passes.
        need: its memory at the peak.
        basis: source of the numbers.
        lowering: name of the lowering, and why it was chosen.
        compiles: code is compiled for the program.
        trusted: results are never compared with the interpreter's.
    """

    program: Program
    need: Need
    basis: str
    lowering: str
    compiles: bool
    trusted: bool


_Ways = dict[str, list[_Way]]


def _ways(programs: Sequence[Program], config: StepConfig, target: Target) -> _Ways:
    """Return the lowerings in which each program may run, by its name."""
    allocation = PIECES if target.device().type == "cpu" else WHOLE
    result: _Ways = {}
    for name, lowered in lowered_for(target, programs, config).items():
        for program, chosen in lowered:
            lowering = target.lowering(chosen.name)
            use = lowering.memory(program)
            way = _Way(
                program=program,
                need=intermediates.need(program, use, allocation),
                basis=use.basis,
                lowering=f"{chosen.name} ({chosen.reason})",
                compiles=lowering.compiles,
                trusted=lowering.trusted,
            )
            result.setdefault(name, []).append(way)
    return result


def _handed(calls: Calls, name: str) -> list[Part]:
    """Return the bytes of earlier programs' results that a program finds."""
    size = calls.handed.get(name, 0)
    return [Part(role="left by earlier sections", size=Interval.exact(size))] if size else []


def _needs(ways: _Ways, which: Callable[..., Need] = max) -> list[Need]:
    """Return for each program the memory of the lowering that keeps most, or least."""
    return [which((way.need for way in each), key=_reserved) for each in ways.values()]


def _reserved(need: Need) -> int:
    return need.reserved


def _beside(need: Need, name: str, ways: _Ways) -> Interval:
    """Bytes that programs keep beside what one of them needs, which runs in one of its ways.

    At most those of all ways are there: ways are measured beside each other.
    """
    others = {other: each for other, each in ways.items() if other != name}
    least = _needs(others, min)
    most = _needs(others)
    beside = [way.need for way in ways[name] if way.need is not need]
    if beside:
        most.append(max(beside, key=_reserved))
    kept = (together([need, *least]), together([need, *_needs(others)]), together([need, *most]))
    return Interval(*(size - need.reserved for size in kept))


def _joined(texts: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(texts))


# -- what lives all the time ---------------------------------------------------------------


def _always(
    programs: Sequence[Program], config: StepConfig, target: Target, calls: Calls
) -> tuple[Part, ...]:
    state = state_bytes(programs)
    state[Role.BUFFER.value] *= config.replicas
    sizes = {
        "parameters": state[Role.PARAMETER.value],
        "buffers": state[Role.BUFFER.value],
        "optimizer state": state[Role.OPTIMIZER_STATE.value],
        "gradient sums": state[Role.ACCUMULATOR.value],
        "constants of the programs": _constants(programs),
        "inputs of a call": calls.batch,
    }
    if target.device().type == "cpu":
        sizes[_ON_HOST] = calls.module
    return tuple(
        Part(role=role, size=Interval.exact(size), always=True)
        for role, size in sizes.items()
        if size
    )


def _constants(programs: Sequence[Program]) -> int:
    """Tensors of forward that are neither parameters nor buffers."""
    storages = {
        value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()
        for program in programs
        for value in program.graph.state_dict().values()
        if isinstance(value, torch.Tensor)
    }
    return sum(storages.values())
