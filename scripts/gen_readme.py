"""Writes the generated parts of README.md: what works, and how fast, from facts and records.

python scripts/gen_readme.py            rewrites the parts
python scripts/gen_readme.py --check    exits 1 if they are stale
"""

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.table import page  # noqa: E402 - likewise

import poptorch  # noqa: E402 - after the path
import poptorch.testing  # noqa: E402 - not imported by the package
from poptorch.options import _table  # noqa: E402

README = ROOT / "README.md"
RECORDS = ROOT / "benchmarks" / "records"
SPEED_HEAD = """\
The introduction model, batch 16, SGD with momentum: steps per second as a multiple of plain PyTorch
in the same run, medians of at least ten windows. Machines are shared: only ratios within a run mean
anything.

| | torch.compile | abele | abele, with loader | first step cold | first step cached | record |
|---|---:|---:|---:|---:|---:|---|"""
COSMIC_HEAD = """
CosmicTagger's A21 network, two images of 3 planes, float32, against plain PyTorch in a process of
its own in the same run.

| | work | images/s | peak memory | first step after | record |
|---|---|---:|---:|---:|---|"""
_PIXELS = {1: "640 x 1024", 2: "320 x 512", 3: "160 x 256"}
_KINDS = {
    "class": "classes",
    "function": "functions",
    "enum": "enumerations",
    "exception": "exceptions",
    "submodule": "submodules",
}
WORKS = re.compile(r"(<!-- generated.*?-->\n).*?(<!-- end -->)", re.S)
SPEED = re.compile(r"(<!-- speed -->\n).*?(<!-- end speed -->)", re.S)
PEERS = re.compile(r"(<!-- peers -->\n).*?(<!-- end peers -->)", re.S)


def main() -> int:
    """Rewrite or check README.md."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if stale")
    options = parser.parse_args()
    old = README.read_text()
    new = WORKS.sub(lambda m: f"{m[1]}{works()}{m[2]}", old)
    new = SPEED.sub(lambda m: f"{m[1]}{speed()}{m[2]}", new)
    new = PEERS.sub(lambda m: f"{m[1]}{page.table(RECORDS)}{m[2]}", new)
    if options.check:
        if new != old:
            print("README.md is stale: run python scripts/gen_readme.py")
        return int(new != old)
    README.write_text(new)
    return 0


def works() -> str:
    """Return names of PopTorch 3.4 that exist here, by group."""
    facts = json.loads((ROOT / "tests/poptorch/interface.json").read_text())
    lines = ["| part of PopTorch 3.4 | here | of | not yet |", "|---|---:|---:|---|"]
    members = [n for n in facts["poptorch"]["PoplarExecutor"]["members"] if n[0] != "_"]
    optimizers = [
        n for n, entry in facts["poptorch.optim"].items() if len(entry.get("constructor", ())) > 2
    ]
    groups = [
        ("wrapper members", members, poptorch.PoplarExecutor),
        ("optimizers", optimizers, poptorch.optim),
    ]
    for kind, title in _KINDS.items():
        entries = [n for n, entry in facts["poptorch"].items() if entry["kind"] == kind]
        groups.append((title, entries, poptorch))
    for title, names, owner in groups:
        missing = [name for name in names if not hasattr(owner, name)]
        total = len(names)
        shown = ", ".join(f"`{name}`" for name in missing) or "-"
        lines.append(f"| {title} | {total - len(missing)} | {total} | {shown} |")
    rows = _table.TABLE
    counts = {status: sum(row.status is status for row in rows) for status in _table.Status}
    shown = ", ".join(f"{count} {status.value}" for status, count in counts.items())
    lines.append(f"| options | {len(rows)} | {len(rows)} | {shown} |")
    return "\n".join(lines) + "\n"


def speed() -> str:
    """Return the newest record of the introduction model per thread count, as ratios to eager."""
    newest: dict[int, Path] = {}
    for path in sorted(RECORDS.glob("introduction_*.json"), key=_order):
        newest[json.loads(path.read_text())["environment"]["threads"]] = path
    if not newest:
        return "No record yet: `python benchmarks/introduction.py --record`.\n"
    lines = [SPEED_HEAD]
    for threads, path in sorted(newest.items()):
        lines.append(_speed_row(threads, path))
    return "\n".join([*lines, *_cosmic_rows()]) + "\n"


def _cosmic_rows() -> list[str]:
    """Return the newest record of CosmicTagger for each size, work and number of threads."""
    newest: dict[tuple, Path] = {}
    for path in sorted(RECORDS.glob("cosmictagger_a21_ds*.json"), key=_order):
        size, mode = re.match(r"cosmictagger_a21_ds(\d)_([a-z]+)", path.stem).groups()
        threads = json.loads(path.read_text())["environment"]["threads"]
        newest[int(size), mode, threads] = path
    rows = [_cosmic_row(*key, path) for key, path in sorted(newest.items())]
    return [COSMIC_HEAD, *rows] if rows else []


def _cosmic_row(size: int, mode: str, threads: int, path: Path) -> str:
    result = json.loads(path.read_text())
    ratio, compiled = result["ratio"], result["ways"]["abele"]
    environment = result["environment"]
    return (
        f"| {environment['gpu'] or environment['cpu']}, "
        f"{threads} thread{'s' if threads > 1 else ''} "
        f"| {mode}, {_PIXELS[size]} | {ratio['images_per_s']:.2f} x "
        f"| {ratio['peak_mib']:.2f} x | {compiled['first_step_s']:.1f} s "
        f"| [json](benchmarks/records/{path.name}) |"
    )


def _order(path: Path) -> tuple[str, int]:
    record = re.search(r"_(\d{4}-\d\d-\d\d)(?:_(\d+))?$", path.stem)
    return (record[1], int(record[2] or 1)) if record else ("", 0)


def _speed_row(threads: int, path: Path) -> str:
    result = json.loads(path.read_text())
    ratio, start = result["ratio"], result["start"]
    environment = result["environment"]
    return (
        f"| {environment['gpu'] or environment['cpu']}, "
        f"{threads} thread{'s' if threads > 1 else ''} "
        f"| {ratio['torch.compile']:.2f} x | {ratio['abele']:.2f} x "
        f"| {ratio['abele with loader']:.2f} x | {start['abele cold']['first_step_s']:.1f} s "
        f"| {start['abele cached']['first_step_s']:.2f} s "
        f"| [json](benchmarks/records/{path.name}) |"
    )


if __name__ == "__main__":
    sys.exit(main())
