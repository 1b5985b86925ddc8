"""Tells neutrinos from cosmic muons: python examples/cosmictagger_demo.py.

Makes events of a simulated detector, trains a small network on some, and labels others that it has
not seen, with the command line of the application. --mode IPU makes one compiled program of the
same run. `out/cosmictagger_demo/report.html` shows how well it does, event by event.
"""

import argparse
import csv
import sys
from pathlib import Path

from cosmictagger.__main__ import main as cosmictagger

NETWORK = "depth=3 n_initial_filters=8 bottleneck_deepest=32"
COLUMNS = ("mIoU", "Cosmic_IoU", "Neutrino_IoU")


def arguments(args: argparse.Namespace) -> list[str]:
    """Return what training and inference have in common."""
    return [
        "run.id=demo",
        f"run.compute_mode={args.mode}",
        "run.minibatch_size=4",
        f"output_dir={args.out}",
        f"data.folder={args.out}/events",
        f"data.events={args.events}",
        f"data.aux_events={args.unseen}",
        "data.rows=640",
        "data.columns=1024",
        "data.seed=1",
        "framework.seed=1",
        *(f"network.{change}" for change in NETWORK.split()),
    ]


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", default="CPU", choices=["CPU", "GPU", "IPU", "RDU"])
    parser.add_argument("--events", type=int, default=60, help="to train on")
    parser.add_argument("--unseen", type=int, default=8, help="events to label")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("out/cosmictagger_demo"))
    args = parser.parse_args(argv)
    training = ["mode=train", f"run.iterations={args.steps}", "mode.optimizer.learning_rate=0.003"]
    for mode in ([*training, "mode.optimizer.loss_balance_scheme=light"], ["mode=inference"]):
        if status := cosmictagger([*mode, *arguments(args)]):
            return status
    print("entry | neutrino | mIoU  | cosmic | neutrino")
    with open(args.out / "event_metrics.csv", newline="") as file:
        for row in csv.DictReader(file):
            scores = " | ".join(f"{float(row[f'Average/{name}']):6.3f}" for name in COLUMNS)
            print(f"{row['entry']:>5} | {row['neutrino_energy'] or '-':>8} | {scores}")
    print(f"All of it: {args.out / 'report.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
