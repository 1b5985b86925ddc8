"""Convolutions and max pools by library kernels, and the choice of algorithm.

The kernel for few channels fuses the convolution's ReLU, and its 2 x 2 pool if nothing else reads
the result:

    conv -> [relu ->] pool          and back:   pool -> [relu ->] conv

Intermediate results are not stored then. This pays off with a batch-innermost layout in registers:
the maximum of a window is found there, before conversion to NCHW.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from abele.kernels.convolutions import convolution_of, pair, planes_gain
from abele.kernels.on_tensors import place_count
from abele.program import is_getitem
from abele.targets.cpu.emitted.calls import pointwise_convolutions
from abele.targets.cpu.emitted.calls.sixteen_bits import in_16_bits
from abele.targets.translation.movement import arguments
from abele.targets.translation.operations import Call
from abele.targets.translation.places import Place
from abele.targets.translation.pointwise import HALF

aten = torch.ops.aten

_Node = torch.fx.Node

OPERATORS = (aten.convolution.default, aten.convolution_backward.default)

# Kernel sizes and strides of depthwise convolutions that there is code for, see abi.h.
_SIZES, _STEPS = (3, 5, 7), (1, 2)
# With fewer samples than this, images are convolved one by one.
_LEAST_BATCH = 12
# Larger ones leave the second-level cache when 16 samples lie side by side.
_MOST_PIXELS_PER_SAMPLE = 32768


# -- who computes a convolution ------------------------------------------------------------------


def is_ours(node: _Node) -> bool:
    """Return whether generated code computes a convolution or its backward, instead of torch.

    Args:
        node: forward or backward convolution with tensors in ``meta["val"]``.
    """
    return planes_gain(node) or is_product_or_depthwise(node)


def is_product_or_depthwise(node: _Node) -> bool:
    """Return whether a convolution or its backward is a GEMM or depthwise."""
    return pointwise_convolutions.is_ours(node) or _is_depthwise(node)


def _is_depthwise(node: _Node) -> bool:
    """Return whether the depthwise kernel computes a convolution or its backward.

    It supports square windows of some sizes, and NCHW activations.
    """
    convolution = convolution_of(node)
    if convolution is None or convolution.transposed or convolution.image.dim() != 4:
        return False
    channels, size = convolution.weight.shape[0], convolution.weight.shape[2:]
    if channels < 2 or not channels == convolution.groups == convolution.image.shape[1]:
        return False
    step, pad = convolution.stride, convolution.padding
    plain = len(set(size)) == len(set(step)) == 1 and set(convolution.dilation) == {1}
    known = plain and size[0] in _SIZES and step[0] in _STEPS and max(pad) < size[0]
    in_planes = convolution.image.numel() > 0 and not convolution.reads_channels_last
    return known and in_planes and convolution.suits_kernels


# -- calls of the kernels ------------------------------------------------------------------------


def _dense(translator: Any, *nodes: _Node | None) -> list[Place]:
    """Return contiguous tensors of a convolution's operands, without those that are None."""
    return [translator.contiguous(translator.places[each]) for each in nodes if each is not None]


def _forward_pointers(bias: _Node | None) -> str:
    """Return format placeholders for input, weight, bias and result pointers."""
    return "{0}, {1}, {2}, {3}" if bias is not None else "{0}, {1}, nullptr, {2}"


def _depthwise(translator: Any, node: _Node) -> Any:
    """Translate a depthwise ``aten.convolution`` to a kernel call."""
    if not _is_depthwise(node):
        return None
    x, weight, bias, stride, padding, *_ = arguments(node)
    reads = _dense(translator, x, weight, bias)
    result = translator.new(tuple(node.meta["val"].shape), reads[0].dtype)
    sizes = _depthwise_sizes(reads[0], reads[1], stride, padding, result)
    text = f"status |= abele_depthwise_forward(&{sizes[0]}, {_forward_pointers(bias)}, {sizes[1]})"
    translator.add(Call(reads, [result], text))
    return result


def _depthwise_backward(translator: Any, node: _Node) -> Any:
    """Translate a depthwise ``aten.convolution_backward`` to a kernel call."""
    if not _is_depthwise(node):
        return None
    grad, x, weight, _, stride, padding, *_, mask = arguments(node)
    reads = _dense(translator, grad, x, weight)
    sizes = _depthwise_sizes(reads[1], reads[2], stride, padding, reads[0])
    return _add_backward(translator, node, "depthwise_backward", reads, mask, *sizes)


