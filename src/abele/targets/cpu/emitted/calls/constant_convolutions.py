"""Convolutions of constant weights: channels-last GEMMs with packed weights, and clamped kernels.

y = relu6(batch_norm(convolution(x, w)) + r)

folded, shift = w * scale, bias - mean * scale     once, see ``prepared``
y = relu6(multiply(x as [pixels, channels], pack(folded)) + shift + r)
"""

from __future__ import annotations

import math
from typing import Any

import torch

from abele.kernels.convolutions import Convolution, convolution_of, reads_few_channels
from abele.ops import constant_convolution
from abele.passes.of_lowerings.constant_convolutions import constant_convolutions
from abele.program import Program
from abele.targets.cpu.emitted.calls import products
from abele.targets.translation.movement import arguments, turned
from abele.targets.translation.operations import Call
from abele.targets.translation.places import Place, contiguous_stride

aten = torch.ops.aten

_Node = torch.fx.Node

# What the kernels have code for, see ``AbeleClamped``: window sizes and steps of depthwise kernels,
# channels of a register.
_SIZES, _STEPS, _LANES = (3, 5, 7), (1, 2), 16
# Fewer are not worth another layout of images.
_LEAST_CONVOLUTIONS = 8
# C++ of the bounds of activations that kernels compute, and of others; see ``pointwise``.
_BOUNDS = {
    "none": lambda: products.UNBOUNDED,
    "relu": lambda: products.bounds(0.0),
    "hardtanh": products.bounds,
}
_ACTIVATIONS = {
    "relu": "abele::relu({0})",
    "leaky_relu": "({0} > 0 ? {0} : {0} * {1})",
    "hardtanh": "abele::not_above(abele::not_below({0}, {1}), {2})",
    "swish": "({0} * abele::sigmoid({0}))",
    "hardswish": "({0} * abele::hard_sigmoid({0}))",
}


def packed_convolutions(program: Program) -> Program:
    """Fuse convolutions of constant weights if the kernels compute all of a program."""
    nodes = program.graph.graph.find_nodes(op="call_function", target=aten.convolution.default)
    if len(nodes) < _LEAST_CONVOLUTIONS or not all(map(_suits, nodes)):
        return program
    made = constant_convolutions(program)
    left = made.graph.graph.find_nodes(op="call_function", target=aten.convolution.default)
    return program if left else made


def _suits(node: _Node) -> bool:
    convolution = convolution_of(node)
    if convolution is None or convolution.transposed or not convolution.suits_kernels:
        return False
    if set(convolution.dilation) != {1} or len(set(convolution.padding)) > 1:
        return False
    few = reads_few_channels(convolution)
    return _is_depthwise(convolution) or few or _is_product(convolution)


def _is_product(convolution: Convolution) -> bool:
    one = convolution.groups == math.prod(convolution.weight.shape[2:]) == 1
    return one and not any(convolution.padding)


def _is_depthwise(convolution: Convolution) -> bool:
    (outputs, _, size, _), inputs = convolution.weight.shape, convolution.image.shape[1]
    each = outputs == inputs == convolution.groups and outputs >= _LANES
    square = set(convolution.weight.shape[2:]) == {size} and len(set(convolution.stride)) == 1
    known = size in _SIZES and convolution.stride[0] in _STEPS
    return each and square and known and convolution.padding[0] < size


def convolution(translator: Any, node: _Node) -> Any:
    """Translate ``ops.constant_convolution`` where ``packed_convolutions`` has chosen it."""
    x, weight, bias, norm, eps, added, *_, activation, scalars = arguments(node)
    described = convolution_of(node)
    if described is None or not _suits(node):
        return None
    given: list[Any] = [each and translator.places[each] for each in (weight, bias, *norm)]
    scale, shift = _scale_and_shift(translator, *given, eps=eps)
    shape, images, weight = tuple(node.meta["val"].shape), translator.places[x], given[0]
    more = [] if added is None else [_matrix(translator, translator.places[added])]
    is_product = _is_product(described)
    inside = activation in _BOUNDS and (is_product or not more)
    bounds = _BOUNDS[activation](*scalars) if inside else products.UNBOUNDED
    if is_product:
        pixels = _matrix(translator, _read(images, described.stride))
        factor = turned(_folded(translator, _rows(weight), scale))
        result, more = products.clamped(translator, pixels, factor, [shift, *more], bounds), []
    else:
        call = _depthwise if _is_depthwise(described) else _few_channels
        reads = [*call(translator, images, weight, scale), shift]
        result = _clamped(translator, call.__name__, described, reads, bounds, shape)
    for each in more:
        total = translator.new(result.shape, result.dtype)
        translator.pointwise([result, each], "({0} + {1})".format, total)
        result = total
    if activation in _ACTIVATIONS and not inside:
        y = translator.new(result.shape, result.dtype)
        translator.pointwise([result, *scalars], _ACTIVATIONS[activation].format, y)
        result = y
    return _images(result, shape)


