"""Sums of each channel for batch norms, by many blocks for each channel.

Torch and cuDNN give a channel to one block, which leaves most of a GPU idle where images are large
and channels few: batch norms took 1.3 of the 3.3 ms that kernels of a U-Net's step took. Means and
distances of parts are merged as in Chan, Golub and LeVeque (1983).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from abele.targets.cuda.emitted.blocks import call
from abele.targets.cuda.emitted.channels import parts_of, sizes, usable
from abele.targets.translation.batch_norms import BatchNorms
from abele.targets.translation.places import Place


def _statistics(
    translator: Any,
    x: Place,
    running: Sequence[Place],
    saved: Sequence[Place],
    updated: Sequence[Place],
    momentum: float,
    eps: float,
) -> None:
    moments = translator.new((*parts_of(x), 2), x.dtype)
    parts = moments.size // 2
    translator.add(call("channel_moments", [x], [moments], parts, sizes(x)))
    settings = [eps, momentum] if running else [eps]
    reads, writes = [moments, *running], [*saved, *updated]
    rows = sizes(x)[-1:]
    translator.add(call("channel_statistics", reads, writes, x.shape[1], rows, settings))


def _sums(
    translator: Any, grad: Place, x: Place, mean: Place, rstd: Place, results: Sequence[Place]
) -> None:
    products = translator.new((*parts_of(x), 2), x.dtype)
    parts, reads = products.size // 2, [grad, x, mean]
    translator.add(call("channel_products", reads, [products], parts, sizes(x)))
    reads, rows = [products, rstd], sizes(x)[-1:]
    translator.add(call("channel_totals", reads, list(results), x.shape[1], rows))


HANDLERS = BatchNorms(usable, _statistics, _sums).handlers
