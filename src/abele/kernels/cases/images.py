"""Self-test cases of convolutions, max pools, upsampling and norms of images."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from abele.kernels.binding import (
    CONSTANTS,
    TYPES,
    Clamped,
    Conv,
    Depthwise,
    Norm,
    Patches,
    Pool,
    Upsample,
)
from abele.kernels.cases.case import (
    TAILS,
    Case,
    Table,
    Tensor,
    both,
    call,
    double,
    first,
    gradients,
    integers,
    last,
    named,
    nearly,
    numbers,
    threads_of,
    unwritten,
)
from abele.kernels.cases.matrices import packed
from abele.kernels.on_tensors import packed_shape, place_count

_EPS, _MOMENTUM = 0.25, 0.3


class _Sizes(NamedTuple):
    """Sizes of a convolution, named as in ``abi.h``; strides and padding by dimension."""

    images: int
    in_channels: int
    height: int
    width: int
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    channels_last: int = 0

    def described(self, slope: float = 1.0, dtype: torch.dtype = torch.float32) -> ctypes.Structure:
        """Return the C structure of a convolution of these sizes."""
        sizes = self.images, self.in_channels, self.height, self.width, self.out_channels
        how = self.channels_last, slope, TYPES[dtype]
        return Conv(*sizes, *self.kernel, *self.stride, *self.padding, *how)

    def has_weight_gradient(self) -> bool:
        """Return whether there is a kernel for the weight gradient of NHWC images."""
        filled = self.in_channels % 8 == 0
        if self.out_channels % 8:
            return self.kernel == (1, 1) and filled
        return filled or self.in_channels == 1


class _Operands:
    """Random operands of a convolution in a given layout, and its exact result.

    Args:
        sizes: of the convolution.
        whole: small integers instead of normal numbers. All sums of these are exact, so that ties
            and zeros do not depend on rounding.
        dtype: of the images and the weight.
    """

    def __init__(self, sizes: _Sizes, *, whole: bool = False, dtype: torch.dtype = torch.float32):
        self.sizes = sizes
        image = sizes.images, sizes.in_channels, sizes.height, sizes.width
        weight = sizes.out_channels, sizes.in_channels, *sizes.kernel
        self.x, self.weight, self.bias = (
            _whole(*each, seed=seed) if whole else numbers(*each, seed=seed)
            for seed, each in enumerate((self._memory(image), weight, weight[:1]))
        )
        self.x, self.weight = self.x.to(dtype), self.weight.to(dtype)
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
        """Permute exact NCHW images to the memory order of the operands."""
        images = images.detach()
        return last(images) if self.sizes.channels_last else images

    def named(self) -> dict[str, Any]:
        """Return the sizes of the convolution by name, for messages."""
        return self.sizes._asdict()


def _whole(*shape: int, seed: int) -> Tensor:
    return integers(7, *shape, seed=seed).float() - 3


_MOVES = (
    *(((3, 3), (1, 1), (1, 1)), ((5, 5), (1, 1), (0, 0)), ((1, 1), (2, 2), (1, 1))),
    *(((3, 5), (1, 2), (2, 1)), ((2, 3), (2, 1), (0, 2)), ((3, 3), (2, 2), (1, 1))),
)


def _planes() -> Iterator[_Sizes]:
    """Yield convolution sizes of NCHW images, for kernels with a batch of samples per register."""
    for index, images in enumerate((*range(1, 18), 31, 33)):
        sizes = images, 1 + 3 * index % 7, 5 + index % 4, 5 + index % 7, 1 + 5 * index % 13
        yield _Sizes(*sizes, *_MOVES[index % len(_MOVES)])
    for index, width in enumerate(range(14, 48, 2)):  # or several pixels of one image
        kernel = (3, 3) if index % 3 else (5, 5)
        sizes = 1 + index % 2, 1 + index % 5, 7, width + index % 2, 1 + 5 * index % 13
        yield _Sizes(*sizes, kernel, (1, 1), (index % 2, index % 2))


def _rows_of_pixels() -> Iterator[_Sizes]:
    """Yield convolution sizes of NHWC images with rows of at least 16 pixels."""
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
    yield _Sizes(2, 130, 7, 6, 150, (3, 3), (1, 1), (1, 1), 1)


def _pointwise() -> Iterator[_Sizes]:
    for index, channels in enumerate((*range(1, 34), 64, 130)):
        shape = 1 + index % 3, channels, 2 + 5 * index % 9, 1 + 7 * index % 11, 1 + 11 * index % 67
        yield _Sizes(*shape, (1, 1), (1 + index % 2, 1 + index // 2 % 3), (0, 0), 1)
    yield _Sizes(40, 128, 1, 1, 64, (1, 1), (1, 1), (0, 0), 1)


_FAMILIES = {"conv": _direct, "winograd": _winograd, "pointwise": _pointwise}


def _type(family: str, index: int) -> torch.dtype:
    """Return the type of a case's images and weight: Winograd's kernels have two."""
    return torch.bfloat16 if family == "winograd" and index % 5 == 1 else torch.float32


def _forward(family: str, library: ctypes.CDLL) -> Iterator[Case]:
    function = getattr(library, f"abele_{family}_forward")
    for index, sizes in enumerate(_FAMILIES[family]()):
        slope = 1.0 if family == "pointwise" else (1.0, 0.25, 0.0)[index % 3]
        dtype = _type(family, index)
        given = _Operands(sizes, dtype=dtype)
        biased, result = index % 4 != 1, unwritten(given.shape)[0].to(dtype)
        bias = given.bias if biased else None
        described, threads = sizes.described(slope, dtype), threads_of(index)
        call(function, described, given.x, given.weight, bias, result, threads)
        exact = given.exact if biased else given.exact - given.leaves[2][:, None, None]
        exact = torch.where(exact > 0, exact, exact * slope)
        exact, names = given.in_memory(exact), {**given.named(), "slope": slope, "dtype": dtype}
        yield Case(names, [nearly(result, exact)], [exact])


_PACKED = "abele_winograd_pack", "abele_winograd_packed_forward"


def _packed(library: ctypes.CDLL) -> Iterator[Case]:
    for index, sizes in enumerate(_winograd()):
        slope, points = (1.0, 0.25, 0.0)[index % 3], (36, 16)[index % 5 > 2]
        dtype = _type("winograd", index)
        given = _Operands(sizes, dtype=dtype)
        packed = torch.empty(packed_shape(given.weight.shape, points))
        result, weight = unwritten(given.shape)[0].to(dtype), given.weight.float()
        described, threads = sizes.described(slope, dtype), threads_of(index)
        before = numbers(*given.shape, seed=7).to(dtype) if index % 2 else None
        if before is not None:
            result.copy_(before)
        call(library.abele_winograd_pack, described, weight, packed, points, threads)
        adds, function = int(before is not None), library.abele_winograd_packed_forward
        how = adds, points, threads
        call(function, described, given.x, packed, given.bias, result, *how)
        exact = given.in_memory(given.exact) + (0 if before is None else before.double())
        exact = torch.where(exact > 0, exact, exact * slope)
        names = {**given.named(), "slope": slope, "adds": adds, "points": points, "dtype": dtype}
        yield Case(names, [nearly(result, exact)], [exact])


def _backward(family: str, library: ctypes.CDLL) -> Iterator[Case]:
    function = getattr(library, f"abele_{family}_backward")
    for index, sizes in enumerate(_FAMILIES[family]()):
        dtype = _type(family, index)
        given = _Operands(sizes, dtype=dtype)
        grad = numbers(*given.shape, seed=5).to(dtype)
        wide = (first(grad) if sizes.channels_last else grad).double()
        exact = gradients(given.exact, given.leaves, wide)
        exact[0] = given.in_memory(exact[0])
        results = list[Tensor | None](unwritten(*(each.shape for each in exact)))
        if family == "conv" and sizes.channels_last and not sizes.has_weight_gradient():
            results[1] = None
        if dtype is torch.bfloat16:  # without that of the bias
            results = [each.to(dtype) for each in results[:2] if each is not None] + [None]
        described, threads = sizes.described(dtype=dtype), threads_of(index)
        call(function, described, grad, given.x, given.weight, *results, threads)
        some = [(r, e) for r, e in zip(results, exact, strict=True) if r is not None]
        names = {**given.named(), "dtype": dtype}
        yield Case(names, [nearly(*pair) for pair in some], [e for _, e in some])


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


# -- windows side by side --------------------------------------------------------------------------


_PATCHES = (
    *("images", "height", "width", "small_channels", "large_channels"),
    *("kernel_height", "kernel_width"),
)


def _patch_sizes() -> Iterator[tuple[int, ...]]:
    """Yield sizes of patch convolutions: images, height, width, channels and kernel."""
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


# -- max pools and upsampling ---------------------------------------------------------------------


class _Pool:
    """A max pool of integers with ties, and its exact result and indices.

    Args:
        index: of the table's row.
        size: of rows of pixels, or of channels where these lie together.
        channels_last: the layout of the images.
    """

    def __init__(self, index: int, size: int, *, channels_last: bool):
        channels, width = (size, 2 + index % 5) if channels_last else (1 + index % 3, 1 + size)
        shape = 1 + index % 2, channels, 2 + index % 5, width
        self.described, self._last = Pool(*shape, int(channels_last)), channels_last
        images, channels, height, width = shape
        memory = (images, height, width, channels) if channels_last else shape
        self.x = integers(50, *memory).float()
        self.leaf = (first(self.x) if channels_last else self.x).double().requires_grad_()
        self.y, indices = functional.max_pool2d(self.leaf, 2, return_indices=True)
        self.indices = self.in_memory(indices)
        self.places = self.indices // width % 2 * 2 + self.indices % width % 2
        self.named = named(("images", "channels", "height", "width"), shape)
        self.named["channels_last"] = int(channels_last)

    def in_memory(self, images: Tensor) -> Tensor:
        """Permute NCHW images to the memory order of the pool."""
        return (last(images) if self._last else images).detach().contiguous()


def _pool_cases() -> Iterator[tuple[int, _Pool]]:
    for index, size in enumerate(TAILS):
        for channels_last in (False, True):
            yield index, _Pool(index, size, channels_last=channels_last)


def _max_pool(library: ctypes.CDLL) -> Iterator[Case]:
    for index, pool in _pool_cases():
        exact = [pool.in_memory(pool.y)]
        results = unwritten(exact[0].shape)
        places = torch.full_like(pool.places, 255, dtype=torch.uint8) if index % 2 else None
        given = pool.described, pool.x, *results, places
        call(library.abele_max_pool, *given, threads_of(index))
        if places is not None:
            results, exact = [*results, places.float()], [*exact, pool.places.double()]
        yield Case(pool.named, results, exact)


def _max_pool_backward(library: ctypes.CDLL) -> Iterator[Case]:
    for index, pool in _pool_cases():
        grad = numbers(*pool.indices.shape, seed=1)
        wide = (first(grad) if pool.described.channels_last else grad).double()
        (exact,) = gradients(pool.y, pool.leaf, wide)
        result, places = unwritten(pool.x.shape), pool.places.to(torch.uint8)
        given = pool.described, grad, places, *result
        call(library.abele_max_pool_backward, *given, threads_of(index))
        yield Case(pool.named, result, [pool.in_memory(exact)])


def _upsampling(library: ctypes.CDLL, *, backward: bool) -> Iterator[Case]:
    for index, channels in enumerate(TAILS[:-2]):
        shape = 1 + index % 2, channels, 1 + index % 4, 1 + 3 * index % 5
        images, _, height, width = shape
        (x,) = double(numbers(*shape))
        y = functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        small, large = (images, height, width, channels), (images, 2 * height, 2 * width, channels)
        of_call = named(("images", "channels", "height", "width"), shape)
        described, threads = Upsample(*shape), threads_of(index)
        if backward:
            grad, result = numbers(*large, seed=1), unwritten(small)
            (exact,) = gradients(y, x, first(grad).double())
            call(library.abele_upsample_backward, described, grad, *result, threads)
        else:
            result, exact = unwritten(large), y.detach()
            given = last(x.detach()).float().contiguous()
            call(library.abele_upsample, described, given, *result, threads)
        yield Case(of_call, result, [last(exact)])


# -- convolutions of inference ---------------------------------------------------------------------


def _clamped(library: ctypes.CDLL, *, depthwise: bool) -> Iterator[Case]:
    names = "images", "in_channels", "in_height", "in_width", "out_channels", "size", "step"
    for index, channels in enumerate((*TAILS[15:], *range(89, 98)) if depthwise else TAILS):
        size, step = (3, 5, 7)[index % 3], 1 + index // 3 % 2
        inputs, pad = channels if depthwise else 1 + index % 3, index % size
        edges = size + index % 4, size + 5 + 3 * index % 17
        x = numbers(1 + index % 2, inputs, *edges)
        weight = numbers(channels, 1 if depthwise else inputs, size, size, seed=1)
        bias, low, high = numbers(channels, seed=2), (-1.0, -2.5)[index % 2], 2.0
        groups = channels if depthwise else 1
        wide = x.double(), weight.double(), bias.double()
        exact = last(functional.conv2d(*wide, step, pad, groups=groups)).clamp(low, high)
        sizes = (len(x), inputs, *edges, channels, size, step)
        described, (result,) = Clamped(*sizes, pad, low, high), unwritten(exact.shape)
        matrix = weight.flatten(1).t()
        if depthwise:
            given = library.abele_clamped_depthwise, described, last(x).contiguous()
            call(*given, matrix.contiguous(), bias, result, threads_of(index))
        else:
            given = described, x, packed(library, matrix), bias, result, threads_of(index)
            call(library.abele_clamped_few_channels, *given)
        yield Case(named(names, sizes), [result], [exact])


# -- batch norms with their activation -------------------------------------------------------------


class _Norm:
    """A batch norm of ``[rows, channels]`` with activation, computed exactly in float64.

    Args:
        index: of the table's row.
        channels: of the norm.
        summed: whether something is added before the activation.
        dtype: of images.
    """

    def __init__(self, index: int, channels: int, *, summed: bool, dtype: torch.dtype):
        rows, self.slope = 2 + 11 * index % 60, (1.0, 0.25, 0.0)[index % 3]
        self.dtype, narrow = dtype, dtype is not torch.float32
        kind = CONSTANTS["ABELE_BFLOAT16"] if narrow else CONSTANTS["ABELE_FLOAT32"]
        self.described = Norm(rows, channels, _MOMENTUM, _EPS, self.slope, int(narrow), kind)
        self.named = {"rows": rows, "channels": channels, "slope": self.slope, "type": kind}
        self.shape = rows, channels
        self.added, self.x = self.image(4), (numbers(rows, channels) + 3).to(dtype)
        self.weight, self.bias = numbers(channels, seed=1).abs() + 0.5, numbers(channels, seed=2)
        self.old = numbers(channels, seed=3), numbers(channels, seed=4).abs()
        self.leaves = double(self.x, self.weight, self.bias, self.added)
        x, weight, bias, added = self.leaves
        mean, var = x.mean(0), x.var(0, correction=0)
        rstd = (var + _EPS).rsqrt()
        y = (x - mean) * rstd * weight + bias + (added if summed else 0.0)
        self.y = torch.where(y > 0, y, y * self.slope)
        least, most = (1e-3 / max(self.slope, 1e-9), 2) if narrow else (1e-12, 64)
        least = (self.bias.abs() / most).clamp_min(least)
        self.from_y = int(self.slope > 0 and bool((self.weight >= least).all()))
        flags = torch.full_like(mean, self.from_y)
        self.exact = torch.stack([mean, rstd, flags]).detach()
        self.statistics = self.exact.float()
        unbiased = var * (rows / (rows - 1))
        self.news = [
            ((1 - _MOMENTUM) * before + _MOMENTUM * now).detach()
            for before, now in zip(self.old, (mean, unbiased), strict=True)
        ]

    def image(self, seed: int) -> Tensor:
        """Return random numbers of the norm's shape and type."""
        return numbers(*self.shape, seed=seed).to(self.dtype)

    def unwritten(self) -> Tensor:
        """Return an image for a result."""
        (result,) = unwritten(self.shape)
        return result if self.dtype is torch.float32 else result.to(self.dtype)


