"""CUDA convolutions (3 x 3 and 1 x 1) of few channels and their gradients, without cuDNN.

Libraries use GEMMs, whose tiles eight channels hardly fill: of a step of a network with 8 to 48
channels they took 12 of 18 ms on an H200. ``Sizes.is_ours`` selects the convolutions.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from abele.kernels.convolutions import convolution_of
from abele.passes.of_lowerings.gpu import gpu_gradients
from abele.program import Program
from abele.targets.cuda.emitted.blocks import Blocks, call
from abele.targets.cuda.emitted.sums import summed_columns
from abele.targets.translation.movement import arguments
from abele.targets.translation.places import Place

#: By taps: for so many channels that are summed, pixels of a batch from which on cuDNN is slower.
LEAST_PIXELS = {9: ((16, 1), (24, 8192), (64, 32768)), 1: ((64, 1),)}
#: By taps: channels of images and results up to which cuDNN is slower for gradients of weights.
MOST_CHANNELS_OF_WEIGHTS = {9: 32, 1: 64}
_LARGEST_INDEX = 2**31


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a stride-1 convolution whose output has the size of its input.

    Attributes:
        samples: batch size.
        channels: input channels.
        results: output channels.
        height: of input and output.
        width: of input and output.
        taps: window size: nine or one.
    """

    samples: int
    channels: int
    results: int
    height: int
    width: int
    taps: int

    @property
    def pixels(self) -> int:
        """Number of pixels of one channel in the whole batch."""
        return self.samples * self.height * self.width

    def turned(self) -> Sizes:
        """Return the sizes of the convolution that computes the input gradient."""
        return dataclasses.replace(self, channels=self.results, results=self.channels)

    def is_ours(self) -> bool:
        """Return whether abele's CUDA kernel computes the convolution's result."""
        limits = LEAST_PIXELS[self.taps]
        return any(self.channels <= n and self.pixels >= least for n, least in limits)

    def weights_are_ours(self) -> bool:
        """Return whether abele's CUDA kernel computes the weight gradient."""
        return max(self.channels, self.results) <= MOST_CHANNELS_OF_WEIGHTS[self.taps]


def sizes_of(node: torch.fx.Node) -> Sizes | None:
    """Return the sizes of a convolution or its backward; None if no CUDA kernel here suits."""
    convolution = convolution_of(node)
    if convolution is None or not convolution.moves_by_one:
        return None
    x, weight = convolution.image, convolution.weight
    if {x.dtype, weight.dtype} != {torch.float32} or x.dim() != 4:
        return None
    samples, channels, height, width = map(int, x.shape)
    results, _, tall, wide = map(int, weight.shape)
    largest = samples * max(channels, results) * height * width
    plain = (tall, wide, convolution.padding) in ((3, 3, (1, 1)), (1, 1, (0, 0)))
    if not plain or not largest or not channels or not results or largest >= _LARGEST_INDEX:
        return None
    return Sizes(samples, channels, results, height, width, tall * wide)


aten = torch.ops.aten

# As in convolutions.h: channels, rows and threads of a block, and columns of one that sums.
_CHANNELS, _ROWS, _THREADS, _COLUMNS = 8, 16, 256, 32
# Threads compute two pixels where so many blocks are left.
_ENOUGH_BLOCKS = 200
# Blocks for sums, and pixels of one at least, of 1 x 1.
_BLOCKS_OF_SUMS, _PIXELS_OF_SUMS = 512, 1024


def apart(program: Program) -> Program:
    """Split ``convolution_backward`` where a kernel here computes only one of its gradients."""
    return gpu_gradients(program, _is_half_ours)


def _is_half_ours(node: torch.fx.Node) -> bool:
    sizes = sizes_of(node)
    return sizes is not None and sizes.turned().is_ours() != sizes.weights_are_ours()


