"""Measures the time of a session's kernels, in runs of its programs with and without clocks.

Both run alternately on copies of the session's state and on synthetic inputs, so the session and
the random numbers do not change, and these times are not part of any call.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele.compilation import compiling
from abele.compilation.executable import Executable
from abele.errors import AbeleError
from abele.program import Program, Role, all_nodes, has_effect
from abele.program.core import node_phase
from abele.report import facts, operators
from abele.report.record import Kernel, Limits, Run, Timing
from abele.report.record import Program as Recorded
from abele.runtime.device_state import DeviceState
from abele.targets import base
from abele.targets.base import Clocked
from abele.targets.base import Run as Call
from abele.targets.kernel_choice import BESIDE

BUDGET_S = 2.0
_MOST_RUNS = 30
# Copies may take so much of the machine's memory.
_MEMORY_SHARE = 0.25
_SIDE = 256  # of the matrices: short enough to run through between two other processes
# Bytes of three vectors together: in near caches, in farther caches, and in memory.
_SIZES = (192 * 2**10, 1536 * 2**10, 12 * 2**20, 96 * 2**20)
_SPENT_S = 0.04
_LEAST_RUNS = 5


def timed(run: Run, executable: Executable, state: DeviceState, budget_s: float = BUDGET_S) -> Run:
    """Measure kernel times of a run's programs, and return the extended record.

    Args:
        run: the record of the executable's programs.
        executable: the executable.
        state: state of the session, which is copied.
        budget_s: seconds for each program, which runs at least twice.
    """
    device = executable.target.device().type
    known = _limits() if device == "cpu" else None
    by_name = {each.name: executable.lowered(each.name) for each in executable.programs}
    programs: list[Recorded] = []
    for each in run.programs:
        program = by_name.get(each.name)
        timing: Timing | str = "it is not one of those that run now"
        if program is not None and known is not None:
            timing = _timed(program, executable, state, known, budget_s)
        elif known is None:
            timing = f"there are no clocks for {device}"
        done = isinstance(timing, Timing)
        programs.append(
            dataclasses.replace(
                each, timing=timing if done else None, untimed="" if done else str(timing)
            )
        )
    return dataclasses.replace(run, programs=tuple(programs), limits=known)


def _limits() -> Limits:
    """Return the peak rates of this machine with torch's present number of threads."""
    operations, bandwidths = limits_of_machine()
    return Limits(threads=torch.get_num_threads(), operations=operations, bandwidths=bandwidths)


def _timed(
    program: Program,
    executable: Executable,
    state: DeviceState,
    known: Limits,
    budget_s: float,
) -> Timing | str:
    """Return the measured kernel times of a program, or the reason why there are none."""
    if any(has_effect(node) for node in all_nodes(program.graph)):
        return "it prints or calls the host, which it would do once more"
    arguments = _arguments(program, state)
    if 2 * sum(each.nbytes for each in arguments) > _MEMORY_SHARE * facts.machine().memory_bytes:
        return "there is no room for copies of its state"
    lowering = executable.lowering(program.name)
    try:
        with_clocks = lowering.clocked(program)
        if with_clocks is None:
            return "its code has no place for clocks"
        plain = executable.compiled[program.name].run
        return _both(program, plain, with_clocks, arguments, known, budget_s)
    except (AbeleError, RuntimeError, MemoryError) as error:  # the run itself goes on
        return f"it failed ({type(error).__name__}: {error})"


def _arguments(program: Program, state: DeviceState) -> list[torch.Tensor]:
    """Return copies of the session's state, and synthetic inputs, for a program."""
    arguments = state.arguments(program, 0)
    made_up = compiling.made_up(
        dataclasses.replace(
            program, inputs=tuple(slot for slot in program.inputs if slot.role is Role.INPUT)
        )
    )
    rows = iter(made_up)
    return [
        next(rows) if slot.role is Role.INPUT else argument
        for slot, argument in zip(program.inputs, arguments, strict=True)
    ]


def _both(
    program: Program,
    plain: Call,
    with_clocks: Clocked,
    arguments: Sequence[torch.Tensor],
    known: Limits,
    budget_s: float,
) -> Timing:
    """Time alternating runs with and without clocks, averaging the fastest quarter of each."""
    fresh = _Copies(program, arguments)
    random_state = torch.get_rng_state()
    without: list[float] = []
    clocked: list[float] = []
    of_kernels: list[list[float]] = []
    try:
        _seconds(plain, fresh.taken())
        _seconds(with_clocks.run, fresh.taken())
        began = time.perf_counter()
        while len(without) < 2 or (
            len(without) < _MOST_RUNS and time.perf_counter() - began < budget_s
        ):
            if len(without) % 2:  # each is the first one as often: caches favour the second
                without.append(_seconds(plain, fresh.taken()))
            clocked.append(_seconds(with_clocks.run, fresh.taken()))
            if len(without) < len(clocked):
                without.append(_seconds(plain, fresh.taken()))
            of_kernels.append(
                [(end - begin) / 1e9 if end else 0.0 for begin, end in with_clocks.times()]
            )
    finally:
        torch.set_rng_state(random_state)
    chosen = _fastest(clocked)
    ran = sum(took > 0 for took in of_kernels[chosen[0]])
    return Timing(
        runs=len(chosen),
        seconds=_mean([without[i] for i in _fastest(without)]),
        clocked=_mean([clocked[i] for i in chosen]),
        clocks=ran * with_clocks.cost_ns / 1e9,
        kernels=_described(with_clocks.kernels, [of_kernels[i] for i in chosen], known),
    )


