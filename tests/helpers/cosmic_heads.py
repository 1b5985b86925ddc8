"""A small network with both heads and its events; as a program, one of several instances of it."""

import dataclasses
import sys

import torch

from cosmictagger import instances, models
from cosmictagger.backends import Settings, create
from cosmictagger.config.keys import ComputeMode, Optimizer
from cosmictagger.config.network import Network
from cosmictagger.measures import Loss
from helpers.cosmic_small import batch_of

SIZE = (8, 16)
EVENT = {"active": True, "n_filters": 4, "n_layers": 1}
VERTEX = {"active": True, "n_filters": 4, "n_layers": 1, "depth": 1}
BOTH = {"classification": EVENT, "vertex": VERTEX}
# A bias before batch norm has no gradient but rounding, which Adam makes as large as any other.
WITHOUT_NORM = BOTH | {"normalization": "none"}


def network(**changes):
    """A network with one block at the smallest size, and no heads unless they are named."""
    small = {"n_initial_filters": 4, "depth": 1, "bottleneck_deepest": 4, "blocks_per_layer": 0}
    small |= {"blocks_deepest_layer": 1, "blocks_final": 0, "block_style": "none"}
    return Network(**{**small, **changes})


def built(**changes):
    """The module of a network, with the same weights each time."""
    torch.manual_seed(3)
    return models.build(network(**changes), SIZE)


def events(rows, seed=0):
    """Random events; the last one has no neutrino."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (rows,), generator=random)
    labels[-1] = 3
    vertex = torch.rand(rows, 3, 2, generator=random)
    return dataclasses.replace(batch_of(rows, seed, SIZE), event_label=labels, vertex=vertex)


def rows_of(batch, first, last):
    """Some events of a batch."""
    names = ("image", "label", "entries", "event_ids", "event_label", "vertex")
    return dataclasses.replace(batch, **{n: getattr(batch, n)[first:last] for n in names})


def made(mode, folder, heads=BOTH, **changes):
    """The backend of a mode for a network with heads."""
    settings = {"micro_batch": 2, "optimizer": Optimizer(), "folder": str(folder)}
    return create(
        built(**heads),
        Loss("focal", network(**heads)),
        Settings(mode=ComputeMode[mode], **{**settings, **changes}),
    )


def steps(backend, rows=2, count=2):
    """The results of training steps."""
    return [backend.train_step(events(rows, seed), 1e-2) for seed in range(count)]


def main(folder: str) -> None:
    """Trains with one event of four per instance in each micro-batch, and writes what came out."""
    group = instances.of_torch()
    settings = {"micro_batch": 1, "instances": group}
    backend = made(
        "CPU", folder, WITHOUT_NORM, **settings, optimizer=Optimizer(gradient_accumulation=2)
    )
    losses = []
    for seed in range(2):
        share = rows_of(events(4, seed), 2 * group.index, 2 * group.index + 2)
        result = backend.train_step(share, 1e-2)
        losses.append([value / group.count for value in result.parts.values()])
    parts = [group.total([float(value) for value in step]) for step in losses]
    if group.is_first:
        weights = {name: value.clone() for name, value in backend.network.named_parameters()}
        torch.save({"weights": weights, "parts": parts}, f"{folder}/shared.pt")


if __name__ == "__main__":
    main(sys.argv[1])