def _depthwise_sizes(
    x: Place, weight: Place, stride: list[int], padding: list[int], result: Place
) -> tuple[str, str]:
    """Return the C++ descriptor ``AbeleDepthwise`` and the useful thread count."""
    numbers = (*x.shape, weight.shape[2], stride[0], *pair(padding))
    adds = result.size * math.prod(weight.shape[2:])
    threads = f"abele_threads({result.size}, {adds}, threads)"
    return f"AbeleDepthwise{{{{{', '.join(map(str, numbers))}}}}}", threads


def _add_backward(
    translator: Any,
    node: _Node,
    name: str,
    reads: Sequence[Place | None],
    mask: Sequence[bool],
    sizes: str,
    threads: str,
    also: tuple[_Node, ...] = (),
) -> list[Place | None]:
    """Add the call of a convolution's backward kernel, and return the gradients.

    Args:
        translator: of the program.
        node: the convolution's backward.
        name: of the kernel function, without ``abele_``.
        reads: the first tensor arguments; None for one that is not read.
        mask: whether to compute the gradients of input, weight and bias.
        sizes: the C++ descriptor of the convolution.
        threads: number of useful threads.
        also: further nodes that the call computes.
    """
    results: list[Place | None] = [
        translator.new(tuple(value.shape), value.dtype) if wanted else None
        for value, wanted in zip(node.meta["val"], mask, strict=True)
    ]
    given = *(each is not None for each in reads), *mask
    numbers = itertools.count()
    pointers = [f"{{{next(numbers)}}}" if wanted else "nullptr" for wanted in given]
    text = f"status |= abele_{name}(&{sizes}, {', '.join(pointers)}, {threads})"
    read, written = ([each for each in some if each is not None] for some in (reads, results))
    translator.add(Call(read, written, text, also=also))
    return results


def _few_channel(translator: Any, node: _Node) -> Any:
    """Translate a convolution of few channels, fused with its activation and pool."""
    if not planes_gain(node):
        return None
    chain = _chain(node)
    if chain is not None and _pays(chain):
        return _pooled(translator, chain)
    x, weight, bias, stride, padding, *_ = arguments(node)
    relu = next(iter(node.users), None) if len(node.users) == 1 else None
    if relu is not None and relu.target is not aten.relu.default:
        relu = None
    reads, result = _dense(translator, x, weight, bias), translator.new_like(node)
    sizes = _few_channel_sizes(reads[0], reads[1], stride, padding, 0 if relu else 1)
    text = f"status |= abele_conv_forward(&{sizes}, {_forward_pointers(bias)}, {_threads(sizes)})"
    translator.add(Call(reads, [result], text, also=(relu,) if relu else ()))
    if relu is None:
        return result
    translator.places[relu] = result
    return ()


def _few_channel_backward(translator: Any, node: _Node) -> Any:
    """Translate the backward of a convolution of few channels to a kernel call."""
    if not planes_gain(node):
        return None
    grad, x, weight, _, stride, padding, *_, mask = arguments(node)
    reads = _dense(translator, grad, x, weight)
    sizes = _few_channel_sizes(reads[1], reads[2], stride, padding)
    call = translator, node, "conv_backward"
    rest = sizes, _threads(sizes)
    widened = in_16_bits(translator, reads[1]) is not reads[1]
    if not (widened and mask[0] and any(mask[1:])):
        return _add_backward(*call, reads, mask, *rest)
    # One after the other: the float32 copy of the input is freed before its gradient is allocated.
    weights = _add_backward(*call, reads, [False, *mask[1:]], *rest)
    images = _add_backward(*call, [reads[0], None, reads[2]], [True, False, False], *rest)
    return [images[0], *weights[1:]]


def _few_channel_sizes(
    x: Place, weight: Place, stride: list[int], padding: list[int], slope: int = 1
) -> str:
    """Return the C++ descriptor ``AbeleConv`` of a convolution.

    Args:
        x: NCHW input.
        weight: ``[outputs, inputs, height, width]``.
        stride: vertical and horizontal, or one number for both; likewise ``padding``.
        padding: zeros at each border.
        slope: of the fused activation below zero (1: none, 0: ReLU).
    """
    steps = *pair(stride), *pair(padding)
    numbers = (*x.shape, weight.shape[0], *weight.shape[2:], *steps, 0, slope)
    return f"AbeleConv{{{{{', '.join(map(str, numbers))}}}}}"


def _threads(sizes: str) -> str:
    return f"abele_conv_threads(&{sizes}, threads)"


