"""Replacement of convolutions with few channels by our own kernels.

    a = convolution(x, w, b, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
->  a = few_channel_conv(x, w, b, [1, 1], [0, 0])

and likewise their backward. The library's kernels fill their registers with 16 channels, ours with
samples. Which is faster was measured with AVX-512 on 1 and 2 cores; see
``benchmarks/convolutions.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele.ops import few_channel_conv
from abele.passes._edit import editable, finished, substitute
from abele.program import Program

aten = torch.ops.aten

# Fewer samples are computed one by one if rows and columns advance by one, which pays for images of
# any size; else most lanes of a register idle, and only few channels are worth that.
_LEAST_BATCH = 8
_MOST_CHANNELS_OF_ANY_BATCH = 16
# Where both channel counts divide by this the library is as good, and soon better; with few samples
# not before it has so many.
_LIBRARY_BLOCK = 16
_LIBRARY_CHANNELS = 32
_MOST_CHANNELS = 64
# Larger images leave the second-level cache when 16 samples are kept side by side.
_MOST_PIXELS_PER_SAMPLE = 65536


def replaced(program: Program, is_ours: Callable[[torch.fx.Node], bool]) -> Program:
    """Replace convolutions by our kernels.

    Args:
        program: any.
        is_ours: says which, of convolutions and their backwards; ``why_not`` has to be None.
    """
    graph = editable(program)
    for node in graph.graph.nodes:
        if node.target is aten.convolution.default and is_ours(node):
            substitute(node, few_channel_conv.forward, _arguments(node))
        elif node.target is aten.convolution_backward.default and is_ours(node):
            substitute(node, few_channel_conv.backward, _arguments(node))
    return finished(program, graph)


def why_not(node: torch.fx.Node) -> str | None:
    """Return why the library computes a convolution or its backward; ``None`` if our kernels do.

    Our kernels support those and are faster at them. A gradient that is not contiguous is copied.
    """
    arguments: tuple[Any, ...] = node.args
    if node.target is aten.convolution.default:
        x, weight, _, stride, padding, dilation, transposed, _, groups = arguments
        result = node
    else:
        result, x, weight, _, stride, padding, dilation, transposed, _, groups, _ = arguments
    values = [each.meta["val"] for each in (x, weight, result)]
    if any(each != 1 for each in dilation) or transposed or groups != 1:
        return "the library's: our kernels know no dilation, transposition or groups"
    in_order = values if node.target is aten.convolution.default else values[:2]
    if not all(map(_plain, values)) or not all(value.is_contiguous() for value in in_order):
        return "the library's: our kernels are for contiguous images in float32"
    where = _library_gains(*values, one_by_one=_one_by_one(values[1], stride, padding))
    return where and f"the library's: it is faster with {where}"


def _plain(value: torch.Tensor) -> bool:
    return value.dim() == 4 and value.numel() > 0 and value.dtype is torch.float32


def _one_by_one(weight: torch.Tensor, stride: Sequence[int], padding: Sequence[int]) -> bool:
    """Whether there is code that computes samples one by one."""
    borders = zip(_pair(padding), weight.shape[2:], strict=True)
    return all(each == 1 for each in stride) and all(pad < kernel for pad, kernel in borders)


def _library_gains(
    x: torch.Tensor, weight: torch.Tensor, result: torch.Tensor, *, one_by_one: bool
) -> str | None:
    """What makes the library as fast or faster; None if nothing does."""
    channels, few = weight.shape[:2], x.shape[0] < _LEAST_BATCH
    most, blocks = max(channels), all(count % _LIBRARY_BLOCK == 0 for count in channels)
    if one_by_one and few:
        limit = _LIBRARY_CHANNELS if blocks else _MOST_CHANNELS
        return f"more than {limit} channels" if most > limit else None
    if few and most >= _MOST_CHANNELS_OF_ANY_BATCH:
        return f"fewer than {_LEAST_BATCH} samples"
    if blocks:
        return f"numbers of channels that divide by {_LIBRARY_BLOCK}"
    if most > _MOST_CHANNELS:
        return f"more than {_MOST_CHANNELS} channels"
    if max(x[0].numel(), result[0].numel()) > _MOST_PIXELS_PER_SAMPLE:
        return f"samples of more than {_MOST_PIXELS_PER_SAMPLE:,} numbers"
    return None


def _arguments(node: torch.fx.Node) -> tuple[Any, ...]:
    arguments: tuple[Any, ...] = node.args
    if node.target is aten.convolution.default:
        x, weight, bias, stride, padding, *_ = arguments
        return x, weight, bias, _pair(stride), _pair(padding)
    grad, x, weight, _, stride, padding, *_, mask = arguments
    return grad, x, weight, _pair(stride), _pair(padding), list(mask)


def _pair(values: Sequence[int]) -> list[int]:
    return list(values) * 2 if len(values) == 1 else list(values)
