"""Sums of each channel for batch norms, by many blocks for each channel.

Torch and cuDNN give a channel to one block, which leaves most of a GPU idle where images are large
and channels few: batch norms took 1.3 of the 3.3 ms that kernels of a U-Net's step took. Means and
distances of parts are merged as in Chan, Golub and LeVeque (1983).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from abele.targets.cuda.emitted.blocks import Blocks
from abele.targets.translation.batch_norms import BatchNorms
from abele.targets.translation.places import Place

# Elements of a channel that a block reads, as in device.h.
_OF_BLOCK = 4096
# Fewer pixels lie too far apart to be read by neighbouring threads.
_LEAST_PIXELS = 16
_LARGEST_INDEX = 2**31


def _statistics(
    translator: Any,
    x: Place,
    running: Sequence[Place],
    saved: Sequence[Place],
    updated: Sequence[Place],
    momentum: float,
    eps: float,
) -> None:
    moments = _for_parts(translator, x)
    parts = moments.size // 2
    translator.add(_call("channel_moments", [x], [moments], parts, _sizes(x)))
    settings = [eps, momentum] if running else [eps]
    reads, writes = [moments, *running], [*saved, *updated]
    rows = _sizes(x)[-1:]
    translator.add(_call("channel_statistics", reads, writes, x.shape[1], rows, settings))


def _sums(
    translator: Any, grad: Place, x: Place, mean: Place, rstd: Place, results: Sequence[Place]
) -> None:
    products = _for_parts(translator, x)
    parts, reads = products.size // 2, [grad, x, mean]
    translator.add(_call("channel_products", reads, [products], parts, _sizes(x)))
    reads, rows = [products, rstd], _sizes(x)[-1:]
    translator.add(_call("channel_totals", reads, list(results), x.shape[1], rows))


def _call(
    name: str,
    reads: list[Place],
    writes: list[Place],
    blocks: int,
    numbers: Sequence[int],
    settings: Sequence[float] = (),
) -> Blocks:
    """A function of device.h that is given numbers, settings, what it reads, and what it writes."""
    count = len(reads) + len(writes)
    arguments = [
        *(f"abele::number(p[{count + i}])" for i in range(len(numbers))),
        *(f"{each!r}f" for each in settings),
        *(f"(const float*)p[{i}]" for i in range(len(reads))),
        *(f"(float*)p[{i}]" for i in range(len(reads), count)),
    ]
    body = f"abele::{name}(block, {', '.join(arguments)});"
    return Blocks(reads, writes, name, body, blocks, numbers=tuple(numbers))


def _for_parts(translator: Any, x: Place) -> Place:
    """Memory for two numbers of each part of each channel."""
    return translator.new((x.shape[1], -(-_sizes(x)[-1] // _OF_BLOCK), 2), torch.float32)


def _usable(x: Place) -> bool:
    small = x.size < _LARGEST_INDEX
    return x.dtype is torch.float32 and x.size > 0 and small and _pixels(x) >= _LEAST_PIXELS


def _pixels(x: Place) -> int:
    return x.size // (x.shape[0] * x.shape[1])


def _sizes(x: Place) -> tuple[int, int, int]:
    """Channels, pixels of an image, and elements of a channel."""
    return x.shape[1], _pixels(x), x.size // x.shape[1]


HANDLERS = BatchNorms(_usable, _statistics, _sums).handlers
