"""Writes docs/platforms.md and its note from records of what ran where, and such records.

python scripts/gen_platforms.py            rewrites the pages
python scripts/gen_platforms.py --check    exits 1 if one is stale
python scripts/gen_platforms.py --record "whole suite" --junit a.xml b.xml
python scripts/gen_platforms.py --record "README program" --counts 1 0 0 --set python=3.13.5

A record is written by the Python that ran the tests, or --set says what is different there.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from abele._torch import versions  # noqa: E402 - after the path

PAGES = (ROOT / "docs" / "platforms.md", ROOT / "benchmarks" / "notes" / "platforms.md")
RECORDS = ROOT / "benchmarks" / "records" / "platforms"
LINKS = "../records/platforms"  # from the note, which has the rows
SUITE, README = "whole suite", "README program"
#: What makes one row: keys of a record's environment.
ROW = ("torch", "python", "cpu", "compiler", "system")
COLUMNS = """\
| torch | Python | processor | compiler | system | what ran | outcome | record |
|---|---|---|---|---|---|---|---|"""
NAMES = {"torch": "torch", "python": "Python"}
Record = dict[str, Any]


def main() -> int:
    """Rewrite or check the pages, or write a record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if stale")
    parser.add_argument("--record", metavar="PART", help=f'what ran: "{SUITE}", "{README}", a path')
    parser.add_argument("--junit", nargs="+", type=Path, help="pytest's files of --junitxml")
    parser.add_argument("--counts", nargs=3, type=int, metavar=("PASSED", "FAILED", "SKIPPED"))
    parser.add_argument("--seconds", type=float, help="of --counts: how long it took")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help=", ".join(ROW))
    options = parser.parse_args()
    if options.record:
        if bool(options.junit) == bool(options.counts):
            parser.error("--record needs either --junit or --counts.")
        outcome = of_junit(options.junit) if options.junit else of_counts(options)
        given = dict(each.split("=", 1) for each in options.set)
        print(write(RECORDS, options.record, outcome, {**environment(), **given}))
        return 0
    stale = 0
    for path in PAGES:
        old = path.read_text()
        new = page(old, records(RECORDS))
        if options.check and new != old:
            stale = 1
            print(f"{path.relative_to(ROOT)} is stale: run python scripts/gen_platforms.py")
        elif new != old:
            path.write_text(new)
    return stale


def of_counts(options: argparse.Namespace) -> Record:
    """Return the outcome that the command line gives."""
    passed, failed, skipped = options.counts
    counts = {"passed": passed, "failed": failed, "skipped": skipped}
    return {**counts, "seconds": options.seconds, "failures": []}


def of_junit(paths: list[Path]) -> Record:
    """Return the outcome of the tests in pytest's files; of one that ran twice, the last counts."""
    outcomes: dict[str, str] = {}
    seconds = 0.0
    for path in paths:
        for suite in ElementTree.parse(path).iter("testsuite"):
            seconds += float(suite.get("time", 0))
            for case in suite.iter("testcase"):
                kinds = {child.tag for child in case}
                kind = "failed" if kinds & {"failure", "error"} else "passed"
                kind = "skipped" if "skipped" in kinds else kind
                outcomes[f"{case.get('classname')}::{case.get('name')}"] = kind
    kinds = list(outcomes.values())
    counts = {kind: kinds.count(kind) for kind in ("passed", "failed", "skipped")}
    failures = sorted(name for name, kind in outcomes.items() if kind == "failed")
    return {**counts, "seconds": round(seconds, 1), "failures": failures}


def environment() -> Record:
    """Return where this Python runs, as records of benchmarks do, with compiler and system."""
    from benchmarks import harness

    found = harness.environment()
    compiler = os.environ.get("CXX", "g++")
    try:
        version = subprocess.check_output([compiler, "-dumpfullversion", "-dumpversion"], text=True)
        found["compiler"] = f"{Path(compiler).name} {version.strip()}"
    except (OSError, subprocess.CalledProcessError):
        found["compiler"] = "none"
    with contextlib.suppress(OSError):
        release = platform.freedesktop_os_release()
        number = release.get("VERSION_ID") or release.get("VERSION_CODENAME", "")
        found["system"] = f"{release['NAME'].split()[0]} {number}, {platform.machine()}"
    return found


