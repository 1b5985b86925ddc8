"""Estimates the memory of a run: programs, workspaces and results at each possible peak."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from abele import arena, cpython
from abele.compilation.build import lowered_for
from abele.fit.estimate import Estimate, Interval, Moment, Part, Work
from abele.ops import norm_activation, recurrent
from abele.ops.fused_updates import adam, sgd
from abele.program import Program, Role, is_getitem, is_view
from abele.program.core import node_phase
from abele.program.memory import MemoryUse, Piece, state_bytes
from abele.report.facts import line_of
from abele.report.operators import bytes_of, moved_bytes, operations
from abele.step import batching
from abele.step.config import OutputMode, StepConfig
from abele.targets import Target, get_target
from abele.targets.kernel_choice import operators_of

_ZERO = Interval.exact(0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Results:
    """Device memory of the results of a call, at different moments of the call.

    Attributes:
        earlier: at most, results of earlier micro-batches while the model's program runs.
        at_update: results of all micro-batches so far while a separate update program runs.
        joining: results of all micro-batches and their concatenation; None without concatenation.
        before: results of the previous call, which the caller may still hold.
    """

    earlier: Interval
    at_update: Interval
    joining: Interval | None
    before: Interval


def of_calls(model: Program, config: StepConfig, *, on_host: bool) -> Results:
    """Return the device memory of the results of a model's calls.

    Args:
        model: program of a micro-batch.
        config: partition of a call's batch.
        on_host: whether the device is the host, whose memory holds the caller's results, too.
    """
    outputs = [slot for slot in model.outputs if slot.role is not Role.MAGNITUDES]
    sizes = [torch.empty(s.shape, dtype=s.dtype, device="meta").nbytes for s in outputs]
    one, steps = _taken(sizes, on_host), list(batching.schedule(config))
    kept, earlier, at_update = 0, _ZERO, _ZERO
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
    before = Interval(0, whole.expected, whole.high) if on_host else _ZERO
    return Results(earlier=earlier, at_update=at_update, joining=joining, before=before)


def _taken(sizes: list[int], on_host: bool) -> Interval:
    """Return the process memory for result tensors of some sizes."""
    return Interval.sum(returned(size) if on_host else Interval.exact(size) for size in sizes)


def _joined(sizes: list[int], kept: int, whole: Interval, config: StepConfig) -> Interval:
    """Return the memory of the concatenated or summed results of micro-batches."""
    if config.output_mode is not OutputMode.SUM:
        return whole
    # Each output is stacked before it is summed; sums of several replicas are joined then.
    together = kept // config.replicas * max(sizes, default=0)
    beside = max(together, whole.high if config.replicas > 1 else 0)
    return Interval(whole.low, whole.expected + beside, whole.high + beside)


#: Copies of weights, optimizer state and inputs while programs are compared: compiled ones write
#: one; where all differ, there is one for each further run, and two in float64.
_COPIES = Interval(1, 1, 12)
_COPIED = ("parameters", "buffers", "optimizer state", "gradient sums", "inputs of a call")


def _running(
    name: str, need: Need, always: Sequence[Part], beside: Interval, results: Results
) -> Moment:
    """Return the possible peak while a program runs and other programs keep ``beside`` bytes."""
    applies = name.partition(",")[0] == "apply"
    earlier = results.at_update if applies else results.earlier
    parts = (
        *always,
        *need.parts,
        *_part("results of earlier micro-batches", earlier),
        *_kept(beside),
    )
    return Moment(name=name, operation=need.operation, parts=parts, lines=need.lines)


def _comparison(
    name: str,
    first: Need,
    then: Need,
    always: Sequence[Part],
    others: Sequence[Need],
    several: bool,
) -> Moment:
    """Return the possible peak while compiled code is compared with the interpreter.

    Args:
        name: name of the program.
        first: memory of the interpreted program.
        then: memory of the compiled program.
        always: memory in use during the entire run.
        others: memory of all other compiled programs.
        several: whether lowerings are timed before, on as many copies, with the memory of all.
    """
    state = sum(part.size.high for part in always if part.role in _COPIED)
    larger = max(first, then, key=lambda each: Interval.sum(p.size for p in each.parts).expected)
    # Either is returned to the system before the other one runs.
    least, most = together(others), together([first, then, *others]) - larger.reserved
    kept = _kept(Interval(least, most if several else least, most))
    copies = Part(role="copies to compare", size=_COPIES.scaled(state))
    return Moment(
        name=f"{name}, compared before use",
        operation="compiled programs are compared with interpreted ones",
        parts=(*always, *larger.parts, *kept, copies),
        lines=larger.lines,
    )


def together(needs: Iterable[Need]) -> int:
    """Return the bytes that programs keep between calls; shared bytes count once, at most."""
    several = list(needs)
    alone = sum(each.reserved - each.shared for each in several)
    return alone + max((each.shared for each in several), default=0)


def _part(role: str, size: Interval, *, always: bool = False) -> list[Part]:
    return [Part(role=role, size=size, always=always)] if size.high else []


def _kept(size: Interval) -> list[Part]:
    return _part("kept by programs", size, always=True)


_INTERPRETING = "reference"
_ON_HOST = "the module's own weights and buffers"
#: Roles of what a smaller batch and recomputation leave as it is.
STATE = ("parameters", "buffers", "optimizer state", _ON_HOST)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calls:
    """Memory that calls of a model use in addition to its programs.

    Attributes:
        module: bytes of the user's weights and buffers on the host.
        batch: bytes of the inputs of one call.
        tiered: whether steps are interpreted before the switch to compiled code.
        plain: bytes beside state that a first call of plain PyTorch used, as measured.
    """

    module: int
    batch: int
    tiered: bool = False
    plain: int = 0


def estimate(
    programs: Sequence[Program],
    config: StepConfig,
    target: Target,
    calls: Calls,
) -> Estimate:
    """Estimate the memory of a run and the work of its calls.

    Args:
        programs: captured programs.
        config: the configuration of the capture.
        target: target that runs the programs.
        calls: memory of calls besides the programs.
    """
    with cpython.uncollected():
        ways = _ways(programs, config, target)
        return Estimate(
            target=target.name,
            lowerings={
                name: " or ".join(dict.fromkeys(way.lowering for way in each))
                for name, each in ways.items()
            },
            moments=tuple(_moments(programs, config, target, calls, ways)),
            work=_work([way.program for way, *_ in ways.values()], config),
        )


def _work(programs: Sequence[Program], config: StepConfig) -> Work:
    """Return the FLOPs and bytes of a call; programs after the first apply gradients."""
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
    results = of_calls(programs[0], config, on_host=on_host)
    needs = _needs(ways)
    least, most = together(_needs(ways, min)), together(needs)
    # What programs share is in use at the start only where they were measured.
    alone = sum(each.reserved - each.shared for each in needs)
    begin = (*always, *_kept(Interval(alone, alone, most)))
    made = [Moment(name="start", operation="the session takes its state", parts=begin)]
    if calls.plain:
        parts = (*always, *_part("freed again, as measured", Interval.exact(calls.plain)))
        made.append(Moment(name="the first call", operation="plain PyTorch runs it", parts=parts))
    always = (*always, *_part("results of the call before", results.before, always=True))
    made += [
        _running(name, way.need, always, _beside(way.need, name, ways), results)
        for name, each in ways.items()
        for way in each
    ]
    if results.joining is not None:
        joined = _part("results of micro-batches, and joined", results.joining)
        parts = (*always, *joined, *_kept(Interval(least, most, most)))
        operation = "results of micro-batches are joined"
        made.append(Moment(name="the end of a call", operation=operation, parts=parts))
    if all(way.trusted for each in ways.values() for way in each):
        return made
    tiered = calls.tiered and any(way.compiles for each in ways.values() for way in each)
    interpreted = _ways(programs, config, get_target(_INTERPRETING))
    for name, (way,) in interpreted.items():
        if tiered:
            nothing = Interval.exact(0)
            made.append(_running(f"{name}, interpreted", way.need, always, nothing, results))
        for then in ways[name]:
            others = _needs({other: each for other, each in ways.items() if other != name})
            several = len(ways[name]) > 1
            made.append(_comparison(name, way.need, then.need, always, others, several))
    return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Way:
    """A possible lowering of a program, with its memory.

    Attributes:
        program: the program after all passes.
        need: memory of the program at its peak.
        lowering: name of the lowering, and the reason for it.
        compiles: whether code is compiled for the program.
        trusted: whether results are never compared with the interpreter's.
    """

    program: Program
    need: Need
    lowering: str
    compiles: bool
    trusted: bool


_Ways = dict[str, list[_Way]]


def _ways(programs: Sequence[Program], config: StepConfig, target: Target) -> _Ways:
    """Return the possible lowerings of each program by name."""
    allocation = PIECES if target.device().type == "cpu" else WHOLE
    result: _Ways = {}
    for name, lowered in lowered_for(target, programs, config).items():
        for program, chosen in lowered:
            lowering = target.lowering(chosen.name)
            use = lowering.memory(program)
            way = _Way(
                program=program,
                need=need(program, use, allocation),
                lowering=f"{chosen.name} ({chosen.reason})",
                compiles=lowering.compiles,
                trusted=lowering.trusted,
            )
            result.setdefault(name, []).append(way)
    return result


def _needs(ways: _Ways, which: Callable[..., Need] = max) -> list[Need]:
    """Return the memory of each program in the lowering that keeps the most, or the least."""
    return [which((way.need for way in each), key=_reserved) for each in ways.values()]


def _reserved(need: Need) -> int:
    return need.reserved


def _beside(need: Need, name: str, ways: _Ways) -> Interval:
    """Return the bytes that all programs keep in addition to the memory of a running program.

    The upper bound includes all possible lowerings, which are measured one after another.
    """
    others = {other: each for other, each in ways.items() if other != name}
    least = _needs(others, min)
    most = _needs(others)
    beside = [way.need for way in ways[name] if way.need is not need]
    if beside:
        most.append(max(beside, key=_reserved))
    kept = (together([need, *least]), together([need, *_needs(others)]), together([need, *most]))
    return Interval(*(size - need.reserved for size in kept))


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
    """Return the bytes of tensors in programs that are neither parameters nor buffers."""
    storages = {
        value.untyped_storage().data_ptr(): value.untyped_storage().nbytes()
        for program in programs
        for value in program.graph.state_dict().values()
        if isinstance(value, torch.Tensor)
    }
    return sum(storages.values())


aten = torch.ops.aten

#: Shares of the bytes that an operator reads and makes: expected, and at most.
_KNOWN = (0.0, 0.1)
_CONVOLUTIONS = (0.5, 2.0)
_OTHERS = (0.0, 0.25)
#: What a library packs factors of a product in, at most: a share of their bytes and those of the
#: result, and bytes for each thread.
_PRODUCTS, _PACKED = 0.5, 8 * 2**20
_SHARES: dict[Any, tuple[float, float]] = {
    aten.convolution.default: _CONVOLUTIONS,
    aten.convolution_backward.default: _CONVOLUTIONS,
    # Measured for 16 to 200 features and 64 to 256 units: 0.4 to 2.6, and 0.2 to 3.8.
    recurrent.forward: (1.5, 4),
    recurrent.backward: (2, 5),
}
#: Beside operators on elements: what reads and writes, and makes nothing else.
_NOTHING: set[Any] = {
    aten.full.default,
    aten.copy_.default,
    aten._to_copy.default,
    adam,
    sgd,
    norm_activation.forward,
    norm_activation.backward,
    norm_activation.evaluation,
    # Copies straight into the result, and sums for each channel.
    aten.cat.default,
    aten.stack.default,
    aten._native_batch_norm_legit_no_training.default,
    # Views by another name.
    aten._unsafe_view.default,
    aten.unsafe_split.Tensor,
}

_MATRICES = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}


@dataclasses.dataclass(frozen=True)
class Allocation:
    """Ratio of a process's memory to the planned bytes, for one kind of allocations.

    Attributes:
        expected: ratio observed for the models of ``benchmarks/fit.py``.
        most: largest ratio.
    """

    expected: float
    most: float

    def of(self, size: float) -> Interval:
        """Return the process memory for a number of planned bytes."""
        return Interval(size, size * self.expected, size * self.most)


#: Piece by piece from the C library, which keeps the gaps that pieces of other sizes leave.
PIECES = Allocation(1.45, 2.2)
#: What libraries take so inside of operators whose tensors have planned places: a few large pieces.
LOOSE = Allocation(1.2, 1.75)
#: What is left of these beside tensors at planned places: small ones, and results.
SETTLED = Allocation(1.0, 1.3)
#: Results that torch makes for a compiled program, and what it makes inside: large ones, too.
RESULTS = Allocation(1.15, 1.4)
#: Results of calls, whose memory the caller gives back at any time: the next ones fit into it.
_RETURNED = Allocation(1.0, 1.25)
#: The same from torch's own allocator: a hole does not fit the next result of its size, so three
#: to five of them are there where two are in use.
_LEAVING_HOLES = Allocation(1.5, 2.5)
#: From so many bytes on a piece has pages of its own, which go back to the system.
_MAPPED = 32 * 2**20
#: One piece, or memory of a device whose allocator was asked for as much.
WHOLE = Allocation(1.0, 1.0)


def returned(size: float) -> Interval:
    """Return the process memory for a result on the host of a given size."""
    if size >= _MAPPED:
        return WHOLE.of(size)
    return (_RETURNED if arena.available() else _LEAVING_HOLES).of(size)


def workspace(node: torch.fx.Node, *, known: bool) -> Interval:
    """Return the bytes that an operator may allocate internally.

    Args:
        node: graph node of the operator, with ``meta["val"]`` set.
        known: whether tensors that the operator creates internally are counted elsewhere.
    """
    if node.op != "call_function" or is_view(node) or is_getitem(node):
        return Interval.exact(0)
    if node.target in _NOTHING or _is_by_element(node) or _pools_dense(node):
        return Interval.exact(0)
    if _packs(node):
        # In 16 bits torch multiplies by other code, which gives back what it takes.
        return Interval(0, 0, _most_packed(node) if _is_narrow(node) else 0)
    expected, most = _KNOWN if known else _SHARES.get(node.target, _OTHERS)
    size = _touched(node)
    return Interval(0, expected * size, most * size)


def packed(node: torch.fx.Node) -> float:
    """Return at most how many bytes a library keeps for packed GEMM operands."""
    return _most_packed(node) if _packs(node) and not _is_narrow(node) else 0.0


def _packs(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and node.target in _MATRICES


def _is_narrow(node: torch.fx.Node) -> bool:
    return node.meta["val"].dtype in (torch.float16, torch.bfloat16)


def _most_packed(node: torch.fx.Node) -> float:
    return min(_PRODUCTS * _touched(node), torch.get_num_threads() * _PACKED)


def _touched(node: torch.fx.Node) -> int:
    return sum(bytes_of(each.meta.get("val")) for each in (node, *node.all_input_nodes))


def _is_by_element(node: torch.fx.Node) -> bool:
    """Return whether an operator is pointwise on one dtype; mixed dtypes need a copy."""
    if torch.Tag.pointwise not in getattr(node.target, "tags", ()):
        return False
    values = (each.meta.get("val") for each in (node, *node.all_input_nodes))
    large = [each for each in values if isinstance(each, torch.Tensor) and each.dim()]
    return len({each.dtype for each in large} - {torch.bool}) <= 1


def _pools_dense(node: torch.fx.Node) -> bool:
    """Return whether a max pool reads dense activations; strided ones are copied first."""
    if node.target is not aten.max_pool2d_with_indices.default:
        return False
    image = node.all_input_nodes[0].meta["val"]
    return image.is_contiguous() or image.is_contiguous(memory_format=torch.channels_last)


#: What lies in memory that a program keeps between calls where nothing is alive there.
UNUSED = "kept by the program, unused at the peak"
WORKSPACE = "workspaces of libraries"
SCRATCH = "kept by kernels for themselves"
PACKED = "kept by libraries for themselves"
#: A larger call may come while the memory of smaller ones is kept.
_SCRATCH_AT_MOST = 2
_KEPT = "kept for backward"
_RESULTS = "results"
_OF_PHASE = {
    "forward": "used in forward only",
    "backward": "gradients",
    "update": "new values of the update",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Need:
    """Memory of a program at its peak.

    Attributes:
        parts: bytes by role.
        lines: bytes of buffers, by line of the user's source, the most first.
        reserved: bytes of ``parts`` that stay allocated between calls.
        shared: bytes of ``parts`` shared with other programs.
    """

    operation: str
    parts: tuple[Part, ...]
    lines: Mapping[str, int]
    reserved: int
    shared: int = 0


def need(program: Program, use: MemoryUse, allocation: Allocation) -> Need:
    """Return the memory of a program at the step with the most expected bytes.

    Args:
        program: the program after the passes of its lowering.
        use: memory plan of the lowering.
        allocation: share of planned bytes that becomes memory of the process.
    """
    known = use.shared is not None or bool(
        use.bare
    )  # there, tensors inside of operators are pieces
    inside = [
        _workspace(None if step in use.bare else node, known=known)
        for step, node in enumerate(use.nodes)
    ]
    busy = [alive + spaces.expected for alive, spaces in zip(use.alive(), inside, strict=True)]
    step = max(range(len(busy)), key=busy.__getitem__)
    needed = use.needed()
    parts = _alive(use, step, allocation, known=known)
    unused = needed[step] - sum(piece.size for piece in use.at(step))
    if unused:
        parts.append(Part(role=UNUSED, size=Interval.exact(unused)))
    spaces = _above(needed, inside, needed[step])
    if use.shared is not None:
        spaces = Interval.sum((spaces, _gaps(use)))
    parts.append(Part(role=WORKSPACE, size=spaces))
    if use.scratch:
        size = Interval(use.scratch, use.scratch, _SCRATCH_AT_MOST * use.scratch)
        parts.append(Part(role=SCRATCH, size=size))
    several = [node for step, node in enumerate(use.nodes) if node and step not in use.bare]
    kept = max(map(packed, several), default=0.0)
    if kept:
        parts.append(Part(role=PACKED, size=Interval(0, 0, kept)))
    return Need(
        operation=_operation(use.nodes[step], program.name),
        parts=tuple(parts),
        lines=_lines(use.at(step)),
        reserved=use.reserved,
        shared=use.shared or 0,
    )


def _alive(use: MemoryUse, step: int, allocation: Allocation, *, known: bool) -> list[Part]:
    """Return the live bytes at a program's step by role, the largest first."""
    planned = use.shared is not None
    if known:
        allocation = SETTLED if planned else RESULTS
    kept = set(map(id, use.inside))
    sizes: dict[str, list[Interval]] = {}
    for piece in use.at(step):
        role = _role(use, piece)
        if id(piece) in kept or (planned and piece.inner):
            size = Interval.exact(piece.size)
        elif known and role == _RESULTS:
            size = returned(piece.size)
        else:
            size = allocation.of(piece.size)
        sizes.setdefault(role, []).append(size)
    parts = [Part(role=role, size=Interval.sum(each)) for role, each in sizes.items()]
    return sorted(parts, key=lambda part: -part.size.expected)


