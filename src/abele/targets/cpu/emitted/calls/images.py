"""Convolutions with few channels, and pools."""

from __future__ import annotations

import math
from typing import Any

import torch

from abele.ops import few_channel_conv
from abele.program import is_getitem
from abele.targets.translation.movement import arguments
from abele.targets.translation.operations import Call
from abele.targets.translation.places import Place

aten = torch.ops.aten

_LARGEST_IMAGE = 2**31 - 1  # pixels


def convolution(translator: Any, node: torch.fx.Node) -> bool:
    """``abele::few_channel_conv``, with its activation if nobody else reads its result."""
    x, weight, bias, stride, padding = arguments(node)
    relu = next(iter(node.users), None) if len(node.users) == 1 else None
    if relu is not None and relu.target is not aten.relu.default:
        relu = None
    reads = [translator.contiguous(translator.places[each]) for each in (x, weight)]
    if bias is not None:
        reads.append(translator.contiguous(translator.places[bias]))
    result = translator.new_like(node)
    sizes = described(reads[0], reads[1], stride, padding, 0 if relu else 1)
    pointers = "{0}, {1}, {2}, {3}" if bias is not None else "{0}, {1}, nullptr, {2}"
    text = f"status |= abele::convolve({sizes}, {pointers}, threads)"
    translator.add(Call(reads, [result], text, also=(relu,) if relu else ()))
    translator.places |= {relu: result, node: None} if relu else {node: result}
    return True


def convolution_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``abele::few_channel_conv_backward``."""
    grad, x, weight, stride, padding, mask = arguments(node)
    reads = [translator.contiguous(translator.places[each]) for each in (grad, x, weight)]
    results, pointers = gradients(translator, node, mask, len(reads))
    made = [each for each in results if each is not None]
    sizes = described(reads[1], reads[2], stride, padding)
    text = f"status |= abele::convolve_backward({sizes}, {{0}}, {{1}}, {{2}}, {pointers}, threads)"
    translator.add(Call(reads, made, text))
    translator.places[node] = results
    return True


def gradients(
    translator: Any, node: torch.fx.Node, mask: list[bool], reads: int
) -> tuple[list[Place | None], str]:
    """Allocate the requested gradients, and return them with the text of all three pointers.

    Args:
        translator: makes the memory.
        node: whose results they are.
        mask: which are wanted.
        reads: how many tensors come before them in the call.
    """
    results: list[Place | None] = [
        translator.new(tuple(value.shape), value.dtype) if wanted else None
        for value, wanted in zip(node.meta["val"], mask, strict=True)
    ]
    numbers = iter(range(reads, reads + 3))
    return results, ", ".join(f"{{{next(numbers)}}}" if each else "nullptr" for each in mask)


def described(
    x: Place, weight: Place, stride: list[int], padding: list[int], slope: int = 1
) -> str:
    """Return ``AbeleConv`` of a convolution, in C++.

    Args:
        x: its images.
        weight: of each output and input channel.
        stride: of rows and columns; likewise ``padding``.
        padding: zeros at each border.
        slope: of its activation below zero.
    """
    numbers = (*x.shape, weight.shape[0], *weight.shape[2:], *stride, *padding, 0, slope)
    return f"AbeleConv{{{{{', '.join(map(str, numbers))}}}}}"


def max_pool(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.max_pool2d_with_indices`` of windows of 2 x 2 that tile an image."""
    if not _is_ours(node):
        return False
    x = translator.contiguous(translator.places[arguments(node)[0]])
    places = torch.uint8 if _only_for_backward(node) else torch.int64
    shape = tuple(node.meta["val"][0].shape)
    results = [translator.new(shape, dtype) for dtype in (torch.float32, places)]
    sizes, threads = _sizes_and_threads(x)
    text = f"status |= abele::pool({sizes}, {{0}}, {{1}}, {{2}}, {threads})"
    translator.add(Call([x], results, text))
    translator.places[node] = results
    return True


def max_pool_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.max_pool2d_with_indices_backward``, where only it reads places of maxima."""
    grad, *_, places = arguments(node)
    places = translator.places[places]
    if places.dtype is not torch.uint8:
        return False
    reads = [translator.contiguous(translator.places[grad]), places]
    result = translator.new(tuple(node.meta["val"].shape), torch.float32)
    sizes, threads = _sizes_and_threads(result)
    text = f"status |= abele::pool_backward({sizes}, {{0}}, {{1}}, {{2}}, {threads})"
    translator.add(Call(reads, [result], text))
    translator.places[node] = result
    return True


def _is_ours(pool: torch.fx.Node) -> bool:
    """Return whether our kernel computes a max pool."""
    x = arguments(pool)[0].meta["val"]
    small = math.prod(x.shape[-2:]) <= _LARGEST_IMAGE
    return x.dtype is torch.float32 and x.numel() > 0 and small and has_plain_windows(pool)


def has_plain_windows(pool: torch.fx.Node) -> bool:
    """Return whether windows are 2 x 2 and do not overlap."""
    _, kernel, *given = arguments(pool)
    stride, padding, dilation, ceil = (*given, *_DEFAULTS[len(given) :])
    sizes = [pair(each) for each in (kernel, stride or kernel)]
    rest = [*pair(padding), *(each - 1 for each in pair(dilation)), ceil]
    return sizes == [[2, 2], [2, 2]] and not any(rest)


# Arguments of a pool after its kernel.
_DEFAULTS: tuple[Any, ...] = ([], [0, 0], [1, 1], False)


def _only_for_backward(pool: torch.fx.Node) -> bool:
    """Return whether only the gradient reads the indices of maxima."""
    picked = [user for user in pool.users if is_getitem(user) and user.args[1] == 1]
    backward = aten.max_pool2d_with_indices_backward.default
    readers = [user for each in picked for user in each.users]
    return all(user.target is backward and user.args[7] in picked for user in readers)


def pair(values: Any) -> list[int]:
    """Return (height, width) from a one- or two-element list."""
    return list(values) * 2 if len(values) == 1 else list(values)


def _sizes_and_threads(images: Place) -> tuple[str, str]:
    """Return ``AbelePool`` of ``abi.h`` and the number of useful threads, both in C++."""
    height, width = images.shape[-2:]
    sizes = f"AbelePool{{{{{images.size // (height * width)}, 1, {height}, {width}, 0}}}}"
    return sizes, f"abele_threads({images.size}, 0, threads)"


HANDLERS = {
    few_channel_conv.forward: convolution,
    few_channel_conv.backward: convolution_backward,
    aten.max_pool2d_with_indices.default: max_pool,
    aten.max_pool2d_with_indices_backward.default: max_pool_backward,
}
