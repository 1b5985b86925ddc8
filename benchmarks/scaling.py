"""How a step would take on up to 4,096 ranks: a model, calibrated with what this machine does.

    python benchmarks/scaling.py               measures and prints, about two minutes
    python benchmarks/scaling.py --record      also keeps the record and renews notes/scaling.*
    python benchmarks/scaling.py --redraw benchmarks/records/scaling_....json

The model is ``scaling_model.py``; what is measured and how, ``scaling_measure.py``. ResNet-18's
step comes from the newest record of ``networks.py``: compiling alone would take a minute.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import harness
import scaling_measure
import scaling_page
import torch
from scaling_model import (
    Network,
    Spread,
    System,
    Workload,
    efficiency,
    fit_network,
    fit_published,
    fit_spread,
    ring,
    simulate,
    step,
)

RANKS = tuple(2**n for n in range(13))
RESNET18_PARAMETERS, RESNET18_BATCH = 11_173_962, 32
# Assumed, not measured: a cluster of ordinary machines.
WIRE_LATENCY, WIRE_BANDWIDTH, STORAGE = 10e-6, 25e9 / 8, 10e9
# What overlapping would bring: four buckets behind half of compute. Not what the engine does.
HIDDEN, BUCKETS = 0.5, 4
A21_EVENT_BYTES, IMAGE_BYTES = 0.73e6, 3 * 32 * 32
# CosmicTagger on Polaris (A100, four ranks a node), images/s of all ranks: its repository's
# notebook about scaling.
PUBLISHED = {
    "torch DDP": {
        4: 13.42, 8: 26.44, 16: 52.77, 32: 101.7, 64: 208.0, 128: 350.7, 256: 685.2, 512: 1267.0,
        1024: 1965.0, 1700: 3097.0,
    },
    "TensorFlow, Horovod": {
        4: 10.14, 8: 19.85, 16: 39.60, 32: 78.60, 64: 155.5, 128: 232.7, 256: 559.6, 512: 1059.0,
        1024: 1480.0,
    },
}  # fmt: skip
# Assumed for that machine: eight images a rank, 200 Gb/s a node, two buckets behind backward, and
# the spread that the same authors saw between tiles of another machine.
POLARIS_BATCH, POLARIS_SPREAD = 8, 0.27 / 18.85
POLARIS = System("Polaris, assumed", Network(10e-6, 25e9), hidden=0.5, calls=2)
ASSUMED = {
    "wire_latency_s": WIRE_LATENCY,
    "wire_bytes_per_s": WIRE_BANDWIDTH,
    "storage_bytes_per_s": STORAGE,
    "a21_event_bytes": A21_EVENT_BYTES,
    "overlap": {"hidden": HIDDEN, "buckets": BUCKETS},
    "polaris_latency_s": POLARIS.network.latency,
    "polaris_bytes_per_s": POLARIS.network.bandwidth,
    "polaris_batch": POLARIS_BATCH,
    "polaris_relative_sd": POLARIS_SPREAD,
}


def main() -> int:
    """Measure and print; with --record also keeps the result and renew the page."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--record", action="store_true", help="keep the result, renew the page")
    parser.add_argument("--redraw", type=Path, metavar="RECORD", help="draw a record again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.redraw:
        result, name = json.loads(options.redraw.read_text()), options.redraw.name
    else:
        resnet18 = resnet18_step()  # says early that there is none
        result = project(harness.environment(), scaling_measure.everything(), resnet18)
        name = harness.write_record("scaling", result).name if options.record else None
    print("\n".join(scaling_page.lines(result)))
    if name is not None:
        scaling_page.renew(result, name)
    return 0


def resnet18_step() -> float:
    """Return seconds of a step of batch 32, of the newest record."""
    records = harness.RECORDS
    paths = [*records.glob("resnet18_*_1t_*.json"), *records.glob("networks_*_1t_*.json")]
    for path in sorted(paths, key=lambda path: path.stem[-12:], reverse=True):
        result = json.loads(path.read_text())
        result = result.get("networks", {"resnet18": result}).get("resnet18")
        if result is not None:
            return 1 / result["step_per_s"]["abele"]["median"]
    raise SystemExit(
        "There is no record of ResNet-18: python benchmarks/networks.py --only resnet18 --record"
    )


def project(
    environment: dict[str, Any], measured: dict[str, Any], resnet18: float
) -> dict[str, Any]:
    """Return everything that a record holds: measurements, what was fitted, and what follows."""
    reduction = {
        int(count): {int(size): took for size, took in times.items()}
        for count, times in measured["reduction_s"].items()
    }
    loopback = fit_network(reduction, 2)
    spread, distances = fit_spread(measured["a21_step_s"])
    carried = {
        str(size): took / ring(4, size, loopback) for size, took in sorted(reduction[4].items())
    }
    works = workloads(measured, spread, resnet18)
    cluster = systems(loopback)
    return {
        "environment": environment,
        "measured": measured,
        "resnet18_step_s": resnet18,
        "fitted": {
            "loopback": {"latency_s": loopback.latency, "bytes_per_s": loopback.bandwidth},
            "measured_over_model_4": carried,
            "spread": {"kind": spread.kind, "relative_sd": spread.sd / spread.mean},
            "spread_distances": distances,
        },
        "assumed": ASSUMED,
        "ranks": RANKS,
        "projected": [_projected(work, system) for work in works for system in cluster],
        "polaris": _polaris(),
        "published": {
            name: {"images_per_s": {str(n): rate for n, rate in points.items()}}
            | {"fit": fit_published(points)}
            for name, points in PUBLISHED.items()
        },
    }


def workloads(measured: dict[str, Any], spread: Spread, resnet18: float) -> list[Workload]:
    """CosmicTagger's A21 as measured, and ResNet-18 with the same relative spread."""
    relative = spread.sd / spread.mean
    return [
        Workload(
            "A21", spread, 4 * measured["a21_parameters"], 1, A21_EVENT_BYTES,
            measured["a21_loader_s"],
        ),
        Workload(
            "ResNet-18", Spread(spread.kind, resnet18, relative * resnet18),
            4 * RESNET18_PARAMETERS, RESNET18_BATCH, IMAGE_BYTES,
        ),
    ]  # fmt: skip


def systems(loopback: Network) -> list[System]:
    """Return a cluster on Ethernet: gloo's own cost per hop as measured, and a wire as assumed."""
    network = Network(loopback.latency + WIRE_LATENCY, min(loopback.bandwidth, WIRE_BANDWIDTH))
    return [
        System("ring", network, "ring", STORAGE),
        System("ring, overlapped", network, "ring", STORAGE, hidden=HIDDEN, calls=BUCKETS),
        System("halving", network, "halving", STORAGE),
        System("tree", network, "tree", STORAGE),
    ]


def _projected(work: Workload, system: System) -> dict[str, Any]:
    terms = {n: step(work, system, n) for n in RANKS}
    parts = ("stragglers", "reduction", "input")
    projected = {
        "workload": work.name,
        "system": system.name,
        "gradient_bytes": work.gradient_bytes,
        "terms_s": {str(n): vars(parts) for n, parts in terms.items()},
        "images_per_s": {str(n): n * work.images / parts.step for n, parts in terms.items()},
        "efficiency": {str(n): efficiency(work, system, n) for n in RANKS},
        "a_tenth_of_compute_from": {
            part: next(
                (n for n in RANKS if getattr(terms[n], part) >= 0.1 * terms[n].compute), None
            )
            for part in parts
        },
    }
    if not system.hidden:
        mean, error = simulate(work, system, 1024, steps=20, seed=1)
        projected["simulated_1024_s"] = {"mean": mean, "standard_error": error}
    return projected


def _polaris() -> dict[str, Any]:
    """Return the model's efficiency of the published machine, by wires and spread alone."""
    mean = 4 * POLARIS_BATCH / PUBLISHED["torch DDP"][4]
    work = Workload("A21", Spread("normal", mean, POLARIS_SPREAD * mean), 34_042_188, POLARIS_BATCH)
    ranks = [n for n in RANKS if n >= 4]
    return {"efficiency": {str(n): efficiency(work, POLARIS, n, base=4) for n in ranks}}


if __name__ == "__main__":
    sys.exit(main())
