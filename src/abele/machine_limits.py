"""Limits of this machine, with which reports compare the times of operators.

Measured for each device and number of threads and kept in the user's cache. What else runs can
only slow that down, so the first few processes that ask measure again, and the best counts. What an
operation is compared with is the same torch on the same threads, not a data sheet.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from abele import processor
from abele.kernels.build import cache_folder
from abele.storage import atomic, files

_SIDE = 256  # of the matrices: short enough to run through between two other processes
# Of three vectors together: in the nearest caches, in further ones, and in memory.
_SIZES = (192 * 2**10, 1536 * 2**10, 12 * 2**20, 96 * 2**20)
_SPENT_S = 0.04
# Fewer runs are enough where they take so much longer than was meant.
_LEAST_RUNS, _OVERRUN = 5, 4
_CLOCK = "that of the thread, where there is one, lower quartile"
_TIMES = 4  # so many processes measure

_Bandwidths = tuple[tuple[int, float], ...]
#: What this process has added its measurement to, by file.
_measured_here: dict[Path, MachineLimits] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineLimits:
    """Peak rates of a device for numbers of float32 with a number of threads.

    Attributes:
        device: ``cpu`` or ``cuda:0``.
        threads: of torch, when it was measured.
        operations_per_s: multiplications and additions of a product of matrices.
        bandwidths: bytes that an operation touches, from few to many, and how many of them go
            through in a second.
        times: how many processes have measured.
    """

    device: str
    threads: int
    operations_per_s: float
    bandwidths: _Bandwidths
    times: int = 1

    def better(self, other: MachineLimits) -> MachineLimits:
        """Return the best of two measurements of one machine."""
        pairs = zip(self.bandwidths, other.bandwidths, strict=True)
        return dataclasses.replace(
            self,
            operations_per_s=max(self.operations_per_s, other.operations_per_s),
            bandwidths=tuple((size, max(rate, new)) for (size, rate), (_, new) in pairs),
            times=self.times + other.times,
        )

    def is_usable(self) -> bool:
        """Return whether all of it can be true."""
        numbers = (self.times, self.operations_per_s, *(rate for _, rate in self.bandwidths))
        return tuple(size for size, _ in self.bandwidths) == _SIZES and min(numbers) > 0


def of_device(device: torch.device | str = "cpu") -> MachineLimits:
    """Return the limits of a device for torch's present number of threads.

    Args:
        device: where tensors are computed. Measuring takes half a second; a process does it once.
    """
    device = torch.device(device)
    path = _path(device)
    limits = _stored(path) or _measured_here.get(path)
    if path not in _measured_here and (limits is None or limits.times < _TIMES):
        now = measured(device)
        limits = now if limits is None else limits.better(now)
        _measured_here[path] = limits
        with contextlib.suppress(OSError):  # then the next process measures again
            atomic.write_text(path, json.dumps(dataclasses.asdict(limits)))
    assert limits is not None
    return limits


def measured(device: torch.device | str = "cpu") -> MachineLimits:
    """Measure the limits with torch's present number of threads.

    Several threads are at least as fast as one of them, which a busy machine slows down less:
    nothing waits for a thread that has no core.

    Args:
        device: where tensors are computed.
    """
    device = torch.device(device)
    threads = torch.get_num_threads()
    limits = _measured(device)
    if device.type != "cpu" or threads == 1:
        return limits
    torch.set_num_threads(1)
    try:
        return dataclasses.replace(limits.better(_measured(device)), times=1)
    finally:
        torch.set_num_threads(threads)


def _measured(device: torch.device) -> MachineLimits:
    with torch.no_grad():
        vectors = [torch.ones(_SIZES[-1] // 12, device=device) for _ in range(3)]
        left, right, product = (torch.ones(_SIDE, _SIDE, device=device) for _ in range(3))
        multiplying = _shortest(lambda: torch.mm(left, right, out=product), device, _SPENT_S)
        return MachineLimits(
            device=str(device),
            threads=torch.get_num_threads(),
            operations_per_s=2 * _SIDE**3 / multiplying,
            bandwidths=tuple((size, size / _summing(size, vectors)) for size in _SIZES),
        )


def _summing(size: int, vectors: list[torch.Tensor]) -> float:
    """Return the seconds of an element-wise sum that touches so many bytes."""
    a, b, total = (each[: size // 12] for each in vectors)
    return _shortest(lambda: torch.add(a, b, alpha=3.0, out=total), a.device, _SPENT_S)


def _shortest(run: Callable[[], Any], device: torch.device, spent_s: float) -> float:
    """Return the shortest of many runs: others only take longer because something disturbs them.

    Where one thread does it all, the time of this thread counts if it is less: on a busy machine no
    run of more than a few milliseconds is without interruption. Of these times it is the lower
    quartile, because on a virtual machine some are too short, down to nothing: what its host takes
    from it is subtracted later than it was taken.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    shortest, spent, of_thread = float("inf"), 0.0, list[float]()
    while spent < (spent_s if len(of_thread) >= _LEAST_RUNS else _OVERRUN * spent_s):
        _wait(device)
        began_thread, began = time.thread_time(), time.perf_counter()
        run()
        _wait(device)
        took = time.perf_counter() - began
        of_thread.append(time.thread_time() - began_thread if alone else took)
        shortest, spent = min(shortest, took), spent + took
    return min(shortest, sorted(of_thread)[len(of_thread) // 4])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _path(device: torch.device) -> Path:
    measures = (_SIDE, _SIZES, _CLOCK)
    parts = (_name(device), platform.machine(), torch.__version__, torch.get_num_threads())
    key = hashlib.sha256(repr((*parts, *measures)).encode()).hexdigest()[:16]
    return cache_folder() / f"machine_limits_{key}.json"


def _name(device: torch.device) -> str:
    """Return the name of the processor or GPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor.name()


def _stored(path: Path) -> MachineLimits | None:
    """Return what was measured before; None if it was not, or is damaged."""
    try:
        with files.open_regular(path) as file:
            data: dict[str, Any] = json.loads(file.read())
        pairs = tuple((int(size), float(rate)) for size, rate in data.pop("bandwidths"))
        limits = MachineLimits(**data, bandwidths=pairs)
        return limits if limits.is_usable() else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
