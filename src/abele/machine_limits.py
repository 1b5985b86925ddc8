"""How fast this machine is at best: what a step's time is compared with, and estimated from.

Measured for each device and number of threads and kept in the user's cache. What else runs can
only slow that down, so the first few processes that ask measure again, and the best counts. What an
operation is compared with is the same torch on the same threads, not a data sheet.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import platform
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from abele import processor
from abele.kernels.build import cache_folder
from abele.storage import atomic, files

_SIDE = 256  # of the matrices: short enough to run through between two other processes
_WIDE, _FEW_ROWS = 1024, 64  # columns of a wide one, and rows of what it is multiplied with
#: Types whose products depend on where matrices lie, because libraries have less code for them.
_NARROW = (torch.bfloat16, torch.float16)
# Of three vectors together: in the nearest caches, in further ones, and in memory.
_SIZES = (192 * 2**10, 1536 * 2**10, 12 * 2**20, 96 * 2**20)
#: Types that are measured beside float32.
_TYPES = (torch.bfloat16, torch.float16, torch.float64)
_EXPONENTIALS = 2**14  # of one operation: in the nearest caches
_COUNTS = (1, _EXPONENTIALS, _EXPONENTIALS)
_SPENT_S, _SPENT_ON_TYPES_S = 0.04, 0.02
# Fewer runs are enough where they take so much longer than was meant.
_LEAST_RUNS, _OVERRUN = 5, 4
_CLOCK = "that of the thread, where there is one, lower quartile"
_TIMES = 4  # so many processes measure

_Bandwidths = tuple[tuple[int, float], ...]
#: What this process has added its measurement to, by file.
_measured_here: dict[Path, MachineLimits] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rates:
    """What a device does at most with numbers of one type.

    Attributes:
        operations_per_s: multiplications and additions of a product of matrices.
        turned_per_s: the same where the second matrix lies transposed, as weights of linear
            layers do in forward; libraries that have no code for a type differ there.
        bandwidths: bytes that an operation touches, from few to many, and how many of them go
            through in a second.
        left_turned_per_s: operations where the first matrix alone lies transposed, as in gradients
            of weights; 0 if it was not measured.
        wide_per_s: the same where rows of the second matrix are long; 0 if it was not measured.
    """

    operations_per_s: float
    turned_per_s: float
    bandwidths: _Bandwidths
    left_turned_per_s: float = 0.0
    wide_per_s: float = 0.0

    def products_per_s(self, *, left_turned: bool, turned: bool, columns: int) -> float:
        """Operations of a product of matrices in a second.

        Args:
            left_turned: the first matrix lies transposed.
            turned: the second one does.
            columns: of the second one.
        """
        if turned != left_turned:
            return self.turned_per_s if turned else self.left_turned_per_s or self.operations_per_s
        if turned or not 0 < self.wide_per_s < self.operations_per_s:
            return self.operations_per_s
        # Between the rows that were measured, each doubling costs the same share.
        share = math.log(max(columns, 1) / _SIDE) / math.log(_WIDE / _SIDE)
        slower = self.wide_per_s / self.operations_per_s
        return self.operations_per_s * slower ** min(max(share, 0.0), 1.0)

    def bytes_per_s(self, touched: int) -> float:
        """How many of the bytes that an operation touches go through in a second.

        Args:
            touched: bytes.
        """
        fitting = [rate for size, rate in self.bandwidths if size <= touched]
        return fitting[-1] if fitting else self.bandwidths[0][1]

    def streamed_per_s(self, memory: int) -> float:
        """How many bytes go through in a second where an operation finds them out of the caches.

        Args:
            memory: bytes that are touched between two uses.
        """
        fitting = [rate for size, rate in self.bandwidths if size >= memory]
        return fitting[0] if fitting else self.bandwidths[-1][1]

    def better(self, other: Rates) -> Rates:
        """The best of two measurements."""
        pairs = zip(self.bandwidths, other.bandwidths, strict=True)
        return Rates(
            operations_per_s=max(self.operations_per_s, other.operations_per_s),
            turned_per_s=max(self.turned_per_s, other.turned_per_s),
            bandwidths=tuple((size, max(rate, new)) for (size, rate), (_, new) in pairs),
            left_turned_per_s=max(self.left_turned_per_s, other.left_turned_per_s),
            wide_per_s=max(self.wide_per_s, other.wide_per_s),
        )

    def usable(self) -> bool:
        """Whether all of it can be true."""
        rates = (self.operations_per_s, self.turned_per_s, *(rate for _, rate in self.bandwidths))
        return tuple(size for size, _ in self.bandwidths) == _SIZES and min(rates) > 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class MachineLimits:
    """What a device does at most with a number of threads.

    Attributes:
        device: ``cpu`` or ``cuda:0``.
        threads: of torch, when it was measured.
        rates: by the name of the type, ``float32`` at least.
        exponentials_per_s: of numbers of float32 that are in the nearest caches.
        call_s: seconds that the smallest operator takes if it is called from Python.
        times: how many processes have measured.
    """

    device: str
    threads: int
    rates: Mapping[str, Rates]
    exponentials_per_s: float
    call_s: float
    times: int = 1

    def of_type(self, dtype: torch.dtype) -> Rates:
        """The rates of a type; those of float32 where it was not measured."""
        return self.rates.get(_name_of(dtype)) or self.rates["float32"]

    def better(self, other: MachineLimits) -> MachineLimits:
        """The best of two measurements of the same machine."""
        return dataclasses.replace(
            self,
            rates={name: rates.better(other.rates[name]) for name, rates in self.rates.items()},
            exponentials_per_s=max(self.exponentials_per_s, other.exponentials_per_s),
            call_s=min(self.call_s, other.call_s),
            times=self.times + other.times,
        )


def of_device(
    device: torch.device | str = "cpu", types: Collection[torch.dtype] = _TYPES
) -> MachineLimits:
    """The limits of a device for torch's present number of threads.

    Args:
        device: where tensors are computed. Measuring takes a second; a process does it once.
        types: that matter beside float32. Fewer are measured in half the time; others are ignored.
    """
    device, types = torch.device(device), tuple(each for each in _TYPES if each in types)
    path = _path(device, types)
    limits = _stored(path, types) or _measured_here.get(path)
    if path not in _measured_here and (limits is None or limits.times < _TIMES):
        now = measured(device, types)
        limits = now if limits is None else limits.better(now)
        _measured_here[path] = limits
        with contextlib.suppress(OSError):  # then the next process measures again
            atomic.write_text(path, json.dumps(dataclasses.asdict(limits)))
    assert limits is not None
    return limits


def measured(
    device: torch.device | str = "cpu", types: Sequence[torch.dtype] = _TYPES
) -> MachineLimits:
    """The limits as they are measured now, with torch's present number of threads.

    Several threads are at least as fast as one of them, which a busy machine slows down less:
    nothing waits for a thread that has no core.

    Args:
        device: where tensors are computed.
        types: that are measured beside float32.
    """
    device = torch.device(device)
    threads = torch.get_num_threads()
    limits = _measured(device, types)
    if device.type != "cpu" or threads == 1:
        return limits
    torch.set_num_threads(1)
    try:
        return dataclasses.replace(limits.better(_measured(device, types)), times=1)
    finally:
        torch.set_num_threads(threads)


def _measured(device: torch.device, types: Sequence[torch.dtype]) -> MachineLimits:
    with torch.no_grad():
        # What these bits are in other types are usual numbers, too.
        vectors = [torch.ones(_SIZES[-1] // 12, device=device) for _ in range(3)]
        rates = {"float32": _rates(torch.float32, vectors, _SPENT_S)}
        for dtype in types:
            rates[_name_of(dtype)] = _rates(dtype, vectors, _SPENT_ON_TYPES_S)
        one, many, results = (each[:count] for each, count in zip(vectors, _COUNTS, strict=True))
        raising = _shortest(lambda: torch.exp(many, out=results), device, _SPENT_S)
        return MachineLimits(
            device=str(device),
            threads=torch.get_num_threads(),
            rates=rates,
            exponentials_per_s=_EXPONENTIALS / raising,
            call_s=_shortest(lambda: torch.add(one, one), device, _SPENT_S),
        )


def _rates(dtype: torch.dtype, vectors: list[torch.Tensor], spent_s: float) -> Rates:
    device = vectors[0].device
    left, right, product = (torch.ones(_SIDE, _SIDE, dtype=dtype, device=device) for _ in range(3))
    pairs = [(left, right), (left, right.t())]
    if dtype in _NARROW:
        pairs.append((left.t(), right))
    plain, turned, *others = (
        _shortest(functools.partial(torch.mm, *each, out=product), device, spent_s)
        for each in pairs
    )
    return Rates(
        left_turned_per_s=2 * _SIDE**3 / others[0] if others else 0.0,
        wide_per_s=_wide(dtype, device, spent_s) if dtype in _NARROW else 0.0,
        operations_per_s=2 * _SIDE**3 / plain,
        turned_per_s=2 * _SIDE**3 / turned,
        bandwidths=tuple((s, s / _summing(s, dtype, vectors, spent_s)) for s in _SIZES),
    )


def _wide(dtype: torch.dtype, device: torch.device, spent_s: float) -> float:
    """Operations in a second of a product with a wide matrix."""
    few = torch.ones(_FEW_ROWS, _SIDE, dtype=dtype, device=device)
    wide = torch.ones(_SIDE, _WIDE, dtype=dtype, device=device)
    product = few.new_empty(_FEW_ROWS, _WIDE)
    took = _shortest(functools.partial(torch.mm, few, wide, out=product), device, spent_s)
    return 2 * _FEW_ROWS * _SIDE * _WIDE / took


def _summing(size: int, dtype: torch.dtype, vectors: list[torch.Tensor], spent_s: float) -> float:
    """Seconds of an element-wise sum that touches so many bytes."""
    a, b, total = (each[: size // 12].view(dtype) for each in vectors)
    return _shortest(lambda: torch.add(a, b, alpha=3.0, out=total), a.device, spent_s)


def _shortest(run: Callable[[], Any], device: torch.device, spent_s: float) -> float:
    """The shortest of many runs: others only take longer because something disturbs them.

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


