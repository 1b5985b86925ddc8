"""How fast this machine is at best: what a step's time is compared with, and estimated from.

Measured once per device and number of threads, in about a second, and kept in the user's cache.
Each limit is the best of several rounds, so that a busy moment does not make a slow machine.
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

import torch

from abele.kernels.build import cache_folder
from abele.storage import atomic, files

_VERSION = 1
_ROUND_S = 0.02
_LARGE, _SMALL = 64 * 2**20, 64 * 2**10  # bytes of an array: beyond every cache, and inside one
_MATRIX = 768


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineLimits:
    """What a device does at most with a number of threads.

    Attributes:
        device: ``cpu`` or ``cuda:0``.
        threads: of torch, when it was measured.
        operations_per_s: multiplications and additions of a product of float32 matrices.
        bytes_per_s: read and written by an element-wise sum of arrays that no cache holds.
        cached_bytes_per_s: the same where a cache holds them.
        new_bytes_per_s: written for the first time into memory that the system has just given.
        call_s: seconds that the smallest operator takes if it is called from Python.
    """

    device: str
    threads: int
    operations_per_s: float
    bytes_per_s: float
    cached_bytes_per_s: float
    new_bytes_per_s: float
    call_s: float

    def least_s(self, operations: float, size: float) -> float:
        """Seconds that an operation takes at least: the longer of computing and moving bytes."""
        return max(operations / self.operations_per_s, size / self.bytes_per_s)


def of_device(device: torch.device | str = "cpu") -> MachineLimits:
    """The limits of a device for torch's present number of threads, measured if not known yet.

    Args:
        device: where tensors are computed.
    """
    device = torch.device(device)
    path = _path(device)
    limits = _stored(path)
    if limits is None:
        limits = measured(device)
        with contextlib.suppress(OSError):  # a cache that cannot be written costs a second
            atomic.write_text(path, json.dumps(dataclasses.asdict(limits), indent=1))
    return limits


def measured(device: torch.device | str = "cpu", *, rounds: int = 5) -> MachineLimits:
    """The limits as they are measured now, with torch's present number of threads.

    Args:
        device: where tensors are computed.
        rounds: of which the best counts, for each limit.
    """
    device = torch.device(device)
    with torch.no_grad():
        a, b = (torch.ones(_MATRIX, _MATRIX, device=device) for _ in range(2))
        product = torch.empty_like(a)
        multiply = _best(lambda: torch.mm(a, b, out=product), device, rounds)
        new = _best(lambda: _new(device), device, rounds)
        one = torch.ones(1, device=device)
        return MachineLimits(
            device=str(device),
            threads=torch.get_num_threads(),
            operations_per_s=2 * _MATRIX**3 / multiply,
            bytes_per_s=_sum(_LARGE, device, rounds),
            cached_bytes_per_s=_sum(_SMALL * torch.get_num_threads(), device, rounds),
            new_bytes_per_s=_LARGE / new,
            call_s=_best(lambda: torch.add(one, one), device, rounds),
        )


def _sum(size: int, device: torch.device, rounds: int) -> float:
    """Bytes per second of an element-wise sum of arrays of ``size`` bytes each."""
    a, b, total = (torch.ones(size // 4, device=device) for _ in range(3))
    return 3 * size / _best(lambda: torch.add(a, b, out=total), device, rounds)


def _new(device: torch.device) -> torch.Tensor:
    """Memory as large as no allocator keeps it; on a GPU torch keeps it, as it does in a run."""
    return torch.empty(_LARGE // 4, device=device).fill_(1)


def _best(run: Callable[[], object], device: torch.device, rounds: int) -> float:
    """Seconds of one call, in the fastest of several rounds."""
    count, took = 1, _round(run, 1, device)  # the first is warm-up
    while (took := _round(run, count, device)) < _ROUND_S:
        count *= 2
    return min(took, *(_round(run, count, device) for _ in range(rounds - 1))) / count


def _round(run: Callable[[], object], count: int, device: torch.device) -> float:
    _wait(device)
    started = time.perf_counter()
    for _ in range(count):
        run()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _path(device: torch.device) -> Path:
    parts = (_VERSION, _name(device), platform.machine(), torch.__version__)
    key = hashlib.sha256(repr((*parts, torch.get_num_threads())).encode()).hexdigest()[:16]
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
    """What was measured before; None if it was not, or cannot be read."""
    try:
        with files.open_regular(path) as file:
            return MachineLimits(**json.loads(file.read()))
    except (OSError, ValueError, TypeError):
        return None