def _norms(*, summed: bool | None = None) -> Iterator[tuple[int, _Norm]]:
    """Yield norms of all sizes, with a sum before some or each activation, and some in bfloat16."""
    for index, channels in enumerate(TAILS):
        sums = bool(index % 2) if summed is None else summed
        for dtype in (torch.float32, torch.bfloat16)[: 1 + (index % 4 > 1)]:
            yield index, _Norm(index, channels, summed=sums, dtype=dtype)


def _norm_statistics(library: ctypes.CDLL) -> Iterator[Case]:
    for index, norm in _norms(summed=False):
        from_y, channels = ctypes.c_int32(-1), norm.shape[1]
        results = unwritten((3, channels), (channels,), (channels,))
        given = norm.described, norm.x, norm.weight, norm.bias, *norm.old, *results
        call(library.abele_norm_statistics, *given, ctypes.addressof(from_y), threads_of(index))
        said = torch.tensor([from_y.value], dtype=torch.float32, device="cpu")
        exact = [norm.exact, *norm.news, torch.full_like(said, norm.from_y).double()]
        yield Case(norm.named, [*results, said], exact)


def _norm_apply(library: ctypes.CDLL) -> Iterator[Case]:
    for index, norm in _norms():
        result, added = norm.unwritten(), norm.added if index % 2 else None
        given = norm.x, norm.weight, norm.bias, norm.statistics, added, result
        call(library.abele_norm_apply, norm.described, *given, threads_of(index))
        exact = norm.y.detach()
        yield Case(norm.named, [nearly(result, exact)], [exact])


