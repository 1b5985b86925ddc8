"""Writes the tables of benchmarks/notes/speed.md from the newest records of benchmarks.

python scripts/gen_speed.py            rewrites them
python scripts/gen_speed.py --check    exits 1 if they are stale
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.table import page  # noqa: E402 - after the path
from benchmarks.table.rows import DECORATOR, EAGER, ROWS  # noqa: E402

PAGE = ROOT / "benchmarks" / "notes" / "speed.md"
RECORDS = ROOT / "benchmarks" / "records"
LINKS = "../records"
INTRODUCTION_COLUMNS = """\
| machine | torch.compile | abele | abele, with loader | first step cold | cached | record |
|---|---:|---:|---:|---:|---:|---|"""
COSMICTAGGER_COLUMNS = """\
| machine | work | images/s | peak memory | first step after | record |
|---|---|---:|---:|---:|---|"""
NETWORKS_COLUMNS = """\
| machine | network | abele | lowering | first step, waiting | record |
|---|---|---:|---|---:|---|"""
MEMORY_COLUMNS = """\
| machine | training step | plain PyTorch | torch | first step | start | later steps | record |
|---|---|---:|---:|---:|---:|---:|---|"""
_PIXELS = {1: "640 x 1024", 2: "320 x 512", 3: "160 x 256"}


def main() -> int:
    """Rewrite or check benchmarks/notes/speed.md."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if stale")
    options = parser.parse_args()
    old = new = PAGE.read_text()
    tables = {
        "peers": page.table(RECORDS, LINKS),
        "real": page.table(RECORDS, LINKS, "real"),
        "threads": page.scaled(RECORDS, LINKS),
        "memory": memory(),
        "introduction": introduction(),
        "cosmictagger": cosmictagger(),
        "networks": networks(),
    }
    for name, text in tables.items():
        part = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)", re.S)
        new = part.sub(lambda m, text=text: f"{m[1]}{text}{m[2]}", new)
    if options.check:
        if new != old:
            print("benchmarks/notes/speed.md is stale: run python scripts/gen_speed.py")
        return int(new != old)
    PAGE.write_text(new)
    return 0


def introduction() -> str:
    """Return the newest record of the introduction model per machine, as ratios to eager."""
    newest: dict[str, Path] = {}
    for path in sorted(RECORDS.glob("introduction_*.json"), key=page.age):
        newest[_machine(json.loads(path.read_text()))] = path
    if not newest:
        return "No record yet: `python benchmarks/introduction.py --record`.\n"
    rows = [_introduction_row(machine, path) for machine, path in sorted(newest.items())]
    return "\n".join([INTRODUCTION_COLUMNS, *rows]) + "\n"


def _introduction_row(machine: str, path: Path) -> str:
    result = json.loads(path.read_text())
    ratio, start = result["ratio"], result["start"]
    return (
        f"| {machine} | {ratio['torch.compile']:.2f} x | {ratio['abele']:.2f} x "
        f"| {ratio['abele with loader']:.2f} x | {start['abele cold']['first_step_s']:.1f} s "
        f"| {start['abele cached']['first_step_s']:.2f} s "
        f"| [json]({LINKS}/{path.name}) |"
    )


def cosmictagger() -> str:
    """Return the newest record of CosmicTagger for each size, work and machine."""
    newest: dict[tuple[int, str, str], Path] = {}
    for path in sorted(RECORDS.glob("cosmictagger_a21_ds*.json"), key=page.age):
        size, mode = re.match(r"cosmictagger_a21_ds(\d)_([a-z]+)", path.stem).groups()
        newest[int(size), mode, _machine(json.loads(path.read_text()))] = path
    if not newest:
        return "No record yet: `python benchmarks/cosmictagger.py --record`.\n"
    rows = [_cosmictagger_row(*key, path) for key, path in sorted(newest.items())]
    return "\n".join([COSMICTAGGER_COLUMNS, *rows]) + "\n"


def _cosmictagger_row(size: int, mode: str, machine: str, path: Path) -> str:
    result = json.loads(path.read_text())
    ratio, compiled = result["ratio"], result["ways"]["abele"]
    return (
        f"| {machine} | {mode}, {_PIXELS[size]} | {ratio['images_per_s']:.2f} x "
        f"| {ratio['peak_mib']:.2f} x | {compiled['first_step_s']:.1f} s "
        f"| [json]({LINKS}/{path.name}) |"
    )


def networks() -> str:
    """Return the newest record of each network per machine, as ratios to eager."""
    newest: dict[tuple[str, str], tuple[Path, dict[str, Any]]] = {}
    for path in sorted(RECORDS.glob("networks_*.json"), key=page.age):
        result = json.loads(path.read_text())
        for name, row in result["networks"].items():
            newest[_machine(result), name] = path, row
    if not newest:
        return "No record yet: `python benchmarks/networks.py --threads 2 --record`.\n"
    rows = [
        f"| {machine} | {row['title']} | {row['ratio']['abele']:.2f} x | {row['lowering']} "
        f"| {row['first_step_s']:.1f} s | [json]({LINKS}/{path.name}) |"
        for (machine, _), (path, row) in newest.items()
    ]
    return "\n".join([NETWORKS_COLUMNS, *rows]) + "\n"


def memory() -> str:
    """Return the newest peaks of each row and machine, as ratios to plain PyTorch's peak."""
    newest: dict[tuple[str, str], str] = {}
    for path in sorted(RECORDS.glob("memory_*.json"), key=page.age):
        result = json.loads(path.read_text())
        machine = _machine(result)
        for name, row in result["rows"].items():
            if not any("failed" in entry for entry in row.values()):
                line = _memory_row(row[EAGER], row[DECORATOR])
                newest[machine, name] = (
                    f"| {machine} | {ROWS[name].title} | {line} | [json]({LINKS}/{path.name}) |"
                )
    if not newest:
        return "No record yet: `python benchmarks/memory.py --record`.\n"
    return "\n".join([MEMORY_COLUMNS, *newest.values()]) + "\n"


def _memory_row(plain: dict[str, Any], ours: dict[str, Any]) -> str:
    """Return cells of two ratios: of all resident memory, and of what torch alone does not take."""
    cells = [f"{plain['peak_mib']:.0f} MiB", f"{plain['import_mib']:.0f} MiB"]
    for key, other in (
        ("first_peak_mib", "first_peak_mib"),
        ("peak_mib", "peak_mib"),
        ("step_peak_mib", "peak_mib"),
    ):
        own = (ours[key] - ours["import_mib"]) / (plain[other] - plain["import_mib"])
        cells.append(f"{ours[key] / plain[other]:.2f} x ({own:.2f} x)")
    return " | ".join(cells)


def _machine(result: dict[str, Any]) -> str:
    environment = result["environment"]
    return page.machine_name((environment["gpu"] or environment["cpu"], environment["threads"]))


if __name__ == "__main__":
    sys.exit(main())
