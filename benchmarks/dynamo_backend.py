"""What do ``torch.compile(model, backend="abele")`` and ``abele.compile`` bring plain PyTorch?

    python benchmarks/dynamo_backend.py                       six networks of the table, two threads
    python benchmarks/dynamo_backend.py --rows mlp,gpt --threads 1 --record

Training steps with torch's optimizer outside the compiled model, or in the decorated step, each way
in a process of its own, in turns. A decorated step is compiled at its second call, which no first
step shows. A first step is measured three times over: with nothing cached and waiting for
compilers, with compiled code of before, and as users start, where first steps do not wait.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "src")]  # not this folder, which has a cosmictagger.py

import torch  # noqa: E402 - after the paths above
from benchmarks import harness  # noqa: E402
from benchmarks.table.measuring import Turns  # noqa: E402
from benchmarks.table.rows import ABELE, BACKEND, COMPILE, DECORATOR, EAGER, ROWS  # noqa: E402

DEFAULT = "introduction-16,mlp,gpt,transformer,resnet18,unet"
PEERS = (EAGER, COMPILE, BACKEND, DECORATOR, ABELE)


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    harness.add_arguments(parser)
    parser.set_defaults(threads=2)
    parser.add_argument("--rows", default=DEFAULT, help=f"with commas between (default {DEFAULT})")
    parser.add_argument("--ways", default=",".join(PEERS), help=", ".join(PEERS))
    parser.add_argument("--window-s", type=float, default=0.4, help="seconds (default 0.4)")
    parser.add_argument("--limit-s", type=float, default=600, help="for a first step (default 600)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {"environment": harness.environment(), "rows": {}}
    path = None
    for name in options.rows.split(","):
        turns = Turns(
            ROWS[name],
            options.ways.split(","),
            threads=options.threads,
            windows=options.windows,
            window_s=options.window_s,
            limit_s=options.limit_s,
            cached=True,
        )
        row = result["rows"][name] = turns.measure()
        print(text(row), flush=True)
        if options.record:  # after each, because the next may be stopped
            path = kept(result, path)
    return 0


def kept(result: dict[str, Any], path: Path | None) -> Path:
    """Write the rows measured so far; return the path of the record."""
    if path is None:
        return harness.write_record("dynamo-backend", result)
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def text(row: dict[str, Any]) -> str:
    """Format a row in one line for each way."""
    lines = [row["title"]]
    for way, entry in row["ways"].items():
        if "failed" in entry:
            lines.append(f"  {way:14s} failed: {entry['failed']}")
            continue
        starts = [f"{entry['first_step_s']:.2f}"]
        starts += [f"cached {entry[key]:.2f}" for key in ["cached_first_step_s"] if key in entry]
        users = sorted(entry.get("users_first_steps_s", []))
        starts += [f"for users {users[len(users) // 2]:.2f}"] if users else []
        lines.append(
            f"  {way:14s} {entry['step_per_s']['median']:9.2f} steps/s, "
            f"{row['ratio'].get(way, float('nan')):5.2f} x eager; first step "
            f"{', '.join(starts)} s; peak {entry['step_peak_mib']:.0f} MiB"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
