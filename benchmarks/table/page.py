"""The table of the README, from the newest record of each row."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from .rows import ABELE, COMPILE, EAGER, JAX, ROWS

HEAD = """\
Whole training steps in float32, forward, backward and update: steps per second as a multiple of
plain PyTorch in the same run, medians of at least ten windows in turns, each way in a process of
its own. Memory is the peak of that process while it takes steps, over plain PyTorch's. First steps
are seconds after imports with nothing cached, in brackets with the code that was kept. "Over the
better" is abele over the faster peer, torch.compile or JAX, of those with numbers in the row."""
COLUMNS = (
    "| | torch.compile | JAX jit | abele | over the better | memory "
    "| first step: torch.compile | JAX | abele | record |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|"
)
_FOLDER = "benchmarks/records"
#: Processor and threads.
Machine = tuple[str, int]


def table(folder: Path) -> str:
    """Return one table for each machine and number of threads that has records.

    Those with most rows beside other compilers come first.

    Args:
        folder: of the records; those of ``--quick`` are not there.
    """
    machines = newest(folder)
    parts = [HEAD]
    for (processor, threads), entries in sorted(machines.items(), key=_rank):
        parts.append(f"\n{processor}, {threads} thread{'s' * (threads > 1)}:\n\n{COLUMNS}")
        parts += [_line(name, entries.get(name)) for name in ROWS]
        if mean := _mean(entries):
            parts.append(mean)
    if not machines:
        parts.append(f"\n{COLUMNS}")
        parts += [_line(name, None) for name in ROWS]
    return "\n".join(parts) + "\n"


def newest(folder: Path) -> dict[Machine, dict[str, tuple[dict[str, Any], str]]]:
    """Return for each machine the newest result of each row, and the name of its record."""
    machines: dict[Machine, dict[str, tuple[dict[str, Any], str]]] = {}
    for path in sorted(folder.glob("table_*.json"), key=_order):
        record = json.loads(path.read_text())
        environment = record["environment"]
        machine = environment["gpu"] or environment["cpu"], environment["threads"]
        for name, row in record["rows"].items():
            machines.setdefault(machine, {})[name] = (row, path.name)
    return machines


def _rank(item: tuple[Machine, dict[str, tuple[dict[str, Any], str]]]) -> tuple[int, Machine]:
    machine, entries = item
    return -sum("abele / best peer" in row["ratio"] for row, _ in entries.values()), machine


def _order(path: Path) -> tuple[str, int]:
    record = re.search(r"_(\d{4}-\d\d-\d\d)(?:_(\d+))?$", path.stem)
    return (record[1], int(record[2] or 1)) if record else ("", 0)


def _line(name: str, entry: tuple[dict[str, Any], str] | None) -> str:
    title = ROWS[name].title
    if entry is None:
        return f"| {title} | | | | | | | | | no record yet |"
    row, record = entry
    ways, ratio = row["ways"], row["ratio"]
    cells = [_multiple(ways.get(way), ratio.get(way)) for way in (COMPILE, JAX, ABELE)]
    cells += [_times(ratio.get(key)) for key in ("abele / best peer", "memory")]
    cells += [_first(ways.get(way)) for way in (COMPILE, JAX, ABELE)]
    return f"| {title} | {' | '.join(cells)} | [json]({_FOLDER}/{record}) |"


def _multiple(result: dict[str, Any] | None, ratio: float | None) -> str:
    if result is None:
        return "not measured"
    if "failed" in result:
        return "not written" if result["failed"] == "not written" else "failed"
    return _times(ratio)


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f} x"


def _first(result: dict[str, Any] | None) -> str:
    if result is None or "failed" in result:
        return "-"
    cached = result.get("cached_first_step_s")
    again = "" if cached is None else f" ({cached:.1f})"
    return f"{result['first_step_s']:.1f}{again} s"


def _mean(entries: dict[str, tuple[dict[str, Any], str]]) -> str:
    rows = [entries[name][0] for name in ROWS if name in entries]
    over = [
        row["ratio"]["abele / best peer"] for row in rows if "abele / best peer" in row["ratio"]
    ]
    eager = [row["ratio"][ABELE] for row in rows if {EAGER, ABELE} <= row["ratio"].keys()]
    if not eager:
        return ""
    means = [_times(_geometric(each)) for each in (eager, over)]
    return f"| geometric mean of {len(eager)} rows | | | {means[0]} | {means[1]} | | | | | |"


def _geometric(ratios: list[float]) -> float | None:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
