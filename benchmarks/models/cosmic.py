"""CosmicTagger: the network alone, and whole steps of the application's compute modes."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import torch
from torch import nn

from cosmictagger import backends
from cosmictagger.config.keys import ComputeMode, Optimizer
from cosmictagger.config.network import named
from cosmictagger.data.loader import Batch
from cosmictagger.measures import Loss
from cosmictagger.models import LossInForward, build

A21_SIZE = (320, 512)
# Network and images of examples/cosmictagger_demo.py.
SMALL = {"depth": 3, "n_initial_filters": 8, "bottleneck_deepest": 32}
SMALL_SIZE = (80, 128)
RATE = 3e-4


def a21(mark: Callable[[torch.Tensor], torch.Tensor] | None = None) -> nn.Module:
    """Build the network A21 at 320 x 512 with its loss."""
    return LossInForward(build(named("a21"), A21_SIZE), Loss("focal"), mark)


def a21_alone() -> nn.Module:
    """Build the network A21 without its loss."""
    return build(named("a21"), A21_SIZE)


def images(size: int) -> tuple[torch.Tensor]:
    """Images of three planes, float32 [size, 3, 320, 512]."""
    return (torch.randn(size, 3, *A21_SIZE),)


def batch(size: int, edges: tuple[int, int] = A21_SIZE) -> tuple[torch.Tensor, torch.Tensor]:
    """Images, float32 [size, 3, H, W], and labels, int64 of the same shape."""
    return torch.randn(size, 3, *edges), torch.randint(0, 3, (size, 3, *edges))


def step_of_mode(mode: str, size: int, *, compiled: bool) -> Callable[[], torch.Tensor]:
    """Return a training step of the small network through the application's own backend.

    Args:
        mode: CPU or IPU.
        size: images in a step.
        compiled: CPU mode only: with ``framework.compile=True``.
    """
    network = build(named("uresnet", **SMALL), SMALL_SIZE)
    settings = backends.Settings(
        mode=ComputeMode[mode],
        micro_batch=size,
        optimizer=Optimizer(),
        compile=compiled,
        channels_last=True,  # the application's default
    )
    backend = backends.create(network, Loss("focal"), settings)
    image, label = batch(size, SMALL_SIZE)
    ids = numpy.zeros((size, 3), numpy.int64)
    events = Batch(image, label, list(range(size)), ids)

    def step() -> torch.Tensor:
        loss = backend.train_step(events, RATE).loss
        assert loss is not None  # there are labels
        return loss

    return step
