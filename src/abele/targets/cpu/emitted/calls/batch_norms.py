"""Sums of each channel for batch norms, as calls of a template or of the kernels' library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from abele.targets.cpu.emitted.calls import shared
from abele.targets.translation.batch_norms import BatchNorms
from abele.targets.translation.operations import ChannelCall
from abele.targets.translation.places import Place

_FLOATS_PER_THREAD = 8192


def _statistics(
    translator: Any,
    x: Place,
    running: Sequence[Place],
    saved: Sequence[Place],
    updated: Sequence[Place],
    momentum: float,
    eps: float,
) -> None:
    pointers = (
        "{0}, {1}, {2}, {3}, {4}, {5}, {6}"
        if running
        else ("{0}, nullptr, nullptr, {1}, {2}, nullptr, nullptr")
    )
    given = f"{_sizes(x)}, {eps!r}f, {momentum!r}f, {pointers}"
    text = shared.call("batch_statistics", _workers(x), (), given)
    part = f"abele_channel_statistics(begin, end, {given})"
    translator.add(ChannelCall([x, *running], [*saved, *updated], text, x.shape, part))


def _sums(
    translator: Any, grad: Place, x: Place, mean: Place, rstd: Place, results: Sequence[Place]
) -> None:
    pointers = "{0}, {1}, {2}, {3}, {4}, {5}"
    text = shared.call("batch_norm_sums", _workers(x), (), f"{_sizes(x)}, {pointers}")
    part = f"abele_channel_gradients(begin, end, {_sizes(x)}, {{apart}}, {pointers})"
    reads = [grad, x, mean, rstd]
    translator.add(ChannelCall(reads, list(results), text, x.shape, part, apart=True))


def _usable(x: Place) -> bool:
    return x.dtype is torch.float32 and x.size > 0


def _sizes(x: Place) -> str:
    samples, channels = x.shape[:2]
    return f"{samples}, {channels}, {x.size // (samples * channels)}"


def _workers(x: Place) -> int:
    return max(1, min(x.shape[1], x.size // _FLOATS_PER_THREAD))


HANDLERS = BatchNorms(_usable, _statistics, _sums).handlers
