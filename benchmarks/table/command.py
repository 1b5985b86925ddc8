"""``python -m benchmarks table``: measures rows and keeps a record of them."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from benchmarks import harness

from abele import processor

from . import ROOT
from .measuring import Turns, together
from .page import users_first_step_s
from .rows import BACKEND, DECORATOR, EAGER, JAX, ROWS, SCALED, SETS, THREADS, WAYS

QUICK = ROOT / "out" / "benchmarks"
COUNTS = (1, 2, 4, 8, 16)
OTHERS = (*WAYS, BACKEND, DECORATOR)
SCALED_WAYS = tuple(way for way in WAYS if way != JAX)  # it has no twins of half the networks


def run(arguments: list[str]) -> int:
    """Measure, print and record; return the exit status."""
    options = _parsed(arguments)
    scaled, threads = options.set == THREADS, options.threads
    torch.set_num_threads(max(threads))
    environment = {**harness.environment(), "jax": _version("jax")}
    if options.device == "cpu":
        environment["gpu"] = None  # one that is there has no part in it
    result: dict[str, Any] = {
        "environment": environment,
        "device": options.device,
        "quick": options.quick,
        "windows": options.windows,
        "window_s": options.window_s,
        "rows": {},
    }
    path = None
    for name in options.rows or (SCALED if scaled else SETS[options.set]):
        rows = together([_turns(name, count, options) for count in threads])
        counted = dict(zip(map(str, threads), rows, strict=True))
        result["rows"][name] = {"threads": counted} if scaled else rows[0]
        # After each row, because the next may take minutes and be stopped.
        for count, row in counted.items():
            _print(row, f", {count} thread{'s' * (count != '1')}" * scaled)
        sys.stdout.flush()
        path = _keep(result, path, options)
    print(f"record: {path}")
    if options.out == harness.RECORDS and not options.quick:
        return _rewrite_pages()
    return 0


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(arguments)
    scaled = options.set == THREADS
    if not options.threads:
        options.threads = [n for n in COUNTS if n <= processor.cores()] if scaled else [2]
    if len(options.threads) > 1 and not scaled:
        parser.error(f"--set {options.set} has one number of threads, --set {THREADS} has several")
    options.ways = options.ways or (SCALED_WAYS if scaled else WAYS)
    options.once = options.once or options.quick or scaled
    if options.quick:
        options.window_s, options.out = 0.1, QUICK
    return options


def _turns(name: str, threads: int, options: argparse.Namespace) -> Turns:
    return Turns(
        ROWS[name],
        options.ways,
        threads=threads,
        windows=options.windows,
        window_s=options.window_s,
        limit_s=options.limit_s,
        cached=not options.once,
        device=options.device,
    )


def _rewrite_pages() -> int:
    scripts = [ROOT / "scripts" / name for name in ("gen_readme.py", "gen_speed.py")]
    return max(subprocess.run([sys.executable, str(script)]).returncode for script in scripts)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks table", description=__doc__)
    parser.add_argument(
        "--set",
        choices=(*SETS, THREADS),
        default="table",
        help=f"small networks, real sizes, or {len(SCALED)} networks with several numbers of "
        "threads (default table)",
    )
    parser.add_argument("--rows", type=some(ROWS), help=f"instead of a set: {', '.join(ROWS)}")
    parser.add_argument("--ways", type=some(OTHERS), help=", ".join(OTHERS))
    parser.add_argument("--windows", type=int, default=10, help="of each way (default 10)")
    parser.add_argument("--window-s", type=float, default=0.5, help="seconds (default 0.5)")
    parser.add_argument(
        "--threads",
        type=_counts,
        help=f"of each way (default 2; of --set {THREADS}, {', '.join(map(str, COUNTS))} as far as "
        "there are cores)",
    )
    parser.add_argument(
        "--limit-s", type=float, default=1800, help="for a first step, seconds (default 1800)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"windows of 0.1 s and no second start, kept in {QUICK.relative_to(ROOT)}",
    )
    parser.add_argument(
        "--once", action="store_true", help="no second start with the code that was kept"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default cpu")
    parser.add_argument("--out", type=Path, default=harness.RECORDS, help="folder of the record")
    return parser


def _counts(text: str) -> list[int]:
    counts = [int(each) for each in text.split(",") if each.isdecimal()]
    if len(counts) <= text.count(",") or min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text} are no numbers of threads, such as 2 or 1,2,4")
    return counts


def some(known: Any) -> Any:
    """Return a type of arguments: known names with commas between, as a list."""

    def names(text: str) -> list[str]:
        chosen = text.split(",")
        unknown = [name for name in chosen if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown)} is not known; known are {', '.join(known)}"
            )
        return chosen

    return names


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _keep(result: dict[str, Any], path: Path | None, options: argparse.Namespace) -> Path:
    if path is None:
        theme = THREADS if options.set == THREADS else "table"
        if {BACKEND, DECORATOR} & {*options.ways}:  # no rows of the table
            theme = "dynamo-backend"
        return harness.write_record(theme, result, options.out)
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def _print(row: dict[str, Any], more: str = "") -> None:
    print(row["title"] + more)
    for way, entry in row["ways"].items():
        if "failed" in entry:
            print(f"  {way:14s} failed: {entry['failed']}")
            continue
        compared = f"{row['ratio'][way]:5.2f} x eager" if EAGER in row["ratio"] else ""
        cached = entry.get("cached_first_step_s")
        again = "" if cached is None else f", cached {cached:.2f} s"
        if "users_first_steps_s" in entry:
            again += f", for users {users_first_step_s(entry):.2f} s"
        print(
            f"  {way:14s} {entry['step_per_s']['median']:9.2f} steps/s {compared}; first step "
            f"{entry['first_step_s']:.2f} s{again}; peak {entry['step_peak_mib']:.0f} MiB"
        )
    if cores := row.get("threads_over_one"):
        print(f"  all threads multiplied {min(cores):.2f} to {max(cores):.2f} times as fast as one")
