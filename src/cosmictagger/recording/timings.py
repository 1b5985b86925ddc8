"""Times of the parts of each iteration, and the resulting images per second."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from abele.storage import atomic

PARTS = (
    "train",
    "val",
    "io",
    "forward",
    "backward",
    "checkpoint",
    "loss",
    "summary",
    "log",
    "optimizer",
    "metrics",
)
"""Parts of an iteration, as CosmicTagger's profile files name them.

In CPU mode ``train`` is the sum of forward, loss, backward, optimizer and of moving data. Compiled
modes run them as one program and a GPU runs them behind the host's back, so there they stay zero.
"""

_US = "timedelta64[us]"
_RECORD = np.dtype(
    [("i", "i4"), ("start", "datetime64[us]"), ("iteration", _US), *((p, _US) for p in PARTS)]
)
_TIMED = ("iteration", *PARTS)
_OF_A_STEP = ("forward", "loss", "backward", "optimizer")


class Timings:
    """Times of the iterations of a run."""

    def __init__(self):
        self._rows: list[np.ndarray] = []
        self._row = np.zeros((), _RECORD)
        self._started = 0.0

    @contextlib.contextmanager
    def iteration(self, index: int) -> Iterator[None]:
        """One iteration; kept if it ends without an error."""
        self._row = np.zeros((), _RECORD)
        self._row["i"] = index
        self._row["start"] = np.datetime64(time.time_ns() // 1000, "us")
        self._started = time.perf_counter()
        yield
        self._row["iteration"] = _microseconds(time.perf_counter() - self._started)
        self._rows.append(self._row)
        self._row = np.zeros((), _RECORD)  # what follows, like a last checkpoint, is of none

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """One part of the present iteration; repeated parts add up."""
        started = time.perf_counter()
        yield
        self.add(name, time.perf_counter() - started)

    def add(self, name: str, seconds: float) -> None:
        """Add to a part of the present iteration what was measured elsewhere."""
        self._row[name] += _microseconds(seconds)

    def seconds(self, name: str) -> float:
        """Return how long a part of the present iteration took so far."""
        return float(self._row[name] / np.timedelta64(1, "s"))

    @property
    def iterations(self) -> list[float]:
        """Seconds of each whole iteration."""
        return [float(row["iteration"] / np.timedelta64(1, "s")) for row in self._rows]

    def split(self) -> dict[str, float]:
        """Return mean seconds of an iteration and its parts, if possible without the first one.

        Returns:
            ``iteration`` and those of ``PARTS`` that took any time.
        """
        rows = np.array(self._rows[1:] or self._rows, _RECORD)
        if not len(rows):
            return {}
        means = {name: float(rows[name].astype(np.int64).mean() / 1e6) for name in _TIMED}
        return {name: seconds for name, seconds in means.items() if seconds > 0}

    def save(self, folder: Path, instance: int = 0) -> Path:
        """Write ``profiling_info_rank_0.npy``: a structured array, one row per iteration."""
        path = folder / f"profiling_info_rank_{instance}.npy"
        rows = np.array(self._rows, _RECORD)
        with atomic.replacing(path) as file:
            np.save(file, rows, allow_pickle=False)
        return path


def _microseconds(seconds: float) -> np.timedelta64:
    return np.timedelta64(round(seconds * 1e6), "us")


def throughput(iterations: list[float], images: float) -> dict[str, float]:
    """Return images per second without the first iterations, which compile and warm up.

    Args:
        iterations: seconds of each.
        images: of one iteration, accumulated ones included.

    Returns:
        By name: ``all``, ``except_first``, ``except_first_two``, and ``last_40`` of longer runs.
    """
    parts = {"all": iterations, "except_first": iterations[1:], "except_first_two": iterations[2:]}
    if len(iterations) > 40:
        parts["last_40"] = iterations[-40:]
    return {n: images * len(times) / sum(times) for n, times in parts.items() if sum(times) > 0}


def split_line(split: Mapping[str, float]) -> str:
    """Return where the time of an iteration went, in one line; ``split`` is that of ``Timings``."""
    others = [name for name in PARTS if name not in ("io", "train", *_OF_A_STEP)]

    def said(*names: str) -> str:
        return ", ".join(f"{name} {split[name]:.3g}" for name in names if name in split)

    step = said(*_OF_A_STEP)
    if "train" in split:
        step = said("train") + (f" ({step})" if step else "")
    parts = ", ".join(part for part in (said("io"), step, said(*others)) if part)
    return f"Mean seconds of an iteration: {split['iteration']:.3g}: {parts}"


def closing_lines(iterations: list[float], images: float) -> list[str]:
    """Return the lines at the end of a run, in the words that CosmicTagger's analysis looks for."""
    rates = throughput(iterations, images)
    lines = [f"Total time to batch_process: {sum(iterations):.4f}"]
    for name, words, times in (
        ("except_first", "except first iteration", iterations[1:]),
        ("except_first_two", "except first two iterations", iterations[2:]),
        ("last_40", "last 40 iterations", iterations[-40:]),
    ):
        if name in rates:
            lines.append(
                f"Total time to batch process {words}: {sum(times):.4f}, "
                f"throughput: {rates[name]:.4f}"
            )
    return lines
