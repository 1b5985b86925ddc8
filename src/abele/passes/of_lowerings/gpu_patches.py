"""Convolutions of small images and many channels as products of patches, on GPUs.

    y = convolution(x, w, bias)
->  p = patches of x [channels x taps, samples x pixels]
    y = mm(w [results, channels x taps], p) + bias

Few pixels leave cuDNN with few blocks that have long sums, which products divide among blocks: two
samples of 256 channels, 5 x 8 pixels and taps of 5 x 5 take 26 instead of 148 us on an H200. For
gradients patches were slower than cuDNN there in most sizes.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch

from abele.kernels.convolutions import convolution_of
from abele.passes._edit import inserted, rewritten_where
from abele.program import Program

aten = torch.ops.aten
_Node = torch.fx.Node

# Pixels of a batch up to which patches are used, and how many numbers are summed at least.
MOST_PIXELS, LEAST_SUMMED = 512, 2048


class _Sizes(NamedTuple):
    samples: int
    channels: int
    results: int
    height: int
    width: int
    tall: int
    wide: int


def gpu_patches(program: Program) -> Program:
    """Multiply patches in place of such convolutions, also in bodies of loops."""
    return rewritten_where(program, _is_small, _rewrite)


def _is_small(node: _Node) -> bool:
    sizes = _sizes(node) if node.target is aten.convolution.default else None
    if sizes is None:
        return False
    in_order = all(each.meta["val"].is_contiguous() for each in (node, node.all_input_nodes[0]))
    pixels = sizes.samples * sizes.height * sizes.width
    return (
        in_order
        and pixels <= MOST_PIXELS
        and sizes.channels * sizes.tall * sizes.wide >= LEAST_SUMMED
    )


def _sizes(node: _Node) -> _Sizes | None:
    """Sizes of a convolution that keeps those of its images; None of others."""
    convolution = convolution_of(node)
    if convolution is None or not convolution.moves_by_one:
        return None
    x, w = convolution.image, convolution.weight
    if x.dim() != 4 or {x.dtype, w.dtype} != {torch.float32}:
        return None
    *_, tall, wide = w.shape
    same = convolution.padding == (tall // 2, wide // 2) and tall % 2 == wide % 2 == 1
    if not same or tall * wide == 1 or not x.numel():
        return None
    samples, channels, height, width = x.shape
    return _Sizes(samples, channels, w.shape[0], height, width, tall, wide)


def _rewrite(node: _Node) -> None:
    sizes, given = _sizes(node), node.args
    assert sizes is not None
    image, weight, bias, *_ = cast("tuple[Any, ...]", given)
    rows = _ordered(node, weight, [sizes.results, -1])
    product = inserted(node, aten.mm.default, rows, _patches(node, image, sizes))
    images = [sizes.samples, sizes.height, sizes.width]
    shaped = inserted(node, aten.view.default, product, [sizes.results, *images])
    order = inserted(node, aten.permute.default, shaped, [1, 0, 2, 3])
    result = inserted(node, aten.clone.default, order, memory_format=torch.contiguous_format)
    if bias is not None:
        shaped = inserted(node, aten.view.default, bias, [1, sizes.results, 1, 1])
        result = inserted(node, aten.add.Tensor, result, shaped)
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)


def _patches(node: _Node, image: _Node, sizes: _Sizes) -> _Node:
    """What each pixel's result is a sum of: [channels x taps, samples x pixels]."""
    high, broad = sizes.tall // 2, sizes.wide // 2
    padded = inserted(node, aten.constant_pad_nd.default, image, [broad, broad, high, high])
    row = sizes.width + 2 * broad
    plane = row * (sizes.height + 2 * high)
    shape = [sizes.channels, sizes.tall, sizes.wide, sizes.samples, sizes.height, sizes.width]
    steps = [plane, row, 1, sizes.channels * plane, row, 1]
    windows = inserted(node, aten.as_strided.default, padded, shape, steps)
    return _ordered(node, windows, [sizes.channels * sizes.tall * sizes.wide, -1])


def _ordered(node: _Node, value: _Node, shape: list[int]) -> _Node:
    """A tensor in a shape, whose elements lie in order."""
    if not value.meta["val"].is_contiguous():
        value = inserted(node, aten.clone.default, value, memory_format=torch.contiguous_format)
    return inserted(node, aten.view.default, value, shape)
