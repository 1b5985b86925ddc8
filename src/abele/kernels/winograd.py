"""Which convolutions the kernels compute by Winograd's way, because it is faster than others.

It needs less than half of the multiplications, but has to transform images, weights and results;
that is worth it from sixteen channels, where the direct kernels do not take them. The numbers
behind the limits come from ``benchmarks/convolutions.py``.
"""

from __future__ import annotations

from typing import Any

import torch

from abele import _torch

aten = torch.ops.aten

# Registers hold so many channels; those that are not there are computed in vain.
_LANES, _MOST_FILLED = 16, 1.25
_LEAST_CHANNELS = 16
# The kernels for few channels take so many pairs of channels, in rows of so many pixels, and
# CosmicTagger's A21 trains faster with them.
_DIRECT_PAIRS, _DIRECT_WIDTH = 32 * 32, 16
# Likewise outputs of a tile of 2x2 that lie beside the image.
_MOST_TILED = 1.5


def gains(node: torch.fx.Node) -> bool:
    """Return whether a node is such a convolution, or the backward of one.

    Args:
        node: any node of a graph; its values are described in ``meta["val"]``.
    """
    arguments: tuple[Any, ...] = node.args
    if node.target is aten.convolution.default:
        x, weight, _, stride, padding, dilation, transposed, _, groups = arguments
    elif node.target is aten.convolution_backward.default:
        _, x, weight, _, stride, padding, dilation, transposed, _, groups, _ = arguments
    elif node.target is not None and node.target is _torch.convolution_with_activation():
        x, weight, _, padding, stride, dilation, groups, activation, *_ = arguments
        transposed = activation not in ("none", "leaky_relu")
    else:
        return False
    image, kernel = x.meta["val"], weight.meta["val"]
    return (
        image.dim() == 4
        and image.dtype is torch.float32
        and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
        and kernel.shape[2:] == (3, 3)
        and {*stride, *dilation, groups} == {1}
        and not transposed
        and set(padding) in ({0}, {1})
        and _fills(image.shape, kernel.shape, padding[0])
    )


def _fills(image: torch.Size, kernel: torch.Size, padding: int) -> bool:
    """Whether little is computed that is then thrown away."""
    pixels = [size + 2 * padding - 2 for size in image[2:]]
    if min(*pixels, image[0]) < 1:
        return False
    tiled = 1.0
    for size in pixels:
        tiled *= (size + size % 2) / size
    channels = kernel[:2]
    few = channels[0] * channels[1] <= _DIRECT_PAIRS
    direct = few and image[3] >= _DIRECT_WIDTH and padding == 1
    return (
        not direct
        and tiled <= _MOST_TILED
        and all(
            count >= _LEAST_CHANNELS and -(-count // _LANES) * _LANES <= _MOST_FILLED * count
            for count in channels
        )
    )
