"""Do the compute modes train the real A21 alike on real events, and how exact is each?

python benchmarks/cosmictagger_modes.py SAMPLE.h5            three steps at downsample 2
python benchmarks/cosmictagger_modes.py SAMPLE.h5 --record   keeps the result under records/

Runs that are in --out already are not made again.

Every mode runs through the application's command line. The same steps in float64 say how much of a
difference is rounding: Adam's first updates have the size of the learning rate whatever the
gradient, so where a gradient is all rounding its update has either sign, and modes drift apart as
far as each drifts from float64. The seconds of a run are those of its whole process, with its
compilation.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from pathlib import Path
from typing import Any

import harness
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from cosmictagger import checkpoints, models  # noqa: E402 - after the path above
from cosmictagger.backends._base import CONSTANTS  # noqa: E402
from cosmictagger.cli import main as cosmictagger  # noqa: E402
from cosmictagger.config.keys import OptimizerKind  # noqa: E402
from cosmictagger.config.network import named  # noqa: E402
from cosmictagger.data.larcv import EventFile  # noqa: E402
from cosmictagger.data.loader import EventLoader  # noqa: E402
from cosmictagger.measures import Loss  # noqa: E402
from cosmictagger.modes.training import Schedule  # noqa: E402

WAYS = {
    "CPU": ["run.compute_mode=CPU"],
    "IPU": ["run.compute_mode=IPU", "run.executable_cache=false"],
    "RDU": ["run.compute_mode=RDU"],
    "compile": ["run.compute_mode=CPU", "framework.compile=True"],
}
BATCH, RATE, DATA_SEED, SEED = 2, 0.0003, 3, 5
Weights = dict[str, torch.Tensor]


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("sample", type=Path, help="cosmic_tagging_light.h5 or another larcv3 file")
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, default=["CPU", "IPU"],
        help="compute modes; compile: CPU with framework.compile=True (default CPU IPU)",
    )  # fmt: skip
    parser.add_argument("--steps", type=int, default=3, help="of training (default 3)")
    parser.add_argument("--downsample", type=int, default=2, help="exponent (default 2)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--out", type=Path, default=Path("out/cosmictagger_modes"))
    parser.add_argument("--record", action="store_true", help="keep the result under records/")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    runs, seconds = {}, {}
    for way in options.ways:
        start, is_new = time.perf_counter(), not (options.out / way).exists()
        runs[way] = through_the_application(way, options)
        if is_new:
            seconds[way] = round(time.perf_counter() - start, 1)
    runs["float64"] = in_float64(options)
    result = {
        "environment": harness.environment(),
        "network": "A21",
        "downsample": options.downsample,
        "batch": BATCH,
        "seconds": seconds,
        "losses": {name: losses for name, (losses, _) in runs.items()},
        "largest_loss_difference": pairs(runs, difference_of_losses),
        "weights_distance": pairs(runs, distance_of_weights),
    }
    for key in ("seconds", "losses", "largest_loss_difference", "weights_distance"):
        print(f"{key}: {result[key]}")
    if options.record:
        print(harness.write_record("cosmictagger_modes", result).relative_to(ROOT))
    return 0


def through_the_application(way: str, options: argparse.Namespace) -> tuple[list[float], Weights]:
    """Train from fixed seeds with a command line; give the losses and the weights."""
    out = options.out / way
    status = 0 if (out / "train_metrics.csv").exists() else cosmictagger([
        "--config-name", "a21", "mode=train", f"run.id={way}", f"output_dir={out}",
        *WAYS[way], "data=real", f"data.data_directory={options.sample.parent}",
        f"data.file={options.sample.name}", "data.aux_file=", f"data.seed={DATA_SEED}",
        f"data.downsample={options.downsample}", "data.data_format=channels_first",
        f"framework.seed={SEED}", f"run.minibatch_size={BATCH}", "run.saver=False",
        f"run.iterations={options.steps}", f"mode.optimizer.learning_rate={RATE}",
    ])  # fmt: skip
    if status:
        raise SystemExit(status)
    with open(out / "train_metrics.csv", encoding="utf-8", newline="") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    if len(losses) != options.steps:
        raise SystemExit(
            f"{out} has a run of {len(losses)} steps. Remove it, or name another --out."
        )
    return losses, checkpoints.load(checkpoints.locate(out))["state_dict"]


def in_float64(options: argparse.Namespace) -> tuple[list[float], Weights]:
    """Return the same steps, in plain PyTorch and float64."""
    loader = EventLoader(
        EventFile(options.sample), batch_size=BATCH, shuffle=True, seed=DATA_SEED,
        across_epochs=True, downsample=options.downsample,
    )  # fmt: skip
    torch.manual_seed(SEED)
    network = models.build(named("a21"), loader.image_size).double()
    loss_of = Loss("focal").double()
    optimizer = torch.optim.Adam(network.parameters(), **CONSTANTS[OptimizerKind.adam])
    schedule, losses = Schedule(RATE, BATCH, loader.events), []
    with loader:
        for step, batch in zip(range(options.steps), epochs(loader), strict=False):
            optimizer.param_groups[0]["lr"] = schedule(step)
            loss = loss_of(network(batch.image.double()), batch.label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(round(loss.item(), 6))
    return losses, network.state_dict()


def epochs(loader: EventLoader):
    """Yield one epoch after another."""
    while True:
        yield from loader


def pairs(runs: dict[str, Any], measure: Any) -> dict[str, float]:
    """Return a measure of each two runs."""
    names = list(runs)
    return {
        f"{one} {other}": measure(runs[one], runs[other])
        for index, one in enumerate(names)
        for other in names[index + 1 :]
    }


def difference_of_losses(one: Any, other: Any) -> float:
    return round(max(abs(a - b) for a, b in zip(one[0], other[0], strict=True)), 6)


def distance_of_weights(one: Any, other: Any) -> float:
    """Return the norm of the difference of all parameters, by the norm of the second run's."""
    names = [name for name in one[1] if not name.endswith(("_mean", "_var", "_tracked"))]
    difference = sum((one[1][name].double() - other[1][name]).square().sum() for name in names)
    size = sum(other[1][name].double().square().sum() for name in names)
    return float(f"{math.sqrt(difference / size):.3g}")


if __name__ == "__main__":
    sys.exit(main())
