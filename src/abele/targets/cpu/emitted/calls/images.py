"""Convolutions with few channels, and pools."""

from __future__ import annotations

from typing import Any

import torch

from abele.ops import few_channel_conv
from abele.program import is_getitem
from abele.targets.translation.movement import arguments
from abele.targets.translation.operations import Call
from abele.targets.translation.places import Place

aten = torch.ops.aten

_FLOATS_PER_THREAD = 8192
# Larger windows are not unrolled.
_UNROLLED = 16


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
    """``aten.max_pool2d_with_indices`` of contiguous images."""
    x, *given = (*arguments(node), *_POOL[len(arguments(node)) - 2 :])
    kernel, stride, padding, dilation = (pair(each) for each in given[:4])
    ceil = given[4]
    place = translator.contiguous(translator.places[x])
    windows = _windows(place, node.meta["val"][0].shape, kernel, stride, padding)
    if place.dtype is not torch.float32 or any(d != 1 for d in dilation) or not place.size:
        return False
    (kh, kw), (sh, sw) = kernel, stride or kernel
    name = f"max_pool<{_workers(place)}>"
    inside = not any(padding) and not ceil and kh * kw <= _UNROLLED
    if inside:
        name = f"max_pool_inside<{_workers(place)}, {kh}, {kw}, {sh}, {sw}>"
    places = torch.uint8 if _only_for_backward(node, kernel, stride) and inside else torch.int64
    shape = tuple(node.meta["val"][0].shape)
    results = [translator.new(shape, dtype) for dtype in (torch.float32, places)]
    text = f"abele::{name}({windows}, {{0}}, {{1}}, {{2}}, threads)"
    if places is torch.uint8 and (kh, kw, sh, sw) == (2, 2, 2, 2):
        text = _by_kernel(place)
    translator.add(Call([place], results, text))
    translator.places[node] = results
    return True


def _by_kernel(images: Place) -> str:
    """Return the call of our max pool, for windows of 2 x 2 that do not overlap."""
    height, width = images.shape[-2:]
    sizes = f"AbelePool{{{{{images.size // (height * width)}, 1, {height}, {width}, 0}}}}"
    threads = f"abele_threads({images.size}, 0, threads)"
    return f"status |= abele::pool({sizes}, {{0}}, {{1}}, {{2}}, {threads})"


def max_pool_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.max_pool2d_with_indices_backward``."""
    grad, x, kernel, stride, padding, dilation, _, places = arguments(node)
    x = translator.places[x]
    if x.dtype is not torch.float32 or any(d != 1 for d in dilation) or not x.size:
        return False
    reads = [translator.contiguous(translator.places[each]) for each in (grad, places)]
    windows = _windows(x, reads[0].shape, kernel, stride, padding)
    result = translator.new(x.shape, x.dtype)
    sizes = str(_workers(x))
    if reads[1].dtype is torch.uint8:
        sizes += ", {}, {}".format(*pair(kernel))
    text = f"abele::max_pool_backward<{sizes}>({windows}, {{0}}, {{1}}, {{2}}, threads)"
    translator.add(Call(reads, [result], text))
    translator.places[node] = result
    return True


_POOL: tuple[Any, ...] = ([], [0, 0], [1, 1], False)


def _only_for_backward(node: torch.fx.Node, kernel: list[int], stride: list[int]) -> bool:
    """Return whether only the gradient reads the indices of maxima, and no windows overlap."""
    picked = [user for user in node.users if is_getitem(user) and user.args[1] == 1]
    backward = aten.max_pool2d_with_indices_backward.default
    readers = [user for each in picked for user in each.users]
    alone = all(user.target is backward and user.args[7] in picked for user in readers)
    return alone and (not stride or list(stride) == list(kernel))


def pair(values: Any) -> list[int]:
    """Return (height, width) from a one- or two-element list."""
    return list(values) * 2 if len(values) == 1 else list(values)


def _windows(x: Place, out: Any, kernel: list[int], stride: list[int], padding: list[int]) -> str:
    height, width = x.shape[-2:]
    planes = x.size // max(height * width, 1)
    kernel, stride, padding = (pair(each) for each in (kernel, stride, padding))
    numbers = (planes, height, width, *kernel, *(stride or kernel), *padding, *out[-2:])
    return f"abele::Windows{{{{{', '.join(map(str, numbers))}}}}}"


def _workers(x: Place) -> int:
    planes = x.size // (x.shape[-1] * x.shape[-2])
    return max(1, min(planes, x.size // _FLOATS_PER_THREAD))


HANDLERS = {
    few_channel_conv.forward: convolution,
    few_channel_conv.backward: convolution_backward,
    aten.max_pool2d_with_indices.default: max_pool,
    aten.max_pool2d_with_indices_backward.default: max_pool_backward,
}
