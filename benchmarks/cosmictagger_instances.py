"""CosmicTagger in one instance on one core against two instances on two, images per second.

    python benchmarks/cosmictagger_instances.py                A21 at 320x512, IPU and CPU mode
    python benchmarks/cosmictagger_instances.py --only IPU --record

The whole application runs under poprun, with its loader, metrics, tables and log; only TensorBoard
is off. Launches of one and of two instances take turns; each is one window, without its first two
steps. Both are bound to their cores, and each instance has one thread and a minibatch of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import harness
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
MODES = ("IPU", "CPU")
MINIBATCH = 2  # of each instance


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    harness.add_arguments(parser)
    parser.add_argument("--only", choices=MODES, help="one mode instead of both")
    parser.add_argument("--instances", type=int, default=2, help="how many (default 2)")
    parser.add_argument("--steps", type=int, default=14, help="of a window, two are left out")
    parser.add_argument("--downsample", type=int, default=2, help="2: 320x512 (default)")
    parser.add_argument("--network", default="a21", help="default a21")
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < options.instances:
        raise SystemExit(f"{options.instances} cores are needed.")
    for mode in [options.only] if options.only else MODES:
        result = {"environment": harness.environment(), **measure(mode, options)}
        _print(mode, result)
        if options.record:
            path = harness.write_record(f"cosmictagger_instances-{mode.lower()}", result)
            print(f"record: {path.relative_to(ROOT)}")
    return 0


def measure(mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return windows of one and of several instances, in turns."""
    names = {"one": 1, "several": options.instances}
    rates: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        for name, count in names.items():  # compiles
            _images_per_second(Path(folder), f"{name}-first", mode, count, options)
        for window in tqdm(range(options.windows), desc=mode, leave=False, disable=None):
            for name, count in names.items():
                run = f"{name}-{window}"
                rates[name].append(_images_per_second(Path(folder), run, mode, count, options))
    entries = {
        name: {
            "median": statistics.median(each),
            "lowest": min(each),
            "highest": max(each),
            "windows": [round(rate, 3) for rate in each],
            "steps_per_window": options.steps - 2,
        }
        for name, each in rates.items()
    }
    return {
        "mode": mode,
        "network": options.network,
        "downsample": options.downsample,
        "instances": options.instances,
        "minibatch_per_instance": MINIBATCH,
        "images_per_s": entries,
        "ratio": harness.ratios(entries, "one")["several"],
    }


def _images_per_second(
    folder: Path, name: str, mode: str, count: int, options: argparse.Namespace
) -> float:
    """Return one launch of the application."""
    cores = sorted(os.sched_getaffinity(0))[:count]
    # In CPU mode the minibatch of synthetic data is that of each process as well.
    command = [
        sys.executable, "-m", "popdist.run", "--num-instances", str(count),
        "--num-replicas", str(count), "--numa-aware", "yes",
        "--executable-cache-path", str(folder / "cache"),
        sys.executable, "-m", "cosmictagger.cli", f"run.id={name}", f"output_dir={folder / name}",
        f"network={options.network}", "data=synthetic", f"data.downsample={options.downsample}",
        "data.seed=1", "framework.seed=1", f"run.compute_mode={mode}",
        f"run.distributed={mode == 'CPU'}", f"run.iterations={options.steps}",
        f"run.minibatch_size={MINIBATCH}", "run.saver=False",
    ]  # fmt: skip
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(options.threads),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), *sys.path])),
    }
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    record = json.loads((folder / name / "run.json").read_text())
    return record["images_per_second"]["except_first_two"]


def _print(mode: str, result: dict[str, Any]) -> None:
    rates = result["images_per_s"]
    for name in ("one", "several"):
        entry = rates[name]
        print(
            f"{mode} {name:8s} {entry['median']:.3f} images/s "
            f"({entry['lowest']:.3f} to {entry['highest']:.3f})"
        )
    print(f"{mode}: {result['instances']} instances make {result['ratio']:.2f} x the images/s")


if __name__ == "__main__":
    sys.exit(main())