def _path(device: torch.device, types: Sequence[torch.dtype]) -> Path:
    sides = (_SIDE, _WIDE, _FEW_ROWS)
    measures = (sides, _SIZES, tuple(map(_name_of, types)), _EXPONENTIALS, _CLOCK)
    parts = (_name(device), platform.machine(), torch.__version__, torch.get_num_threads())
    key = hashlib.sha256(repr((*parts, *measures)).encode()).hexdigest()[:16]
    return cache_folder() / f"machine_limits_{key}.json"


def _name(device: torch.device) -> str:
    """The processor's name, or the GPU's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor.name()


def _stored(path: Path, types: Sequence[torch.dtype]) -> MachineLimits | None:
    """What was measured before; None if it was not, or is damaged."""
    try:
        with files.open_regular(path) as file:
            data: dict[str, Any] = json.loads(file.read())
        data["rates"] = {name: _read(rates) for name, rates in data["rates"].items()}
        limits = MachineLimits(**data)
        numbers = (limits.times, limits.call_s, limits.exponentials_per_s)
        names = {"float32", *map(_name_of, types)}
        complete = set(limits.rates) == names and all(r.usable() for r in limits.rates.values())
        return limits if complete and min(numbers) > 0 else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _read(data: dict[str, Any]) -> Rates:
    return Rates(
        operations_per_s=data["operations_per_s"],
        turned_per_s=data["turned_per_s"],
        bandwidths=tuple((int(size), float(rate)) for size, rate in data["bandwidths"]),
        left_turned_per_s=data["left_turned_per_s"],
        wide_per_s=data["wide_per_s"],
    )


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
