"""What this machine does at most: a product of matrices, and sums of long vectors.

Measured for each number of threads and kept in the user's cache. What else runs can only slow that
down, so the first few processes that ask measure again, and the best counts. What an operation is
compared with is the same torch on the same threads, not a data sheet.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from abele.kernels.build import cache_folder
from abele.report import facts
from abele.report.record import Limits
from abele.storage import atomic

_SIDE = 768  # of the matrices
# Of three vectors together: in the nearest caches, in further ones, and in memory.
_SIZES = (192 * 2**10, 1536 * 2**10, 12 * 2**20, 96 * 2**20)
_SPENT_S, _LEAST_RUNS = 0.2, 5
_TIMES = 4  # so many processes measure


def limits() -> Limits:
    """Those of this machine with the present number of threads; takes a second the first times."""
    threads, file = torch.get_num_threads(), _file()
    known = _known(file)
    entry = known.get(str(threads))
    if entry is None or entry["times"] < _TIMES:
        entry = known[str(threads)] = _better(entry, *_measured())
        with contextlib.suppress(OSError):  # then the next one measures again
            atomic.write_text(file, json.dumps(known))
    pairs = tuple((int(size), float(rate)) for size, rate in entry["bandwidths"])
    return Limits(threads=threads, operations=float(entry["operations"]), bandwidths=pairs)


def _better(
    entry: dict[str, Any] | None, operations: float, bandwidths: list[tuple[int, float]]
) -> dict[str, Any]:
    """The best of what is known and of what was measured now."""
    if entry is None or [size for size, _ in entry["bandwidths"]] != list(_SIZES):
        return {"operations": operations, "bandwidths": bandwidths, "times": 1}
    pairs = zip(entry["bandwidths"], bandwidths, strict=True)
    return {
        "operations": max(operations, entry["operations"]),
        "bandwidths": [(size, max(old, new)) for (size, old), (_, new) in pairs],
        "times": entry["times"] + 1,
    }


def _file() -> Path:
    machine = facts.machine()
    text = f"{machine.processor} {machine.cores} {machine.system} {machine.torch}"
    return cache_folder() / f"limits-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _known(file: Path) -> dict[str, Any]:
    """What was measured; an entry that is damaged is measured again."""
    try:
        data = json.loads(file.read_text())
        return {
            str(threads): entry
            for threads, entry in data.items()
            if entry["operations"] > 0
            and entry["times"] > 0
            and all(size > 0 and rate > 0 for size, rate in entry["bandwidths"])
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _measured() -> tuple[float, list[tuple[int, float]]]:
    """Operations in a second, and bytes in a second for each of ``_SIZES``."""
    left, right, product = (torch.ones(_SIDE, _SIDE) for _ in range(3))
    took = _shortest(lambda: torch.mm(left, right, out=product))
    bandwidths: list[tuple[int, float]] = []
    for size in _SIZES:
        vectors = [torch.ones(size // 12) for _ in range(3)]
        seconds = _shortest(lambda v=vectors: torch.add(v[0], v[1], alpha=3.0, out=v[2]))
        bandwidths.append((size, size / seconds))
    return 2 * _SIDE**3 / took, bandwidths


def _shortest(run: Callable[[], Any]) -> float:
    """The shortest of many runs: others only take longer because something disturbs them."""
    times: list[float] = []
    with torch.no_grad():
        while len(times) < _LEAST_RUNS or sum(times) < _SPENT_S:
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
    return min(times)