@dataclasses.dataclass(frozen=True)
class _Chain:
    """The nodes of a convolution fused with ReLU and max pool; missing ones are None."""

    conv: _Node
    relu: _Node | None
    pool: _Node
    pool_backward: _Node | None


def _pooled(translator: Any, chain: _Chain) -> tuple[()]:
    """Add the call of a convolution fused with its activation and pool."""
    x, weight, bias, stride, padding, *_ = arguments(chain.conv)
    inputs = _dense(translator, x, weight, bias)
    y = translator.new(tuple(chain.pool.meta["val"][0].shape), torch.float32)
    places = translator.new((place_count(y.shape),), torch.uint8)
    pointers = f"{_forward_pointers(bias)}, "
    pointers += f"{{{len(inputs) + 1}}}" if chain.pool_backward else "nullptr"
    slope = 0 if chain.relu else 1
    sizes = _few_channel_sizes(inputs[0], inputs[1], stride, padding, slope)
    text = f"status |= abele_conv_pool(&{sizes}, {pointers}, {_threads(sizes)})"
    made = [y, places] if chain.pool_backward else [y]
    others = tuple(each for each in (chain.relu, chain.pool) if each)
    translator.add(Call(inputs, made, text, also=others))
    translator.places[chain.pool] = [y, places]
    if chain.relu:
        translator.places[chain.relu] = ()
    return ()


def _pooled_backward(translator: Any, node: _Node) -> Any:
    """Add the call of a pool's backward fused with activation and convolution backward.

    Args:
        translator: of the program.
        node: the convolution's backward.
    """
    if translator.places[arguments(node)[0]] != ():
        return None
    between = [arguments(node)[0]]
    while between[-1].target is not aten.max_pool2d_with_indices_backward.default:
        between.append(arguments(between[-1])[0])
    pool = arguments(between[-1])
    _, x, weight, _, stride, padding, *_, mask = arguments(node)
    reads = _dense(translator, pool[0], pool[-1], x, weight)
    sizes = _few_channel_sizes(reads[2], reads[3], stride, padding)
    rest = reads, mask, sizes, _threads(sizes)
    return _add_backward(translator, node, "conv_pool_backward", *rest, also=tuple(between))


def _chain(conv: _Node) -> _Chain | None:
    """Return the ReLU and max pool that follow a convolution and their gradients, or None."""
    relu = _user(conv, aten.relu.default) if len(conv.users) == 1 else None
    source = relu or conv
    pool = _user(source, aten.max_pool2d_with_indices.default)
    back = _user(source, aten.max_pool2d_with_indices_backward.default)
    mask = _user(source, aten.threshold_backward.default) if relu else None
    if pool is None or set(source.users) != {each for each in (pool, back, mask) if each}:
        return None
    picked = [user for each in pool.users if each.args[1] == 1 for user in each.users]
    if not _has_plain_windows(pool) or picked != [back] * (back is not None):
        return None
    if back is not None and not _leads_back(back, mask, source, conv):
        return None
    return _Chain(conv, relu, pool, back)


def _leads_back(back: _Node, mask: _Node | None, source: _Node, conv: _Node) -> bool:
    """Return whether only the same convolution's backward reads gradients of pool and ReLU."""
    nodes = [back] if mask is None else [back, mask]
    if mask is not None and list(mask.args) != [back, source, 0]:
        return False
    after = [*nodes[1:], _user(nodes[-1], aten.convolution_backward.default)]
    if any(list(node.users) != [user] for node, user in zip(nodes, after, strict=True)):
        return False
    last = after[-1]
    assert last is not None
    images = [_stored(arguments(each)[index]) for each, index in ((last, 1), (conv, 0))]
    same = images[0] is images[1] and last.args[4:10] == conv.args[3:9]
    return last.args[0] is nodes[-1] and last.args.count(nodes[-1]) == 1 and same


def _stored(images: _Node) -> _Node:
    """Return the 16-bit images of which a convolution reads a copy, or those that it reads."""
    if images.target is not aten._to_copy.default:
        return images
    (source,) = images.all_input_nodes
    return source if source.meta["val"].dtype in HALF else images


def is_fused_with_pool(node: _Node) -> bool:
    """Return whether a convolution's or ReLU's result is never stored, because a pool is fused."""
    conv = arguments(node)[0] if node.target is aten.relu.default else node
    if conv.target is not aten.convolution.default or not planes_gain(conv):
        return False
    chain = _chain(conv)
    return chain is not None and node in (chain.conv, chain.relu) and _pays(chain)


def _user(node: _Node, target: Any) -> _Node | None:
    """Return a node's first user with operator ``target``, or None."""
    return next((user for user in node.users if user.target is target), None)