def write(folder: Path, part: str, outcome: Record, where: Record) -> Path:
    """Write the record of one run, in place of an older one of the same part at the same place."""
    name = "_".join([where["gpu"] or where["cpu"], *(where[key] for key in ROW if key != "cpu")])
    slug = re.sub(r"-?_-?", "_", re.sub(r"[^\w.]+", "-", f"{name}_{part}")).lower()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{slug}.json"
    path.write_text(json.dumps({"environment": where, "part": part, **outcome}, indent=1) + "\n")
    return path


def records(folder: Path) -> list[Record]:
    """Return the records of a folder, each with its file."""
    paths = sorted(folder.glob("*.json"))
    return [{**json.loads(path.read_text()), "file": path.name} for path in paths]


def page(text: str, found: list[Record]) -> str:
    """Return the page with its tables made anew."""
    for name, table in (("claims", claims(found)), ("rows", rows(found))):
        part = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)", re.S)
        text = part.sub(lambda m, table=table: f"{m[1]}{table}{m[2]}", text)
    return text


def claims(found: list[Record]) -> str:
    """Return the versions that this project names as tried, each with the most that ran there."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        named = " ".join(tomllib.load(file)["project"]["classifiers"])
    pythons = re.findall(r"Python :: (3\.\d+)", named)
    lines = ["| claimed | passed there |", "|---|---|"]
    for key, wanted in (("torch", versions.SUPPORTED), ("python", pythons)):
        for series in wanted:
            there = [each for each in found if _series(each, key) == series]
            lines.append(f"| {NAMES[key]} {series} | {_most(key, there)} |")
    return "\n".join(lines) + "\n"


def _series(record: Record, key: str) -> str:
    return ".".join(re.findall(r"\d+", record["environment"][key])[:2])


def _most(key: str, found: list[Record]) -> str:
    other = "python" if key == "torch" else "torch"
    beside: dict[str, set[str]] = {}
    for each in found:
        if not each["failed"]:
            beside.setdefault(each["part"], set()).add(_series(each, other))
    parts = [part for part in (SUITE, README) if part in beside][:1] or sorted(beside)[:1]
    texts = [f"{part} with {NAMES[other]} {_list(beside[part])}" for part in parts]
    others = len(beside) - len(parts)
    if others and SUITE not in beside:
        texts.append(f"{others} other part{'s' * (others > 1)}")
    return "; ".join(texts) or "nothing yet"


def _list(numbers: set[str]) -> str:
    return ", ".join(sorted(numbers, key=_number))


def _rank(part: str) -> tuple[bool, bool, str]:
    return part != SUITE, part != README, part


def _number(version: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", version)]


def rows(found: list[Record]) -> str:
    """Return one row for each record, and beneath them the tests that failed."""
    lines, failures = [COLUMNS], []
    before: list[str] = []
    for each in sorted(found, key=_order):
        place = _place(each)
        shown = place if place != before else [""] * len(place)
        lines.append(f"| {' | '.join([*shown, each['part'], _outcome(each), _link(each)])} |")
        before = place
        failures += [
            f"- torch {place[0]}, Python {place[1]}, {place[2]}: `{name}`"
            for name in each["failures"]
        ]
    if failures:
        lines += ["", "Failed:", "", *failures]
    return "\n".join(lines) + "\n"


def _place(record: Record) -> list[str]:
    where = record["environment"]
    return [where["gpu"] or where["cpu"] if key == "cpu" else where[key] for key in ROW]


def _order(record: Record) -> tuple[Any, ...]:
    torch, python, *others = _place(record)
    return _number(torch), _number(python), others, _rank(record["part"])


def _outcome(record: Record) -> str:
    counts = [
        f"{record[kind]:,} {kind}" for kind in ("passed", "failed", "skipped") if record[kind]
    ]
    if record["part"] == README:
        counts = ["failed" if record["failed"] else "passed"]
    if record["seconds"] is not None:
        seconds = record["seconds"]
        counts.append(f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.1f} s")
    return ", ".join(counts)


def _link(record: Record) -> str:
    where = record["environment"]
    changed = " with changes" if where["dirty"] else ""
    link = f"[{where['date']}]({LINKS}/{record['file']})"
    return ", ".join(filter(None, [link, f"{where['commit']}{changed}", where.get("note")]))


if __name__ == "__main__":
    sys.exit(main())