def _fastest(times: Sequence[float]) -> list[int]:
    order = sorted(range(len(times)), key=times.__getitem__)
    return sorted(order[: max(1, len(times) // 4)])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _seconds(call: Call, arguments: list[torch.Tensor]) -> float:
    """Return the seconds that a program's call takes."""
    began = time.perf_counter_ns()
    results = call(arguments)
    took = time.perf_counter_ns() - began
    del results  # freeing them is no part of it
    return took / 1e9


class _Copies:
    """Buffers that a program may write, reset to the same values before each run."""

    def __init__(self, program: Program, arguments: Sequence[torch.Tensor]):
        self._values = arguments
        self._copies = [each.clone() for each in arguments]
        self._written = [index for index, slot in enumerate(program.inputs) if slot.mutated]

    def taken(self) -> list[torch.Tensor]:
        """Reset the buffers that the program writes, and return all buffers."""
        for index in self._written:
            self._copies[index].copy_(self._values[index])
        return list(self._copies)


def _described(
    kernels: Sequence[base.Kernel],
    runs: Sequence[Sequence[float]],
    known: Limits,
) -> tuple[Kernel, ...]:
    """Describe each kernel of a program, with its mean time over several runs."""
    parts = _parts_of_nodes(kernels)
    described: list[Kernel] = []
    for index, kernel in enumerate(kernels):
        moved = [operators.moved_bytes(node) for node in kernel.nodes]
        size = sum(moved) if kernel.bytes is None else kernel.bytes
        work = _work(kernel, parts)
        first = next(iter(kernel.nodes), None)
        described.append(
            Kernel(
                what=kernel.what,
                operators=_shares(kernel.nodes, moved),
                phase="program" if first is None else node_phase(first) or "program",
                module="" if first is None else operators.module_of(first),
                line="" if first is None else facts.line_of(first),
                seconds=_mean([run[index] for run in runs]),
                operations=work,
                bytes=size,
                least=known.least(work, size),
            )
        )
    return tuple(described)


def _parts_of_nodes(kernels: Sequence[base.Kernel]) -> dict[torch.fx.Node, int]:
    """Count the kernels that compute each graph node, to divide its FLOPs among them.

    Concurrent kernels are counted only if no other kernel computes the node.
    """
    counts: dict[torch.fx.Node, int] = {}
    for kernel in kernels:
        for node in kernel.nodes:
            counts[node] = counts.get(node, 0) + (kernel.what not in BESIDE)
    return counts


def _work(kernel: base.Kernel, parts: dict[torch.fx.Node, int]) -> int:
    """Return the FLOPs of a kernel, with nodes of several kernels divided among them."""
    beside = kernel.what in BESIDE
    counted = [node for node in kernel.nodes if not (beside and parts[node])]
    return sum(operators.operations(node) // max(1, parts[node]) for node in counted)


def _shares(nodes: Sequence[torch.fx.Node], moved: Sequence[int]) -> tuple[tuple[str, float], ...]:
    """Return each operator's share of a kernel's bytes."""
    whole = sum(moved)
    shares: dict[str, float] = {}
    for node, size in zip(nodes, moved, strict=True):
        part = size / whole if whole else 1 / len(nodes)
        name = facts.operator_of(node)
        shares[name] = shares.get(name, 0.0) + part
    return tuple((name, round(share, 6)) for name, share in shares.items())


def limits_of_machine() -> tuple[float, tuple[tuple[int, float], ...]]:
    """Measure peak float32 FLOP and memory rates with torch's threads, once per process.

    It takes half a second. Other processes can only slow runs down, so the shortest counts.

    Returns:
        Operations per second of a GEMM; and pairs of bytes that an operation touches, ascending,
        and of bytes per second.
    """
    return _measured_limits(torch.get_num_threads())


@functools.cache
def _measured_limits(threads: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    several = _rates()
    torch.set_num_threads(1)  # one thread waits for no thread that has no core
    try:
        operations, *bandwidths = map(max, several, several if threads == 1 else _rates())
    finally:
        torch.set_num_threads(threads)
    return operations, tuple(zip(_SIZES, bandwidths, strict=True))


def _rates() -> list[float]:
    """Return the peak GEMM operations per second, and the bytes per second of each size."""
    with torch.no_grad():
        vectors = [torch.ones(_SIZES[-1] // 12) for _ in range(3)]
        left, right, product = (torch.ones(_SIDE, _SIDE) for _ in range(3))
        multiplying = _shortest(lambda: torch.mm(left, right, out=product))
        return [2 * _SIDE**3 / multiplying, *(size / _summing(size, vectors) for size in _SIZES)]


def _summing(size: int, vectors: list[torch.Tensor]) -> float:
    """Return the seconds of an elementwise sum that touches ``size`` bytes."""
    a, b, total = (each[: size // 12] for each in vectors)
    return _shortest(lambda: torch.add(a, b, alpha=3.0, out=total))


def _shortest(run: Callable[[], Any]) -> float:
    """Return the shortest wall time of several runs, in seconds."""
    times = list[float]()
    while len(times) < _LEAST_RUNS or sum(times) < _SPENT_S:
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)