def _pays(chain: _Chain) -> bool:
    x, y = (arguments(chain.conv)[0].meta["val"], chain.conv.meta["val"])
    pixels = x[0].numel() + y[0].numel()
    return x.shape[0] >= _LEAST_BATCH and pixels <= _MOST_PIXELS_PER_SAMPLE


# -- pools ----------------------------------------------------------------------------------------


def _max_pool(translator: Any, node: _Node) -> Any:
    """Translate ``aten.max_pool2d_with_indices`` of 2 x 2 windows to a kernel call."""
    if not _is_our_pool(node):
        return None
    x = translator.contiguous(translator.places[arguments(node)[0]])
    shape = tuple(node.meta["val"][0].shape)
    results = [translator.new(shape, dtype) for dtype in (torch.float32, torch.uint8)]
    sizes, threads = _sizes_and_threads(x)
    text = f"status |= abele_max_pool(&{sizes}, {{0}}, {{1}}, {{2}}, {threads})"
    translator.add(Call([x], results, text))
    return results


def _max_pool_backward(translator: Any, node: _Node) -> Any:
    """Translate ``aten.max_pool2d_with_indices_backward`` to a kernel call.

    That of the convolution computes both if the forward pass has fused them.
    """
    grad, source, *_, places = arguments(node)
    if translator.places[source] == ():
        (user,) = node.users
        if user.target is aten.threshold_backward.default:
            translator.places[user] = ()
        return ()
    places = translator.places[places]
    if places.dtype is not torch.uint8:
        return None
    reads = [*_dense(translator, grad), places]
    result = translator.new(tuple(node.meta["val"].shape), torch.float32)
    sizes, threads = _sizes_and_threads(result)
    text = f"status |= abele_max_pool_backward(&{sizes}, {{0}}, {{1}}, {{2}}, {threads})"
    translator.add(Call(reads, [result], text))
    return result


def _is_our_pool(pool: _Node) -> bool:
    """Return whether the library kernel computes a max pool; it has no indices for others."""
    x = arguments(pool)[0].meta["val"]
    plain = x.dtype is torch.float32 and x.numel() > 0 and _has_plain_windows(pool)
    return plain and _only_for_backward(pool)


def _has_plain_windows(pool: _Node) -> bool:
    """Return whether a pool's windows are 2 x 2 and do not overlap."""
    _, kernel, *given = arguments(pool)
    stride, padding, dilation, ceil = (*given, *_DEFAULTS[len(given) :])
    sizes = [pair(each) for each in (kernel, stride or kernel)]
    rest = [*pair(padding), *(each - 1 for each in pair(dilation)), ceil]
    return sizes == [[2, 2], [2, 2]] and not any(rest)


# Arguments of a pool after its kernel.
_DEFAULTS: tuple[Any, ...] = ([], [0, 0], [1, 1], False)


def _only_for_backward(pool: _Node) -> bool:
    """Return whether only the pool's backward reads the indices of its maxima."""
    picked = [user for user in pool.users if is_getitem(user) and user.args[1] == 1]
    backward = aten.max_pool2d_with_indices_backward.default
    readers = [user for each in picked for user in each.users]
    return all(user.target is backward and user.args[7] in picked for user in readers)


def _sizes_and_threads(images: Place) -> tuple[str, str]:
    """Return a max pool's C++ descriptor ``AbelePool`` and its useful thread count."""
    height, width = images.shape[-2:]
    sizes = f"AbelePool{{{{{images.size // (height * width)}, 1, {height}, {width}, 0}}}}"
    return sizes, f"abele_threads({images.size}, 0, threads)"


def _convolution(translator: Any, node: _Node) -> Any:
    """Translate ``aten.convolution``: as GEMMs, depthwise or of few channels."""
    algorithms = pointwise_convolutions.convolution, _depthwise, _few_channel
    return _first(algorithms, translator, node)


def _convolution_backward(translator: Any, node: _Node) -> Any:
    """Translate ``aten.convolution_backward``: GEMMs, depthwise or few channels."""
    by_gemm = pointwise_convolutions.convolution_backward
    algorithms = _pooled_backward, by_gemm, _depthwise_backward, _few_channel_backward
    return _first(algorithms, translator, node)


def _first(algorithms: Iterable[Callable[..., Any]], translator: Any, node: _Node) -> Any:
    """Return the results of the first algorithm that suits a node; None if none does."""
    given = (algorithm(translator, node) for algorithm in algorithms)
    return next((places for places in given if places is not None), None)


HANDLERS = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
}