def _lines(pieces: Iterable[Piece]) -> dict[str, int]:
    lines: Counter[str] = Counter()
    for piece in pieces:
        lines["" if piece.node is None else line_of(piece.node)] += piece.size
    return dict(lines.most_common())


def _gaps(use: MemoryUse) -> Interval:
    """Return the memory that the C allocator retains for internal buffers of libraries."""
    loose = tuple(each for each in use.pieces if each.inner)
    most = max(dataclasses.replace(use, pieces=loose, inside=()).alive(), default=0)
    return Interval(0, LOOSE.expected * most - most, LOOSE.most * most - most)


def _above(needed: list[int], inside: list[Interval], counted: int) -> Interval:
    """Return the bytes by which workspaces raise a program's peak above ``counted``."""
    expected, high = (
        max(taken + size for taken, size in zip(needed, sizes, strict=True)) - counted
        for sizes in ([each.expected for each in inside], [each.high for each in inside])
    )
    return Interval(0, expected, high)


def _workspace(node: torch.fx.Node | None, *, known: bool) -> Interval:
    if node is None:
        return Interval.exact(0)
    return workspace(node, known=known and arena.is_measured(node))


def _role(use: MemoryUse, piece: Piece) -> str:
    """Return the role of a buffer, from its producer and its last reader."""
    if piece.inner:
        return WORKSPACE
    made = None if piece.node is None else node_phase(piece.node)
    last = use.nodes[piece.last]
    read = None if last is None else node_phase(last)
    if last is not None and last.op == "output":
        return _RESULTS
    if made == "forward" and read in ("backward", "update"):
        return _KEPT
    return _OF_PHASE.get(made or "", "inside the program")


def _operation(node: torch.fx.Node | None, program: str) -> str:
    if node is None or node.op == "output":
        return f"the end of {program}"
    phase, line = node_phase(node) or program, line_of(node)
    return f"{node.target} in {phase}" + (f", {line}" if line else "")
