"""Measured peak compute and memory rates of this machine, for reports.

Rates are measured by the same torch on the same threads, not taken from a data sheet. Other
processes can only slow runs down, so the shortest of several runs counts.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

_SIDE = 256  # of the matrices: short enough to run through between two other processes
# Bytes of three vectors together: in near caches, in farther caches, and in memory.
_SIZES = (192 * 2**10, 1536 * 2**10, 12 * 2**20, 96 * 2**20)
_SPENT_S = 0.04
_LEAST_RUNS = 5


def measured() -> tuple[float, tuple[tuple[int, float], ...]]:
    """Measure peak float32 FLOP and memory rates with torch's threads, once per process.

    It takes half a second.

    Returns:
        Operations per second of a GEMM; and pairs of bytes that an operation touches, ascending,
        and of bytes per second.
    """
    return _measured(torch.get_num_threads())


@functools.cache
def _measured(threads: int) -> tuple[float, tuple[tuple[int, float], ...]]:
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
