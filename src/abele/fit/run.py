"""Estimate of the memory of a run: programs, results of calls, and moments of the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch

from abele import cpython
from abele.compile.build import lowered_for
from abele.fit import intermediates
from abele.fit.estimate import Estimate, Interval, Moment, Part, Work
from abele.fit.intermediates import PIECES, WHOLE, Need, returned
from abele.program import Program, Role
from abele.program.summary import state_bytes
from abele.report.operators import moved_bytes, operations
from abele.step import batching
from abele.step.config import OutputMode, StepConfig
from abele.targets import Target, get_target
from abele.targets.kernel_choice import operators_of

_NOTHING = Interval.exact(0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """Bytes of results on the device, at different moments of a call.

    Attributes:
        earlier: of earlier micro-batches of the same call, at most, while the model's program runs.
        at_update: of all micro-batches so far while a program of its own updates the weights.
        joining: of all micro-batches, and what they are joined to; None where nothing is joined.
        before: of the call before, which the caller may still have.
    """

    earlier: Interval
    at_update: Interval
    joining: Interval | None
    before: Interval


def of_calls(
    model: Program,
    config: StepConfig,
    *,
    on_host: bool,
    returned: Collection[str] | None = None,
) -> Results:
    """Return the memory of the results of calls.

    Args:
        model: program of a micro-batch.
        config: partition of a call's batch.
        on_host: the device is the host; otherwise the caller's results are in other memory.
        returned: outputs that the caller gets; None for all.
    """
    outputs = [
        slot
        for slot in model.outputs
        if slot.role is not Role.MAGNITUDES and (returned is None or slot.name in returned)
    ]
    sizes = [torch.empty(s.shape, dtype=s.dtype, device="meta").nbytes for s in outputs]
    one, steps = _taken(sizes, on_host), list(batching.schedule(config))
    kept, earlier, at_update = 0, _NOTHING, _NOTHING
    for index, step in enumerate(steps):
        # What nobody keeps is there until the next micro-batch has returned, or shares its memory.
        loose = index > 0 and not steps[index - 1].keeps
        most = one.scaled(kept + loose)
        now = Interval(kept * one.low, most.expected, most.high)
        earlier = max(earlier, now, key=lambda each: each.high)
        if step.updates:
            at_update = Interval.sum((now, one))
        kept += step.keeps
    whole = _taken([size * batching.parts_out(config) for size in sizes], on_host)
    joining = None
    if len(steps) > 1 and (kept > 1 or config.output_mode is OutputMode.SUM):
        joining = Interval.sum((one.scaled(kept), _joined(sizes, kept, whole, config)))
    before = Interval(0, whole.expected, whole.high) if on_host else _NOTHING
    return Results(earlier=earlier, at_update=at_update, joining=joining, before=before)


def _taken(sizes: list[int], on_host: bool) -> Interval:
    """Bytes of the process for tensors of these sizes."""
    return Interval.sum(returned(size) if on_host else Interval.exact(size) for size in sizes)


def _joined(sizes: list[int], kept: int, whole: Interval, config: StepConfig) -> Interval:
    """Return the bytes of what ``runtime.session.assemble`` makes of micro-batches' results."""
    if config.output_mode is not OutputMode.SUM:
        return whole
    # Each output is stacked before it is summed; sums of several replicas are joined then.
    together = kept // config.replicas * max(sizes, default=0)
    beside = max(together, whole.high if config.replicas > 1 else 0)
    return Interval(whole.low, whole.expected + beside, whole.high + beside)


#: Weights, optimizer state and inputs are copied for each of these runs while compiled programs
#: are compared with interpreted ones: two at least, one more for each further trial, and two in
#: float64.
_COPIES = Interval(2, 2, 12)
_COPIED = ("parameters", "buffers", "optimizer state", "gradient sums", "inputs of a call")


