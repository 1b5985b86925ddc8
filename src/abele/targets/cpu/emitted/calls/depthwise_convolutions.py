"""Convolutions with a kernel for each channel, by a kernel of ours."""

from __future__ import annotations

import math
from typing import Any

import torch

from abele.kernels.convolutions import convolution_of
from abele.targets.cpu.emitted.calls.images import gradients, pair
from abele.targets.translation.movement import arguments
from abele.targets.translation.operations import Call
from abele.targets.translation.places import Place

# What there is code for, see abi.h.
_SIZES, _STEPS = (3, 5, 7), (1, 2)


def is_one(node: torch.fx.Node) -> bool:
    """Return whether a node is a convolution with one group for each channel, or its backward."""
    convolution = convolution_of(node)
    if convolution is None or convolution.transposed or convolution.image.dim() != 4:
        return False
    channels = convolution.weight.shape[0]
    return channels > 1 and channels == convolution.groups == convolution.image.shape[1]


def why_not(node: torch.fx.Node) -> str | None:
    """Return why our kernel does not compute a convolution or its backward; ``None`` if it does.

    Args:
        node: any of the two; its images are described in ``meta["val"]``.
    """
    convolution = convolution_of(node)
    if convolution is None or not is_one(node):
        return "the library's: it has no kernel for each channel"
    if not convolution.suits_kernels:
        return "the library's: our kernels are for float32 images and wide registers"
    size, step, pad = convolution.weight.shape[2:], convolution.stride, convolution.padding
    plain = len(set(size)) == len(set(step)) == 1 and set(convolution.dilation) == {1}
    if not plain or size[0] not in _SIZES or step[0] not in _STEPS or max(pad) >= size[0]:
        return "the library's: our kernel of each channel is for 3x3, 5x5 and 7x7, strides 1 and 2"
    if convolution.reads_channels_last or not convolution.image.numel():
        return "the library's: our kernel of each channel is for images that lie as planes"
    return None


def convolution(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.convolution`` with a kernel for each channel."""
    if why_not(node) is not None:
        return False
    x, weight, bias, stride, padding, *_ = arguments(node)
    reads = [translator.contiguous(translator.places[each]) for each in (x, weight)]
    if bias is not None:
        reads.append(translator.contiguous(translator.places[bias]))
    result = translator.new(tuple(node.meta["val"].shape), reads[0].dtype)
    pointers = "{0}, {1}, {2}, {3}" if bias is not None else "{0}, {1}, nullptr, {2}"
    sizes, threads = _described(reads[0], reads[1], stride, padding), _threads(reads[1], result)
    text = f"status |= abele::depthwise({sizes}, {pointers}, {threads})"
    translator.add(Call(reads, [result], text))
    translator.places[node] = result
    return True


def convolution_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.convolution_backward`` with a kernel for each channel."""
    if why_not(node) is not None:
        return False
    grad, x, weight, _, stride, padding, *_, mask = arguments(node)
    reads = [translator.contiguous(translator.places[each]) for each in (grad, x, weight)]
    results, pointers = gradients(translator, node, mask, len(reads))
    sizes, threads = _described(reads[1], reads[2], stride, padding), _threads(reads[2], reads[0])
    given = f"{{0}}, {{1}}, {{2}}, {pointers}"
    text = f"status |= abele::depthwise_backward({sizes}, {given}, {threads})"
    translator.add(Call(reads, [each for each in results if each is not None], text))
    translator.places[node] = results
    return True


def _described(x: Place, weight: Place, stride: list[int], padding: list[int]) -> str:
    """Return the text of ``AbeleDepthwise``."""
    numbers = (*x.shape, weight.shape[2], stride[0], *pair(padding))
    return f"AbeleDepthwise{{{{{', '.join(map(str, numbers))}}}}}"


def _threads(weight: Place, result: Place) -> str:
    """Return the number of useful threads, in C++."""
    adds = result.size * math.prod(weight.shape[2:])
    return f"abele_threads({result.size}, {adds}, threads)"