def _scale_and_shift(
    translator: Any, weight: Place, bias: Place | None, *norm: Any, eps: float
) -> tuple[Place | None, Place]:
    """Return the factor (None for 1) and the summand of each output channel."""
    channels, dtype = (weight.shape[0],), weight.dtype
    if not norm:
        if bias is not None:
            return None, bias
        zeros = translator.new(channels, dtype)
        translator.pointwise([0.0], "{0}".format, zeros)
        return None, zeros
    factor, shift, mean, var = norm
    scale, result = translator.new(channels, dtype), translator.new(channels, dtype)
    translator.pointwise([factor, var, eps], "({0} / std::sqrt({1} + {2}))".format, scale)
    if bias is None:
        translator.pointwise([shift, mean, scale], "({0} - {1} * {2})".format, result)
    else:
        text = "({0} - ({1} - {3}) * {2})"
        translator.pointwise([shift, mean, scale, bias], text.format, result)
    return scale, result


def _folded(translator: Any, rows: Place, scale: Place | None) -> Place:
    """Multiply each row of a matrix with its factor; the result is contiguous."""
    if scale is None:
        return translator.contiguous(rows)
    result = translator.new(rows.shape, rows.dtype)
    factors = Place(scale.buffer, (*scale.shape, 1), (*scale.stride, 0), scale.offset)
    translator.pointwise([rows, factors], "({0} * {1})".format, result)
    return result


def _rows(weight: Place) -> Place:
    """Return the weight of a convolution of 1x1 as ``[outputs, inputs]``."""
    return Place(weight.buffer, weight.shape[:2], weight.stride[:2], weight.offset)


def _flat(translator: Any, weight: Place) -> Place:
    """Return a weight as ``[outputs, elements of a window]``, contiguous."""
    weight = translator.contiguous(weight)
    shape = weight.shape[0], math.prod(weight.shape[1:])
    return Place(weight.buffer, shape, contiguous_stride(shape), weight.offset)


def _depthwise(
    translator: Any, images: Place, weight: Place, scale: Place | None
) -> tuple[Place, Place]:
    """Return pixels and weights as ``abele_clamped_depthwise`` reads them."""
    rows = _folded(translator, _flat(translator, weight), scale)
    return _matrix(translator, images), translator.contiguous(turned(rows))


def _few_channels(
    translator: Any, images: Place, weight: Place, scale: Place | None
) -> tuple[Place, Place]:
    """Return images and weights as ``abele_clamped_few_channels`` reads them."""
    rows = _folded(translator, _flat(translator, weight), scale)
    return translator.contiguous(images), products.packed_factor(translator, turned(rows))


def _clamped(
    translator: Any,
    name: str,
    described: Convolution,
    reads: list[Place],
    bounds: str,
    shape: tuple[int, ...],
) -> Place:
    """Add a call of ``abele_clamped_...``; return its result ``[pixels, channels]``."""
    images, outputs, height, width = shape
    result = translator.new((images * height * width, outputs), reads[0].dtype)
    size, step = described.weight.shape[2], described.stride[0]
    numbers = (*described.image.shape, outputs, size, step, described.padding[0], bounds)
    sizes = f"AbeleClamped{{{{{', '.join(map(str, numbers))}}}}}"
    adds = result.size * math.prod(described.weight.shape[1:])
    threads = f"abele_threads({result.size}, {adds}, threads)"
    text = f"status |= abele_clamped{name}(&{sizes}, {{0}}, {{1}}, {{2}}, {{3}}, {threads})"
    translator.add(Call(reads, [result], text))
    return result


# -- channels-last images as matrices --------------------------------------------------------------


def _read(images: Place, stride: tuple[int, ...]) -> Place:
    """Return the pixels that a convolution of 1x1 reads."""
    (count, channels, height, width), steps = images.shape, images.stride
    edges = tuple(-(-n // step) for n, step in zip((height, width), stride, strict=True))
    strides = *steps[:2], steps[2] * stride[0], steps[3] * stride[1]
    return Place(images.buffer, (count, channels, *edges), strides, images.offset)


def _matrix(translator: Any, images: Place) -> Place:
    """Return images ``[N, C, H, W]`` as ``[pixels, channels]``, copied unless channels-last."""
    order = 0, 2, 3, 1
    shape, stride = (tuple(each[d] for d in order) for each in (images.shape, images.stride))
    last = translator.contiguous(Place(images.buffer, shape, stride, images.offset))
    pixels = math.prod(shape[:3]), shape[3]
    return Place(last.buffer, pixels, contiguous_stride(pixels), last.offset)


def _images(matrix: Place, shape: tuple[int, ...]) -> Place:
    """Return ``[pixels, channels]`` as channels-last images of a shape."""
    _, channels, height, width = shape
    strides = height * width * channels, 1, width * channels, channels
    return Place(matrix.buffer, shape, strides, matrix.offset)


HANDLERS = {constant_convolution.operator: convolution}