def _norm_backward(library: ctypes.CDLL) -> Iterator[Case]:
    for index, norm in _norms(summed=False):
        grad = norm.image(5)
        exact = gradients(norm.y, norm.leaves[:3], grad.double())
        results = [norm.unwritten(), *unwritten(*(each.shape for each in exact[1:]))]
        # A y of 16 bits brings x back with its rounding: the kernel's tests have a bound for that.
        from_y = norm.from_y and norm.dtype is torch.float32
        kept, statistics = norm.y.detach().float() if from_y else norm.x, norm.statistics.clone()
        statistics[2] = from_y
        given = grad, kept, norm.weight, norm.bias, statistics, *results
        call(library.abele_norm_backward, norm.described, *given, threads_of(index))
        yield Case(norm.named, [nearly(results[0], exact[0]), *results[1:]], exact)


def _norm_sum_backward(library: ctypes.CDLL) -> Iterator[Case]:
    for index, norm in _norms(summed=True):
        grad, more = norm.image(5), norm.image(6)
        whole = grad.double() + (more.double() if index % 2 else 0.0)
        of_x, of_weight, of_bias, of_added = gradients(norm.y, norm.leaves, whole)
        exact = [of_added, of_x, of_weight, of_bias]
        vectors = unwritten(of_weight.shape, of_bias.shape)
        results, y = [norm.unwritten(), norm.unwritten(), *vectors], norm.y.detach().to(norm.dtype)
        given = grad, more if index % 2 else None, y, norm.x, norm.weight, norm.statistics
        threads = threads_of(index)
        call(library.abele_norm_sum_backward, norm.described, *given, *results, threads)
        images = list(map(nearly, results[:2], exact))
        yield Case(norm.named, [*images, *results[2:]], exact)


