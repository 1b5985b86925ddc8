"""The memory of a run on one device: what lives all the time, and its programs at their peaks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import torch

from abele import machine_limits
from abele.compile.build import lowered_for
from abele.fit import duration, intermediates
from abele.fit.estimate import Estimate, Interval, Moment, Part
from abele.fit.intermediates import Need
from abele.fit.workspaces import PIECES, WHOLE
from abele.program import Program, Role
from abele.program.summary import state_bytes
from abele.step import batching
from abele.step.config import OutputMode, StepConfig
from abele.targets import Target, get_target

#: Weights, optimizer state and inputs are copied for each of these runs while compiled programs
#: are compared with interpreted ones: three at least, and one more for each further trial.
_COPIES = Interval(3, 3, 10)
_INTERPRETING = "reference"
_KEPT = "kept by programs"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calls:
    """What is known of the calls of a run beside the programs.

    Attributes:
        module: bytes of the user's weights and buffers on the host.
        batch: bytes of the inputs of one call.
        tiered: first steps are interpreted, and compiled programs take over.
    """

    module: int
    batch: int
    tiered: bool = False


def estimate(
    programs: Sequence[Program], config: StepConfig, target: Target, calls: Calls
) -> Estimate:
    """Estimate the memory of a run.

    Args:
        programs: as captured.
        config: the configuration they were captured with.
        target: what runs them.
        calls: what is known of the run.
    """
    always = _always(programs, config, target, calls)
    ways = _ways(programs, config, target)
    kept = _kept(_needs(ways))
    alone = sum(each.reserved - each.shared for each in _needs(ways))
    moments = [_start(always, Interval(alone, alone, kept))]
    moments += [
        _of_program(name, way.need, always, _beside(way.need, name, ways))
        for name, each in ways.items()
        for way in each
    ]
    if calls.tiered and any(way.compiles for each in ways.values() for way in each):
        interpreted = _ways(programs, config, get_target(_INTERPRETING))
        for name, (first,) in interpreted.items():
            moments.append(
                _of_program(f"{name}, interpreted", first.need, always, Interval.exact(0))
            )
            compiled = _needs(ways)
            moments += [_take_over(name, first.need, always, compiled, w.need) for w in ways[name]]
    return Estimate(
        target=target.name,
        lowerings={name: _joined(way.lowering for way in each) for name, each in ways.items()},
        basis={name: _joined(way.basis for way in each) for name, each in ways.items()},
        moments=tuple(moments),
        seconds=duration.of_call(
            [duration.fastest(way.seconds for way in each) for each in ways.values()], config
        ),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Way:
    """One way to run a program.

    Attributes:
        need: what it needs at its peak.
        basis: where that comes from.
        lowering: what it is called, and why it was chosen.
        compiles: code is made for the program.
        seconds: a run of the program takes this long.
    """

    need: Need
    basis: str
    lowering: str
    compiles: bool
    seconds: Interval


def _ways(programs: Sequence[Program], config: StepConfig, target: Target) -> dict[str, list[_Way]]:
    """The ways in which each program may run, by its name."""
    allocation = PIECES if target.device().type == "cpu" else WHOLE
    limits = machine_limits.of_device(target.device())
    result: dict[str, list[_Way]] = {}
    for name, lowered in lowered_for(target, programs, config).items():
        for program, chosen in lowered:
            lowering = target.lowering(chosen.name)
            use = lowering.memory(program)
            way = _Way(
                need=intermediates.need(program, use, allocation),
                basis=use.basis,
                lowering=f"{chosen.name} ({chosen.reason})",
                compiles=lowering.compiles,
                seconds=duration.of_program(
                    program, lowering.kernels(program), limits, use, compiled=lowering.compiles
                ),
            )
            result.setdefault(name, []).append(way)
    return result


def _needs(ways: dict[str, list[_Way]]) -> list[Need]:
    """Of each program, that of the way that keeps most."""
    return [
        max((way.need for way in each), key=lambda need: need.reserved) for each in ways.values()
    ]


def _beside(need: Need, name: str, ways: dict[str, list[_Way]]) -> Interval:
    """Bytes that programs keep beside what one of them needs, which runs in one of its ways.

    At most those of all ways are there: ways are measured beside each other.
    """
    others = {other: each for other, each in ways.items() if other != name}
    least = [min((w.need for w in each), key=lambda n: n.reserved) for each in others.values()]
    most = _needs(others)
    beside = [way.need for way in ways[name] if way.need is not need]
    if beside:
        most.append(max(beside, key=lambda each: each.reserved))
    kept = (_kept([need, *least]), _kept([need, *_needs(others)]), _kept([need, *most]))
    return Interval(*(size - need.reserved for size in kept))


def _kept(needs: Iterable[Need]) -> int:
    """Bytes that programs keep between calls: the shared ones are those of the largest."""
    several = list(needs)
    alone = sum(each.reserved - each.shared for each in several)
    return alone + max((each.shared for each in several), default=0)


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
        sizes["the module's own weights and buffers"] = calls.module
    parts = [
        Part(role=role, size=Interval.exact(size), always=True)
        for role, size in sizes.items()
        if size
    ]
    results = _results(programs[0], config)
    # Those of the call before are alive if the caller still has them.
    parts.append(Part(role="results of calls", size=Interval(0, results, 2 * results), always=True))
    return tuple(parts)


def _constants(programs: Sequence[Program]) -> int:
    """Tensors of forward that are neither parameters nor buffers."""
    storages = {
        value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()
        for program in programs
        for value in program.graph.state_dict().values()
        if isinstance(value, torch.Tensor)
    }
    return sum(storages.values())


def _results(model: Program, config: StepConfig) -> int:
    """Bytes of the results of one call, those of its micro-batches included until it ends."""
    outputs = [slot for slot in model.outputs if slot.role is not Role.MAGNITUDES]
    one = sum(torch.empty(s.shape, dtype=s.dtype, device="meta").nbytes for s in outputs)
    steps = list(batching.schedule(config))
    kept = sum(step.keeps for step in steps)
    joined = config.replicas if config.output_mode is OutputMode.SUM else kept
    # The only one is the program's own result; several are joined at the end.
    return one if len(steps) == 1 else one * (kept + (joined if kept > 1 else 0))


# -- moments -------------------------------------------------------------------------------


def _start(always: tuple[Part, ...], kept: Interval) -> Moment:
    """What programs share is in use before only where they were measured."""
    reserved = [Part(role=_KEPT, size=kept, always=True)] if kept.high else []
    parts = (*always, *reserved)
    return Moment(name="start", operation="the session takes its state", parts=parts)


def _reserved(size: int) -> list[Part]:
    return [Part(role=_KEPT, size=Interval.exact(size), always=True)] if size else []


def _of_program(name: str, need: Need, always: tuple[Part, ...], beside: Interval) -> Moment:
    reserved = [Part(role=_KEPT, size=beside, always=True)] if beside.high else []
    parts = (*always, *need.parts, *reserved)
    return Moment(name=name, operation=need.operation, parts=parts, tensors=need.tensors)


def _take_over(
    name: str, first: Need, always: tuple[Part, ...], compiled: Sequence[Need], then: Need
) -> Moment:
    """One micro-batch through both kinds of programs, on copies of the state."""
    roles = ("parameters", "buffers", "optimizer state", "gradient sums", "inputs of a call")
    state = sum(part.size.high for part in always if part.role in roles)
    copies = Interval(*(state * n for n in (_COPIES.low, _COPIES.expected, _COPIES.high)))
    larger = max(first, then, key=lambda each: Interval.sum(p.size for p in each.parts).expected)
    kept = _kept([first, then, *(each for each in compiled if each is not then)])
    parts = (
        *always,
        *larger.parts,
        *_reserved(kept - larger.reserved),
        Part(role="copies to compare", size=copies),
    )
    return Moment(
        name=f"{name}, taking over",
        operation="compiled programs are compared with interpreted ones",
        parts=parts,
        tensors=larger.tensors,
    )
