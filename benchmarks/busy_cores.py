"""What do steps cost beside other busy processes, and beside none?

    python benchmarks/busy_cores.py [--rows lstm,mlp] [--busy 0,1,2] [--record]
    python benchmarks/busy_cores.py --than CHECKOUT

Each row of the table runs by abele and by plain PyTorch, or by abele in two checkouts, in turns,
beside so many processes that do nothing but compute. *Kept* is the share of the rate beside none.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "src")]  # not this folder, which has a cosmictagger.py

import torch  # noqa: E402 - after the paths above
from benchmarks import harness  # noqa: E402
from benchmarks.table import rows as table  # noqa: E402
from benchmarks.table.command import some  # noqa: E402
from benchmarks.table.measuring import Peer, PeerFailed  # noqa: E402
from tqdm import tqdm  # noqa: E402

LIMIT_S = 900.0
BUSY = "while True: pass"


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    harness.add_arguments(parser)
    parser.add_argument("--than", type=Path, help="another checkout, instead of plain PyTorch")
    parser.add_argument(
        "--rows",
        type=some(table.ROWS),
        default=["introduction-16", "lstm", "gpt", "unet"],
        help="with commas between (default introduction-16,lstm,gpt,unet)",
    )
    parser.add_argument("--busy", default="0,1,2", help="numbers of processes (default 0,1,2)")
    parser.add_argument("--window", type=float, default=0.5, help="seconds (default 0.5)")
    parser.add_argument("--cache", type=Path, help="folder of compiled code (default: none kept)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {"environment": harness.environment(), "rows": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = options.cache or Path(name)
        for row in options.rows:
            try:
                result["rows"][row] = measured(table.ROWS[row], folder, options)
            except PeerFailed as error:
                print(f"{row}: {error}", flush=True)
    if options.record:
        print(f"kept as {harness.write_record('busy-cores', result)}")
    return 0


def measured(row: table.Row, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return rates of each way of a row, and what it keeps, by the number of busy processes."""
    ways = {table.ABELE: (table.ABELE, ROOT), table.EAGER: (table.EAGER, ROOT)}
    if options.than:
        ways = {"here": (table.ABELE, ROOT), "other": (table.ABELE, options.than.absolute())}
    result: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        peers = {}
        for name, (way, root) in ways.items():
            peers[name] = stack.enter_context(_peer(row, way, folder / name, root, options.threads))
            peers[name].ask("start", LIMIT_S)
        for busy in options.busy.split(","):
            with _busy(int(busy)):
                for peer in peers.values():  # a step may take a hundred times as long
                    peer.ask(f"calibrate {options.window}", LIMIT_S)
                rates = result[busy] = _windows(peers, options.windows)
            for name, rate in rates.items():
                if "0" in result:
                    rate["kept"] = round(rate["median"] / result["0"][name]["median"], 3)
            text = ", ".join(
                f"{name} {it['median']:.2f} ({it.get('kept')})" for name, it in rates.items()
            )
            print(f"{row.name:22s} beside {busy}: steps/s (kept) {text}", flush=True)
    return result


def _peer(row: table.Row, way: str, folder: Path, root: Path, threads: int) -> Peer:
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(folder)
    os.environ["PYTHONPATH"] = str(root / "src")
    return Peer(row, way, threads, folder, tqdm(disable=True), root=root)


@contextlib.contextmanager
def _busy(count: int) -> Iterator[None]:
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def _windows(peers: dict[str, Peer], windows: int) -> dict[str, dict[str, Any]]:
    rates: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(windows):
        for name, peer in peers.items():
            rates[name].append(peer.ask("window", LIMIT_S)["step_per_s"])
    return {name: harness.summary(each, 0) for name, each in rates.items()}


if __name__ == "__main__":
    sys.exit(main())