def _scale_shift(library: ctypes.CDLL) -> Iterator[Case]:
    for index, norm in _norms(summed=False):
        result = norm.unwritten()
        given = norm.x, norm.weight, norm.bias, result
        call(library.abele_scale_shift, norm.described, *given, threads_of(index))
        y = norm.x.double() * norm.weight + norm.bias
        exact = torch.where(y > 0, y, y * norm.slope)
        yield Case(norm.named, [nearly(result, exact)], [exact])


def _of(family: str) -> dict[str, Table]:
    return {
        f"abele_{family}_forward": functools.partial(_forward, family),
        f"abele_{family}_backward": functools.partial(_backward, family),
    }


TABLES: dict[str, dict[str, Table]] = {
    "convolutions": {**_of("conv"), **both("abele_conv_pool", _pools)},
    "winograd": {**_of("winograd"), **dict.fromkeys(_PACKED, _packed)},
    "pointwise": _of("pointwise"),
    "depthwise": both("abele_depthwise", _depthwise, forward="_forward"),
    "patches": {
        **{
            f"abele_patches_{each}": functools.partial(_patches, function=each)
            for each in ("spread", "gather", "weight")
        },
        "abele_channel_sums": _channel_sums,
    },
    "clamped": {
        "abele_clamped_depthwise": functools.partial(_clamped, depthwise=True),
        "abele_clamped_few_channels": functools.partial(_clamped, depthwise=False),
    },
    "pools": {"abele_max_pool": _max_pool, "abele_max_pool_backward": _max_pool_backward},
    "upsampling": both("abele_upsample", _upsampling),
    "norms": {
        "abele_norm_statistics": _norm_statistics,
        "abele_norm_apply": _norm_apply,
        "abele_norm_backward": _norm_backward,
        "abele_norm_sum_backward": _norm_sum_backward,
        "abele_scale_shift": _scale_shift,
    },
}
