"""The tables of README.md and benchmarks/notes/speed.md, from the newest record of each row."""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

from .rows import ABELE, COMPILE, EAGER, JAX, ROWS, SETS, THREADS

COLUMNS = (
    "| | torch.compile | JAX jit | abele | over the better | memory "
    "| first step: torch.compile | JAX | abele | record |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|"
)
COMPACT_COLUMNS = (
    "| training step | torch.compile | JAX jit | abele | over the better | memory | first step |\n"
    "|---|---:|---:|---:|---:|---:|---:|"
)
#: Processor and threads.
Machine = tuple[str, int]
#: Of each row the newest result and the name of its record.
Entries = dict[str, tuple[dict[str, Any], str]]


def table(folder: Path, links: str, rows: str = "table") -> str:
    """Return one table for each machine and number of threads that has records.

    Those with most rows beside other compilers come first.

    Args:
        folder: of the records; those of ``--quick`` are not there.
        links: the same folder as links of the page name it.
        rows: name of a set of rows.
    """
    machines = _machines(folder, rows)
    parts: list[str] = []
    for machine, entries in machines:
        parts.append(f"### {machine_name(machine)}\n\n{COLUMNS}")
        parts += [_line(name, entries.get(name), links) for name in SETS[rows]]
        if mean := _mean(entries):
            parts.append(f"| {mean[0]} | | | {mean[1]} | {mean[2]} | | | | | |")
        parts.append("")
    if not machines:
        parts += [COLUMNS, *(_line(name, None, links) for name in SETS[rows]), ""]
    return "\n".join(parts)


def compact(folder: Path, links: str) -> str:
    """Return the table of one processor and one GPU: those with most rows beside other compilers.

    Where two have as many, the one that was measured last; then that of fewer runs.

    Args:
        folder: of the records.
        links: the same folder as links of the page name it.
    """
    machines = _machines(folder)
    if not machines:
        return "No record yet: `python -m benchmarks table`.\n"
    gpus = _gpus(folder)
    kinds = [[each for each in machines if (each[0][0] in gpus) is gpu] for gpu in (False, True)]
    return "\n".join(_compact_table(*each[0], links) for each in kinds if each)


def scaled(folder: Path, links: str) -> str:
    """Return one table for each machine that measured with several numbers of threads.

    Args:
        folder: of the records.
        links: the same folder as links of the page name it.
    """
    parts: list[str] = []
    for machine, entries in newest(folder, THREADS).items():
        counts = sorted({int(n) for row, _ in entries.values() for n in row["threads"]})
        first, *more = counts
        heads = [f"{first} thread{'s' * (first > 1)}, over eager", *map(str, more)]
        parts += [f"### {machine[0]}\n", f"| | {' | '.join(heads)} | record |"]
        parts.append(f"|---|{'---:|' * len(counts)}---|")
        parts += [_scaled_line(name, *entries[name], counts, links) for name in entries]
        parts.append("")
    return "\n".join(parts) or "No record yet: `python -m benchmarks table --set threads`.\n"


def _scaled_line(name: str, row: dict[str, Any], record: str, counts: list[int], links: str) -> str:
    rates = {
        int(count): {
            way: each["step_per_s"]["median"]
            for way, each in measured["ways"].items()
            if "failed" not in each
        }
        for count, measured in row["threads"].items()
    }
    base = rates.get(counts[0], {})
    cells = ["-" if not {EAGER, ABELE} <= base.keys() else _times(base[ABELE] / base[EAGER])]
    for count in counts[1:]:
        now = rates.get(count, {})
        gains = [
            f"{now[way] / base[way]:.2f}" if way in now and way in base else "-"
            for way in (ABELE, EAGER, COMPILE)
        ]
        cells.append(f"**{gains[0]}**, {gains[1]}, {gains[2]}")
    return f"| {ROWS[name].title} | {' | '.join(cells)} | [json]({links}/{record}) |"


def _compact_table(machine: Machine, entries: Entries, links: str) -> str:
    parts = [f"{machine_name(machine)}:\n", COMPACT_COLUMNS]
    parts += [_compact_line(name, row) for name, (row, _) in entries.items()]
    if mean := _mean(entries):
        parts.append(f"| {mean[0]} | | | {mean[1]} | {mean[2]} | | |")
    records = sorted({record for _, record in entries.values()})
    named = ", ".join(f"[{i}]({links}/{record})" for i, record in enumerate(records, 1))
    return "\n".join([*parts, f"\nRecords: {named}."]) + "\n"


