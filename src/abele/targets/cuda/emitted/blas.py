"""Which of NVIDIA's libraries multiplies matrices, by measurement when a program is compiled.

cuBLAS and cuBLASLt choose among the same kinds of kernels by rules of their own, and each is
slower than the other for some sizes: on an H200, 64 x 1024 x 1024 takes 12 us with cuBLAS and 23
with cuBLASLt, 16 x 256 x 256 takes 31 and 3. Choices are kept with the program's code, so that a
program that is loaded has the bits of the one that was compiled.
"""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import sys
from collections.abc import Callable, Generator, Sequence

import torch

from abele.targets.cuda.emitted.source import Launch
from abele.targets.translation.operations import Foreign
from abele.targets.translation.places import Place

aten = torch.ops.aten

#: What torch calls unless told otherwise, and the other one.
USUAL, OTHER = "cublas", "cublaslt"
NAMES = (USUAL, OTHER)

_PRODUCTS = {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default}
# The other library has to be faster by more than what measurements differ by.
_GAIN = 0.95
_LAUNCHES, _WARM, _WINDOWS = 10, 2, 5
# Larger tensors are not made for a measurement; their products are as fast with either.
_MOST_BYTES = 1 << 28

#: Measures, with either library, work that multiplies once; in the order of ``NAMES``.
Clock = Callable[[Callable[[], object]], list[float]]


def is_product(step: Launch | Foreign) -> bool:
    """Whether NVIDIA's libraries multiply matrices in a step."""
    return isinstance(step, Foreign) and step.target in _PRODUCTS


def chosen(
    steps: Sequence[Launch | Foreign], device: torch.device, clock: Clock | None = None
) -> list[str]:
    """Return the faster library for each product, in the order of the steps.

    Args:
        steps: of a program.
        device: where products are computed.
        clock: measures; None for the clock of the GPU.
    """
    clock = clock or microseconds
    of_sizes: dict[object, str] = {}
    names: list[str] = []
    for step in steps:
        if isinstance(step, Foreign) and is_product(step):
            places = [each for each in step.arguments if isinstance(each, Place)]
            key = step.target, *((each.dtype, each.shape, each.stride) for each in places)
            if key not in of_sizes:
                of_sizes[key] = _faster(step, places, device, clock)
            names.append(of_sizes[key])
    return names


def _faster(step: Foreign, places: Sequence[Place], device: torch.device, clock: Clock) -> str:
    if sum(each.size * each.dtype.itemsize for each in places) > _MOST_BYTES:
        return USUAL
    operands = [_numbers(each, device) for each in places]
    usual, other = clock(lambda: step.target(*operands, **step.options))
    return OTHER if other < _GAIN * usual else USUAL


def _numbers(place: Place, device: torch.device) -> torch.Tensor:
    """A tensor laid out as one of the program; zeros would be multiplied faster than numbers."""
    size = 1 + sum((n - 1) * step for n, step in zip(place.shape, place.stride, strict=True))
    numbers = torch.linspace(-1, 1, size if place.size else 0, device=device)
    return numbers.to(place.dtype).as_strided(place.shape, place.stride)


@contextlib.contextmanager
def using(name: str | None) -> Generator[None]:
    """Let torch call a library for products while open, in all threads; None changes nothing."""
    if name is None:
        yield
        return
    before = torch.backends.cuda.preferred_blas_library()
    if name == OTHER:
        _tell_nobody_that_it_is_experimental()
    torch.backends.cuda.preferred_blas_library(name)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


@functools.cache
def _tell_nobody_that_it_is_experimental() -> None:
    """Torch says so at the first use, past Python, on the standard error of the process."""
    sys.stderr.flush()
    try:
        stderr = os.dup(2)
    except OSError:  # it is closed
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        torch.backends.cuda.preferred_blas_library(OTHER)
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def microseconds(work: Callable[[], object]) -> list[float]:
    """Measure work on the current GPU in turns: several runs of it as one graph, without the host.

    Args:
        work: multiplies once.

    Returns:
        Microseconds with each library.
    """
    graphs = [_captured(work, name) for name in NAMES]
    times: list[list[float]] = [[] for _ in graphs]
    for window in range(_WARM + _WINDOWS):
        for graph, of_graph in zip(graphs, times, strict=True):
            took = _replayed(graph)
            if window >= _WARM:
                of_graph.append(took)
    return [statistics.median(each) / _LAUNCHES for each in times]


def _captured(work: Callable[[], object], name: str) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with using(name):
        work()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            for _ in range(_LAUNCHES):
                work()
    return graph


def _replayed(graph: torch.cuda.CUDAGraph) -> float:
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in (0, 1))
    began.record()
    graph.replay()
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) * 1e3