def start(always: Sequence[Part], kept: Interval) -> Moment:
    """Before the first call.

    Args:
        always: what lives for the whole run.
        kept: by programs. What they share is in use then only where they were measured.
    """
    parts = (*always, *_part("kept by programs", kept, always=True))
    return Moment(name="start", operation="the session takes its state", parts=parts)


def of_program(
    name: str, need: Need, always: Sequence[Part], beside: Interval, results: Results
) -> Moment:
    """While a program runs.

    Args:
        name: of the moment.
        need: of the program.
        always: what lives for the whole run.
        beside: what programs keep beside that.
        results: of calls.
    """
    applies = name.partition(",")[0] == "apply"
    earlier = results.at_update if applies else results.earlier
    parts = (
        *always,
        *_before(results),
        *need.parts,
        *_part("results of earlier micro-batches", earlier),
        *_part("kept by programs", beside, always=True),
    )
    return Moment(name=name, operation=need.operation, parts=parts, tensors=need.tensors)


def joining(always: Sequence[Part], kept: Interval, results: Results) -> list[Moment]:
    """Return the moments at which results of micro-batches are concatenated; none for one of them.

    Args:
        always: parts that are always live.
        kept: parts that programs keep.
        results: results of calls.
    """
    if results.joining is None:
        return []
    parts = (
        *always,
        *_before(results),
        *_part("results of micro-batches, and joined", results.joining),
        *_part("kept by programs", kept, always=True),
    )
    operation = "results of micro-batches are joined"
    return [Moment(name="the end of a call", operation=operation, parts=parts)]


def comparison(
    name: str,
    first: Need,
    then: Need,
    always: Sequence[Part],
    others: Iterable[Need],
    results: Results,
) -> Moment:
    """Return the moment when one micro-batch runs through both kinds of programs, on copies.

    Args:
        name: of the program.
        first: need of the program, interpreted.
        then: need of the program, compiled.
        always: what lives for the whole run.
        others: needs of all other programs that are compiled.
        results: of calls.
    """
    state = sum(part.size.high for part in always if part.role in _COPIED)
    larger = max(first, then, key=lambda each: Interval.sum(p.size for p in each.parts).expected)
    beside = together([first, then, *others]) - larger.reserved
    parts = (
        *always,
        *_before(results),
        *larger.parts,
        *_part("kept by programs", Interval.exact(beside), always=True),
        Part(role="copies to compare", size=_COPIES.scaled(state)),
    )
    return Moment(
        name=f"{name}, compared before use",
        operation="compiled programs are compared with interpreted ones",
        parts=parts,
        tensors=larger.tensors,
    )


def together(needs: Iterable[Need]) -> int:
    """Bytes that programs keep between calls: the shared ones are those of the largest."""
    several = list(needs)
    alone = sum(each.reserved - each.shared for each in several)
    return alone + max((each.shared for each in several), default=0)


def _before(results: Results) -> list[Part]:
    return _part("results of the call before", results.before, always=True)


def _part(role: str, size: Interval, *, always: bool = False) -> list[Part]:
    return [Part(role=role, size=size, always=always)] if size.high else []


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
            lowerings={name: _listed(way.lowering for way in each) for name, each in ways.items()},
            basis={name: _listed(way.basis for way in each) for name, each in ways.items()},
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
    made = [start(always, Interval(alone, alone, most))]
    made += [
        of_program(
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
    made += joining(always, Interval(least, most, most), results)
    if all(way.trusted for each in ways.values() for way in each):
        return made
    tiered = calls.tiered and any(way.compiles for each in ways.values() for way in each)
    interpreted = _ways(programs, config, get_target(_INTERPRETING))
    for name, (way,) in interpreted.items():
        first, alone = way.need, Interval.exact(0)
        if tiered:
            running = of_program(f"{name}, interpreted", first, always, alone, results)
            made.append(running)
        for then in ways[name]:
            others = [each for each in needs if each is not then.need]
            made.append(comparison(name, first, then.need, always, others, results))
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


def _listed(texts: Iterable[str]) -> str:
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