def _gpus(folder: Path) -> set[str]:
    """Names of GPUs that have records."""
    records = map(Path.read_text, folder.glob("table_*.json"))
    return {gpu for text in records if (gpu := json.loads(text)["environment"]["gpu"])}


def _machines(folder: Path, rows: str = "table") -> list[tuple[Machine, Entries]]:
    some = [
        (machine, {name: entries[name] for name in SETS[rows] if name in entries})
        for machine, entries in newest(folder).items()
    ]
    return sorted((item for item in some if item[1]), key=_rank)


def machine_name(machine: Machine) -> str:
    """Return processor and number of threads as headings name them."""
    processor, threads = machine
    return f"{processor}, {threads} thread{'s' * (threads > 1)}"


def newest(folder: Path, theme: str = "table") -> dict[Machine, Entries]:
    """Return for each machine the newest result of each row, and the name of its record."""
    machines: dict[Machine, Entries] = {}
    for path in sorted(folder.glob(f"{theme}_*.json"), key=age):
        record = json.loads(path.read_text())
        environment = record["environment"]
        machine = environment["gpu"] or environment["cpu"], environment["threads"]
        for name, row in record["rows"].items():
            machines.setdefault(machine, {})[name] = (row, path.name)
    return machines


def age(path: Path) -> tuple[str, int]:
    """Return day and number of a record from its name, ("", 0) where it has none."""
    record = re.search(r"_(\d{4}-\d\d-\d\d)(?:_(\d+))?$", path.stem)
    return (record[1], int(record[2] or 1)) if record else ("", 0)


def _rank(item: tuple[Machine, Entries]) -> tuple[int, int, int, Machine]:
    machine, entries = item
    beside_peers = sum("abele / best peer" in row["ratio"] for row, _ in entries.values())
    day = max(age(Path(record))[0] for _, record in entries.values())
    records = len({record for _, record in entries.values()})
    return -beside_peers, -int(day.replace("-", "") or 0), records, machine


def _line(name: str, entry: tuple[dict[str, Any], str] | None, links: str) -> str:
    title = ROWS[name].title
    if entry is None:
        return f"| {title} | | | | | | | | | no record yet |"
    row, record = entry
    ways, ratio = row["ways"], row["ratio"]
    cells = [_multiple(ways.get(way), ratio.get(way)) for way in (COMPILE, JAX, ABELE)]
    cells += [_times(ratio.get(key)) for key in ("abele / best peer", "memory")]
    cells += [_first(ways.get(way)) for way in (COMPILE, JAX, ABELE)]
    return f"| {title} | {' | '.join(cells)} | [json]({links}/{record}) |"


def _compact_line(name: str, row: dict[str, Any]) -> str:
    keys = (COMPILE, JAX, ABELE, "abele / best peer", "memory")
    cells = [_times(row["ratio"].get(key)) for key in keys]
    return f"| {ROWS[name].title} | {' | '.join(cells)} | {_first(row['ways'].get(ABELE))} |"


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
    return f"{users_first_step_s(result):.1f}{again} s"


def users_first_step_s(result: dict[str, Any]) -> float:
    """Return when a user has the first step, in seconds after the imports.

    Args:
        result: of a way. Older records have only the first step of one that waits for its compiler.
    """
    return statistics.median(result.get("users_first_steps_s", [result["first_step_s"]]))


def _mean(entries: Entries) -> tuple[str, str, str] | None:
    rows = [row for row, _ in entries.values()]
    over = [
        row["ratio"]["abele / best peer"] for row in rows if "abele / best peer" in row["ratio"]
    ]
    eager = [row["ratio"][ABELE] for row in rows if {EAGER, ABELE} <= row["ratio"].keys()]
    if not eager:
        return None
    title = f"geometric mean of {len(eager)} rows"
    return title, _times(_geometric(eager)), _times(_geometric(over))


def _geometric(ratios: list[float]) -> float | None:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
