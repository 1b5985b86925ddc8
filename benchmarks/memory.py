"""How much memory do training steps of real size take, at their start and later?

    python benchmarks/memory.py --record                  seven networks, two threads
    python benchmarks/memory.py --rows vit-s,resnet18-224

Each way starts three times as it does for users, with nothing cached, in processes of their own.
Medians of the most that was resident: at the first step, until compiled programs run, and later.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "src")]  # not this folder, which has a cosmictagger.py

import torch  # noqa: E402 - after the paths above
from benchmarks import harness  # noqa: E402
from benchmarks.table.measuring import Peer, PeerFailed  # noqa: E402
from benchmarks.table.rows import DECORATOR, EAGER, ROWS, SETS  # noqa: E402
from tqdm import tqdm  # noqa: E402

_KEYS = ("import_mib", "first_peak_mib", "peak_mib", "step_peak_mib")


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    harness.add_arguments(parser)
    parser.set_defaults(threads=2)
    parser.add_argument("--rows", default=",".join(SETS["real"]), help="with commas between")
    parser.add_argument("--ways", default=f"{EAGER},{DECORATOR}", help="with commas between")
    parser.add_argument("--starts", type=int, default=3, help="of each way (default 3)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {"environment": harness.environment(), "rows": {}}
    ways = options.ways.split(",")
    for name in options.rows.split(","):
        row = result["rows"][name] = {way: measured(name, way, options) for way in ways}
        print(name, json.dumps(row), flush=True)
    if options.record:
        print(f"record: {harness.write_record('memory', result).relative_to(ROOT)}")
    return 0


def measured(name: str, way: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the medians of several starts of one way in MiB, and each start's."""
    starts: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, tqdm(disable=None, leave=False) as bar:
        for number in range(options.starts):
            given = ROWS[name], way, options.threads, Path(folder), bar
            with Peer(*given, user=f"of-user-{number}") as peer:
                commands = "start", "settle", "calibrate 1", "end"
                try:
                    answers = [peer.ask(each, 900) for each in commands]
                except PeerFailed as error:
                    return {"failed": str(error)}
            starts.append({key: (answers[0] | answers[-1])[key] for key in _KEYS})
    medians = {key: statistics.median(each[key] for each in starts) for key in _KEYS}
    return {**medians, "starts": starts}


if __name__ == "__main__":
    sys.exit(main())
