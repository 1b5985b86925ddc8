"""How fast this machine is at best: what a step's time is compared with, and estimated from.

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

from abele.kernels.build import cache_folder
from abele.storage import atomic, files

_SIDE = 768  # of the matrices
# Of three vectors together: in the nearest caches, in further ones, and in memory.
_SIZES = (192 * 2**10, 1536 * 2**10, 12 * 2**20, 96 * 2**20)
_SPENT_S, _LEAST_RUNS = 0.1, 5
_TIMES = 4  # so many processes measure


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineLimits:
    """What a device does at most with a number of threads.

    Attributes:
        device: ``cpu`` or ``cuda:0``.
        threads: of torch, when it was measured.
        operations_per_s: multiplications and additions of a product of float32 matrices.
        bandwidths: bytes that an operation touches, from few to many, and how many of them go
            through in a second.
        call_s: seconds that the smallest operator takes if it is called from Python.
        times: how many processes have measured.
    """

    device: str
    threads: int
    operations_per_s: float
    bandwidths: tuple[tuple[int, float], ...]
    call_s: float
    times: int = 1

    def bytes_per_s(self, touched: int) -> float:
        """How many of the bytes that an operation touches go through in a second.

        Args:
            touched: bytes.
        """
        fitting = [rate for size, rate in self.bandwidths if size <= touched]
        return fitting[-1] if fitting else self.bandwidths[0][1]

    def better(self, other: MachineLimits) -> MachineLimits:
        """The best of two measurements of the same machine."""
        pairs = zip(self.bandwidths, other.bandwidths, strict=True)
        return dataclasses.replace(
            self,
            operations_per_s=max(self.operations_per_s, other.operations_per_s),
            bandwidths=tuple((size, max(rate, new)) for (size, rate), (_, new) in pairs),
            call_s=min(self.call_s, other.call_s),
            times=self.times + other.times,
        )


def of_device(device: torch.device | str = "cpu") -> MachineLimits:
    """The limits of a device for torch's present number of threads.

    Args:
        device: where tensors are computed. Measuring takes a second, the first few times.
    """
    device = torch.device(device)
    path = _path(device)
    limits = _stored(path)
    if limits is None or limits.times < _TIMES:
        now = measured(device)
        limits = now if limits is None else limits.better(now)
        with contextlib.suppress(OSError):  # then the next one measures again
            atomic.write_text(path, json.dumps(dataclasses.asdict(limits)))
    return limits


def measured(device: torch.device | str = "cpu") -> MachineLimits:
    """The limits as they are measured now, with torch's present number of threads.

    Args:
        device: where tensors are computed.
    """
    device = torch.device(device)
    with torch.no_grad():
        left, right, product = (torch.ones(_SIDE, _SIDE, device=device) for _ in range(3))
        multiplying = _shortest(lambda: torch.mm(left, right, out=product), device)
        one = torch.ones(1, device=device)
        return MachineLimits(
            device=str(device),
            threads=torch.get_num_threads(),
            operations_per_s=2 * _SIDE**3 / multiplying,
            bandwidths=tuple((size, size / _summing(size, device)) for size in _SIZES),
            call_s=_shortest(lambda: torch.add(one, one), device),
        )


def _summing(size: int, device: torch.device) -> float:
    """Seconds of an element-wise sum that touches so many bytes."""
    a, b, total = (torch.ones(size // 12, device=device) for _ in range(3))
    return _shortest(lambda: torch.add(a, b, alpha=3.0, out=total), device)


def _shortest(run: Callable[[], Any], device: torch.device) -> float:
    """The shortest of many runs: others only take longer because something disturbs them."""
    times: list[float] = []
    while len(times) < _LEAST_RUNS or sum(times) < _SPENT_S:
        _wait(device)
        began = time.perf_counter()
        run()
        _wait(device)
        times.append(time.perf_counter() - began)
    return min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _path(device: torch.device) -> Path:
    parts = (_name(device), platform.machine(), torch.__version__, torch.get_num_threads(), _SIZES)
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return cache_folder() / f"machine_limits_{key}.json"


def _name(device: torch.device) -> str:
    """The processor's name, or the GPU's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # another system than Linux
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), platform.processor())


def _stored(path: Path) -> MachineLimits | None:
    """What was measured before; None if it was not, or is damaged."""
    try:
        with files.open_regular(path) as file:
            data: dict[str, Any] = json.loads(file.read())
        pairs = tuple((int(size), float(rate)) for size, rate in data["bandwidths"])
        data["bandwidths"] = pairs
        limits = MachineLimits(**data)
        usable = limits.operations_per_s > 0 and limits.times > 0 and limits.call_s > 0
        same_sizes = tuple(size for size, rate in pairs if rate > 0) == _SIZES
        return limits if usable and same_sizes else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
