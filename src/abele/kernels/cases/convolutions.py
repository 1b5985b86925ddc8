"""Tables of convolutions, with all of their gradients."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from abele.kernels.binding import Conv, Depthwise, Patches
from abele.kernels.cases.case import (
    TAILS,
    Case,
    Table,
    Tensor,
    call,
    double,
    first,
    gradients,
    integers,
    last,
    named,
    numbers,
    threads_of,
    unwritten,
)
from abele.kernels.on_tensors import place_count


class _Sizes(NamedTuple):
    """Sizes of a convolution as ``abi.h`` names them; strides and padding by dimension."""

    images: int
    in_channels: int
    height: int
    width: int
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    channels_last: int = 0

    def described(self, slope: float = 1.0) -> ctypes.Structure:
        """Return the convolution as a kernel takes it."""
        sizes = self.images, self.in_channels, self.height, self.width, self.out_channels
        return Conv(*sizes, *self.kernel, *self.stride, *self.padding, self.channels_last, slope)

    def has_weight_gradient(self) -> bool:
        """Return whether there is code for the weight gradient of channels-last images."""
        filled = self.in_channels % 8 == 0
        if self.out_channels % 8:
            return self.kernel == (1, 1) and filled
        return filled or self.in_channels == 1


class _Operands:
    """Operands of a convolution, in the layout of its images, and its exact result.

    Args:
        sizes: of the convolution.
        whole: small integers instead of normal numbers. All sums of these are exact, so that ties
            and zeros do not depend on rounding.
    """

    def __init__(self, sizes: _Sizes, *, whole: bool = False):
        self.sizes = sizes
        image = sizes.images, sizes.in_channels, sizes.height, sizes.width
        weight = sizes.out_channels, sizes.in_channels, *sizes.kernel
        self.x, self.weight, self.bias = (
            _whole(*each, seed=seed) if whole else numbers(*each, seed=seed)
            for seed, each in enumerate((self._memory(image), weight, weight[:1]))
        )
        nchw = first(self.x) if sizes.channels_last else self.x
        self.leaves = double(nchw, self.weight, self.bias)
        x, weights, bias = self.leaves
        self.exact = functional.conv2d(x, weights, bias, sizes.stride, sizes.padding)
        shape = tuple(self.exact.shape)
        self.shape = self._memory(shape)

    def _memory(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        images, channels, height, width = shape
        return (images, height, width, channels) if self.sizes.channels_last else shape

    def in_memory(self, images: Tensor) -> Tensor:
        """Return exact images in the order of memory."""
        images = images.detach()
        return last(images) if self.sizes.channels_last else images

    def named(self) -> dict[str, Any]:
        """Return the sizes for messages."""
        return self.sizes._asdict()


def _whole(*shape: int, seed: int) -> Tensor:
    return integers(7, *shape, seed=seed).float() - 3


_MOVES = (
    *(((3, 3), (1, 1), (1, 1)), ((5, 5), (1, 1), (0, 0)), ((1, 1), (2, 2), (1, 1))),
    *(((3, 5), (1, 2), (2, 1)), ((2, 3), (2, 1), (0, 2)), ((3, 3), (2, 2), (1, 1))),
)


def _planes() -> Iterator[_Sizes]:
    """Yield images whose channels lie apart: registers hold an element of several images."""
    for index, images in enumerate((*range(1, 18), 31, 33)):
        sizes = images, 1 + 3 * index % 7, 5 + index % 4, 5 + index % 7, 1 + 5 * index % 13
        yield _Sizes(*sizes, *_MOVES[index % len(_MOVES)])
    for index, width in enumerate(range(14, 48, 2)):  # or several pixels of one image
        kernel = (3, 3) if index % 3 else (5, 5)
        sizes = 1 + index % 2, 1 + index % 5, 7, width + index % 2, 1 + 5 * index % 13
        yield _Sizes(*sizes, kernel, (1, 1), (index % 2, index % 2))


def _rows_of_pixels() -> Iterator[_Sizes]:
    """Yield channels-last images, whose rows have at least 16 pixels."""
    channels = ((1, 8), (8, 8), (1, 16), (8, 16), (16, 24), (5, 7), (24, 8), (3, 20), (16, 3))
    for index, width in enumerate(range(16, 50)):
        inputs, outputs = channels[index % len(channels)]
        size = 1 + 2 * (index // 3 % 3)
        half = size // 2
        shape = 1 + index % 2, inputs, 1 + index % 6, width, outputs
        yield _Sizes(*shape, (size, size), (1, 1), (half, half), 1)


def _direct() -> Iterator[_Sizes]:
    yield from _planes()
    yield from _rows_of_pixels()


def _winograd() -> Iterator[_Sizes]:
    for index, channels in enumerate((*range(1, 34), 40, 64, 150)):
        height, width = 1 + 5 * index % 12, 1 + 7 * index % 20
        pad = index % 3 if min(height, width) > 2 else 1 + index % 2
        shape = 1 + index % 3, channels, height, width, 1 + 11 * index % 41
        yield _Sizes(*shape, (3, 3), (1, 1), (pad, pad), 1)
    yield _Sizes(4, 16, 17, 32, 16, (3, 3), (1, 1), (1, 1), 1)
    yield _Sizes(3, 20, 31, 45, 40, (3, 3), (1, 1), (1, 1), 1)


def _pointwise() -> Iterator[_Sizes]:
    for index, channels in enumerate((*range(1, 34), 64, 130)):
        shape = 1 + index % 3, channels, 2 + 5 * index % 9, 1 + 7 * index % 11, 1 + 11 * index % 67
        yield _Sizes(*shape, (1, 1), (1 + index % 2, 1 + index // 2 % 3), (0, 0), 1)
    yield _Sizes(40, 128, 1, 1, 64, (1, 1), (1, 1), (0, 0), 1)


_FAMILIES = {"conv": _direct, "winograd": _winograd, "pointwise": _pointwise}


def _forward(family: str, library: ctypes.CDLL) -> Iterator[Case]:
    function = getattr(library, f"abele_{family}_forward")
    for index, sizes in enumerate(_FAMILIES[family]()):
        given, slope = (
            _Operands(sizes),
            1.0 if family == "pointwise" else (1.0, 0.25, 0.0)[index % 3],
        )
        biased, result = index % 4 != 1, unwritten(given.shape)
        bias = given.bias if biased else None
        described, threads = sizes.described(slope), threads_of(index)
        call(function, described, given.x, given.weight, bias, *result, threads)
        exact = given.exact if biased else given.exact - given.leaves[2][:, None, None]
        exact = torch.where(exact > 0, exact, exact * slope)
        yield Case({**given.named(), "slope": slope}, result, [given.in_memory(exact)])


def _backward(family: str, library: ctypes.CDLL) -> Iterator[Case]:
    function = getattr(library, f"abele_{family}_backward")
    for index, sizes in enumerate(_FAMILIES[family]()):
        given = _Operands(sizes)
        grad = numbers(*given.shape, seed=5)
        wide = (first(grad) if sizes.channels_last else grad).double()
        exact = gradients(given.exact, given.leaves, wide)
        exact[0] = given.in_memory(exact[0])
        results: list[Tensor | None] = [*unwritten(*(each.shape for each in exact))]
        if family == "conv" and sizes.channels_last and not sizes.has_weight_gradient():
            results[1] = None
        threads = threads_of(index)
        call(function, sizes.described(), grad, given.x, given.weight, *results, threads)
        some = [pair for pair in zip(results, exact, strict=True) if pair[0] is not None]
        yield Case(
            given.named(), [each for each, _ in some if each is not None], [e for _, e in some]
        )


def _pools(library: ctypes.CDLL, *, backward: bool) -> Iterator[Case]:
    for index, sizes in enumerate(_planes()):
        given, slope = _Operands(sizes, whole=True), float(index % 2)
        if min(given.exact.shape[2:]) < 2:  # has no window
            continue
        pooled = functional.max_pool2d(given.exact if slope else given.exact.relu(), 2)
        result, shape = unwritten(pooled.shape), tuple(pooled.shape)
        places = torch.empty(place_count(shape), dtype=torch.uint8, device="cpu")
        operands, threads = (given.x, given.weight), threads_of(index)
        before = sizes.described(slope), *operands, given.bias
        call(library.abele_conv_pool, *before, *result, places, threads)
        if not backward:
            yield Case({**given.named(), "slope": slope}, result, [pooled.detach()])
            continue
        grad = _whole(*shape, seed=5)
        exact = gradients(pooled, given.leaves, grad.double())
        results, described = unwritten(*(each.shape for each in exact)), sizes.described()
        function = library.abele_conv_pool_backward
        call(function, described, grad, places, *operands, *results, threads)
        yield Case({**given.named(), "slope": slope}, results, exact)


def _conv_pool(library: ctypes.CDLL) -> Iterator[Case]:
    return _pools(library, backward=False)


def _conv_pool_backward(library: ctypes.CDLL) -> Iterator[Case]:
    return _pools(library, backward=True)


# -- a kernel for each channel ---------------------------------------------------------------------


def _depthwise(library: ctypes.CDLL, *, backward: bool) -> Iterator[Case]:
    for index, width in enumerate((*range(1, 42), 65)):
        size, step = (3, 5, 7)[index % 3], 1 + index // 3 % 2
        pad, threads = 1 + index % (size - 1), threads_of(index)
        shape = 1 + index % 3, 1 + index % 5, 7 + index % 9, max(width, size - 2 * pad)
        x, weight = numbers(*shape), numbers(shape[1], 1, size, size, seed=1)
        bias, described = numbers(shape[1], seed=2), Depthwise(*shape, size, step, pad, pad)
        leaves = double(x, weight, bias)
        y = functional.conv2d(leaves[0], leaves[1], leaves[2], step, pad, groups=shape[1])
        named = {"shape": shape, "size": size, "step": step, "padding": pad}
        if not backward:
            result = unwritten(y.shape)
            call(library.abele_depthwise_forward, described, x, weight, bias, *result, threads)
            yield Case(named, result, [y.detach()])
            continue
        grad = numbers(*y.shape, seed=3)
        exact = gradients(y, leaves, grad.double())
        results = unwritten(*(each.shape for each in exact))
        call(library.abele_depthwise_backward, described, grad, x, weight, *results, threads)
        yield Case(named, results, exact)


def _depthwise_forward(library: ctypes.CDLL) -> Iterator[Case]:
    return _depthwise(library, backward=False)


def _depthwise_backward(library: ctypes.CDLL) -> Iterator[Case]:
    return _depthwise(library, backward=True)


# -- windows side by side --------------------------------------------------------------------------


_PATCHES = (
    *("images", "height", "width", "small_channels", "large_channels"),
    *("kernel_height", "kernel_width"),
)


def _patch_sizes() -> Iterator[tuple[int, ...]]:
    """Yield images, height and width, small and large channels, height and width of the kernel."""
    kernels = ((16, 8, 2, 2), (32, 16, 2, 2), (48, 24, 1, 2), (16, 16, 3, 1), (80, 4, 2, 4))
    for index, width in enumerate(range(1, 34)):
        yield 1 + index % 2, 1 + index % 5, width, *kernels[index % len(kernels)]
    yield 1, 5, 9, 144, 16, 2, 2


def _patches(library: ctypes.CDLL, *, function: str) -> Iterator[Case]:
    for index, sizes in enumerate(_patch_sizes()):
        images, height, width, small, large, high, wide = sizes
        x = numbers(images, height, width, small)
        y = numbers(images, height * high, width * wide, large, seed=1)
        weight, threads = numbers(small, large, high, wide, seed=2), threads_of(index)
        described = Patches(*sizes)
        of_call = named(_PATCHES, sizes)
        run = getattr(library, f"abele_patches_{function}")
        bias = numbers(large if function == "spread" else small, seed=3)
        (nchw, weights), to = double(first(x), weight), functional.conv_transpose2d
        if function == "spread":
            result = unwritten(y.shape)
            exact = last(to(nchw, weights, bias.double(), (high, wide)).detach())
            call(run, described, x, weight, bias, *result, threads)
        elif function == "gather":
            result = unwritten(x.shape)
            kept = functional.conv2d(first(y).double(), weights, bias.double(), (high, wide))
            exact = last(kept.detach())
            call(run, described, y, weight, bias, *result, threads)
        else:
            result, spread = unwritten(weight.shape), to(nchw, weights, None, (high, wide))
            (exact,) = gradients(spread, weights, first(y).double())
            call(run, described, x, y, *result, threads)
        yield Case(of_call, result, [exact])


def _channel_sums(library: ctypes.CDLL) -> Iterator[Case]:
    for index, channels in enumerate(TAILS):
        rows, width = 1 + 3 * index % 7, 1 + 5 * index % 23
        x, result = numbers(rows, width, channels), unwritten((channels,))
        threads = threads_of(index)
        call(library.abele_channel_sums, rows, width, channels, x, *result, threads)
        named = {"rows": rows, "width": width, "channels": channels}
        yield Case(named, result, [x.double().sum((0, 1))])


def _of(family: str) -> dict[str, Table]:
    return {
        f"abele_{family}_forward": functools.partial(_forward, family),
        f"abele_{family}_backward": functools.partial(_backward, family),
    }


TABLES: dict[str, dict[str, Table]] = {
    "convolutions": {
        **_of("conv"),
        "abele_conv_pool": _conv_pool,
        "abele_conv_pool_backward": _conv_pool_backward,
    },
    "winograd": _of("winograd"),
    "pointwise": _of("pointwise"),
    "depthwise": {
        "abele_depthwise_forward": _depthwise_forward,
        "abele_depthwise_backward": _depthwise_backward,
    },
    "patches": {
        **{
            f"abele_patches_{each}": functools.partial(_patches, function=each)
            for each in ("spread", "gather", "weight")
        },
        "abele_channel_sums": _channel_sums,
    },
}