def convolution(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.convolution`` to a CUDA kernel call."""
    image, weight, bias, *_ = arguments(node)
    x, w = translator.places[image], translator.places[weight]
    result, sizes = translator.new_like(node), sizes_of(node)
    if sizes is None or not sizes.is_ours() or not result.contiguous:
        return None
    x, w = translator.contiguous(x), translator.contiguous(w)
    added = [] if bias is None else [translator.contiguous(translator.places[bias])]
    translator.add(_convolution(x, w, added, result, sizes, turned=False))
    return result


def backward(translator: Any, node: torch.fx.Node) -> Any:
    """Translate ``aten.convolution_backward`` without bias gradient to CUDA kernel calls."""
    grad, image, weight, *_, mask = arguments(node)
    grad, x, w = (translator.places[each] for each in (grad, image, weight))
    sizes = sizes_of(node)
    # cuDNN has kernels for channels-last tensors.
    channels_last = x.shape[1] > 1 and x.stride[1] == 1 and x.shape[2] * x.shape[3] > 1
    if sizes is None or grad.dtype is not torch.float32 or mask[2] or channels_last:
        return None
    if (mask[0] and not sizes.turned().is_ours()) or (mask[1] and not sizes.weights_are_ours()):
        return None
    grad = translator.contiguous(grad)
    of_image = of_weight = None
    if mask[0]:
        of_image, w = translator.new(x.shape, x.dtype), translator.contiguous(w)
        translator.add(_convolution(grad, w, [], of_image, sizes.turned(), turned=True))
    if mask[1]:
        of_weight = _of_weight(translator, grad, translator.contiguous(x), w, sizes)
    return [of_image, of_weight, None]


def _convolution(
    x: Place, weight: Place, bias: list[Place], result: Place, sizes: Sizes, *, turned: bool
) -> Blocks:
    """Return the CUDA kernel call of a convolution.

    Args:
        x: NCHW input.
        weight: ``[results, channels, height, width]``.
        bias: one tensor of ``results`` numbers, or none.
        result: NCHW output.
        sizes: of this convolution.
        turned: input gradient: result and input channels of the weight are swapped.
    """
    steps = (sizes.channels * sizes.taps, sizes.taps)
    if turned:
        steps = (sizes.taps, sizes.results * sizes.taps)
    name, blocks, extent = _three_by_three(sizes) if sizes.taps > 1 else _one_by_one(sizes)
    reads = [x, weight, *bias]
    numbers = (*extent, sizes.results, sizes.channels, *steps, int(turned and sizes.taps > 1))
    *texts, last = (f"abele::number(p[{len(reads) + 1 + i}])" for i in range(len(numbers)))
    taps = ", ".join(["(const float*)p[1]", *texts[len(extent) :], f"{last} != 0"])
    added = "(const float*)p[2]" if bias else "(const float*)nullptr"
    given = ", ".join(["block", *texts[: len(extent)], f"abele::Taps{{{taps}}}"])
    body = f"abele::{name}({given}, (const float*)p[0], {added}, (float*)p[{len(reads)}]);"
    return Blocks(reads, [result], "convolution", body, blocks, numbers=numbers)


def _three_by_three(sizes: Sizes) -> tuple[str, int, tuple[int, ...]]:
    """Return function name, block count and extents of a 3 x 3 convolution kernel."""
    groups = -(-sizes.results // _CHANNELS)
    lines = sizes.samples * groups * -(-sizes.height // _ROWS)
    pixels = 2 if sizes.width >= 32 and lines * -(-sizes.width // 32) >= _ENOUGH_BLOCKS else 1
    blocks = lines * -(-sizes.width // (16 * pixels))
    return f"convolution<{pixels}>", blocks, (sizes.height, sizes.width)


def _one_by_one(sizes: Sizes) -> tuple[str, int, tuple[int, ...]]:
    """Return function name, block count and extents of a 1 x 1 convolution kernel."""
    pixels = sizes.height * sizes.width
    groups = -(-sizes.results // _CHANNELS)
    return "pointwise", sizes.samples * groups * -(-pixels // _THREADS), (pixels,)


def _of_weight(translator: Any, grad: Place, x: Place, weight: Place, sizes: Sizes) -> Place:
    """Add the kernel calls of a weight gradient: partial sums over pixels, then their sum."""
    pairs = -(-sizes.results // _CHANNELS) * -(-sizes.channels // _CHANNELS)
    if sizes.taps > 1:
        name, extent = "convolution_weights", (sizes.height, sizes.width)
        tiles = sizes.samples * -(-sizes.height // _ROWS) * -(-sizes.width // _COLUMNS)
    else:
        name, extent = "pointwise_weights", (sizes.height * sizes.width,)
        tiles = -(-sizes.pixels // _PIXELS_OF_SUMS)
    parts = -(-tiles // -(-tiles * pairs // _BLOCKS_OF_SUMS))
    result = translator.new(weight.shape, weight.dtype)
    sums = result if parts == 1 else translator.new((parts, weight.size), weight.dtype)
    numbers = sizes.samples, sizes.channels, sizes.results, *extent, parts
    translator.add(call(name, [grad, x], [sums], parts * pairs, numbers))
    if parts > 1:
        translator.add(summed_columns(sums, result, parts, weight.size, weight.size))
    return result


HANDLERS = {
    aten.convolution.default: convolution,
    aten.convolution_backward.default: backward,
}
