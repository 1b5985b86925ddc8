"""Tables of max pools, upsampling and norms of channels-last images."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch
from torch.nn import functional

from abele.kernels.binding import Norm, Pool, Upsample
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

_EPS, _MOMENTUM = 0.25, 0.3


class _Pool:
    """A max pool of integers, among which there are ties, and where its results come from.

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
        """Return images in the order of memory."""
        return (last(images) if self._last else images).detach().contiguous()


def _pools() -> Iterator[tuple[int, _Pool]]:
    for index, size in enumerate(TAILS):
        for channels_last in (False, True):
            yield index, _Pool(index, size, channels_last=channels_last)


def _max_pool(library: ctypes.CDLL) -> Iterator[Case]:
    for index, pool in _pools():
        exact, kind = [pool.in_memory(pool.y)], index % 3
        results = unwritten(exact[0].shape)
        places = torch.full_like(pool.places, 255, dtype=torch.uint8) if kind == 1 else None
        indices = torch.full_like(pool.indices, -1) if kind == 2 else None
        call(
            library.abele_max_pool,
            *(pool.described, pool.x, *results, places, indices, threads_of(index)),
        )
        for note, wanted in ((places, pool.places), (indices, pool.indices)):
            if note is not None:
                results, exact = [*results, note.float()], [*exact, wanted.double()]
        yield Case(pool.named, results, exact)


def _max_pool_backward(library: ctypes.CDLL) -> Iterator[Case]:
    for index, pool in _pools():
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


def _upsample(library: ctypes.CDLL) -> Iterator[Case]:
    return _upsampling(library, backward=False)


def _upsample_backward(library: ctypes.CDLL) -> Iterator[Case]:
    return _upsampling(library, backward=True)


# -- batch norms with their activation -------------------------------------------------------------


class _Norm:
    """A batch norm of rows of channels and its activation, in float64.

    Args:
        index: of the table's row.
        channels: of the norm.
        summed: whether something is added before the activation.
    """

    def __init__(self, index: int, channels: int, *, summed: bool = False):
        rows, self.slope = 2 + 11 * index % 60, (1.0, 0.25, 0.0)[index % 3]
        self.described = Norm(rows, channels, _MOMENTUM, _EPS, self.slope)
        self.named = {"rows": rows, "channels": channels, "slope": self.slope}
        self.shape, self.added = (rows, channels), numbers(rows, channels, seed=4)
        self.x = numbers(rows, channels) + 3
        self.weight, self.bias = numbers(channels, seed=1).abs() + 0.5, numbers(channels, seed=2)
        self.old = numbers(channels, seed=3), numbers(channels, seed=4).abs()
        self.leaves = double(self.x, self.weight, self.bias, self.added)
        x, weight, bias, added = self.leaves
        mean, var = x.mean(0), x.var(0, correction=0)
        rstd = (var + _EPS).rsqrt()
        y = (x - mean) * rstd * weight + bias + (added if summed else 0.0)
        self.y = torch.where(y > 0, y, y * self.slope)
        least = (self.bias.abs() / 64).clamp_min(1e-12)
        self.from_y = int(self.slope > 0 and bool((self.weight >= least).all()))
        flags = torch.full_like(mean, self.from_y)
        self.exact = torch.stack([mean, rstd, flags]).detach()
        self.statistics = self.exact.float()
        unbiased = var * (rows / (rows - 1))
        self.news = [
            ((1 - _MOMENTUM) * before + _MOMENTUM * now).detach()
            for before, now in zip(self.old, (mean, unbiased), strict=True)
        ]


def _norm_statistics(library: ctypes.CDLL) -> Iterator[Case]:
    for index, channels in enumerate(TAILS):
        norm, from_y = _Norm(index, channels), ctypes.c_int32(-1)
        results = unwritten((3, channels), (channels,), (channels,))
        given = norm.described, norm.x, norm.weight, norm.bias, *norm.old, *results
        call(library.abele_norm_statistics, *given, ctypes.addressof(from_y), threads_of(index))
        said = torch.tensor([from_y.value], dtype=torch.float32, device="cpu")
        exact = [norm.exact, *norm.news, torch.full_like(said, norm.from_y).double()]
        yield Case(norm.named, [*results, said], exact)


def _norm_apply(library: ctypes.CDLL) -> Iterator[Case]:
    for index, channels in enumerate(TAILS):
        norm = _Norm(index, channels, summed=bool(index % 2))
        result, added = unwritten(norm.shape), norm.added if index % 2 else None
        given = norm.x, norm.weight, norm.bias, norm.statistics, added, *result
        call(library.abele_norm_apply, norm.described, *given, threads_of(index))
        yield Case(norm.named, result, [norm.y.detach()])


def _norm_backward(library: ctypes.CDLL) -> Iterator[Case]:
    for index, channels in enumerate(TAILS):
        norm, grad = _Norm(index, channels), numbers(2 + 11 * index % 60, channels, seed=5)
        exact = gradients(norm.y, norm.leaves[:3], grad.double())
        results = unwritten(*(each.shape for each in exact))
        kept = norm.y.detach().float() if norm.from_y else norm.x
        given = grad, kept, norm.weight, norm.bias, norm.statistics, *results
        call(library.abele_norm_backward, norm.described, *given, threads_of(index))
        yield Case(norm.named, results, exact)


def _norm_sum_backward(library: ctypes.CDLL) -> Iterator[Case]:
    for index, channels in enumerate(TAILS):
        norm = _Norm(index, channels, summed=True)
        grad, more = numbers(*norm.shape, seed=5), numbers(*norm.shape, seed=6)
        whole = grad.double() + (more.double() if index % 2 else 0.0)
        of_x, of_weight, of_bias, of_added = gradients(norm.y, norm.leaves, whole)
        exact = [of_added, of_x, of_weight, of_bias]
        results, y = unwritten(*(each.shape for each in exact)), norm.y.detach().float()
        given = grad, more if index % 2 else None, y, norm.x, norm.weight, norm.statistics
        threads = threads_of(index)
        call(library.abele_norm_sum_backward, norm.described, *given, *results, threads)
        yield Case(norm.named, results, exact)


def _scale_shift(library: ctypes.CDLL) -> Iterator[Case]:
    for index, channels in enumerate(TAILS):
        norm, result = _Norm(index, channels), unwritten((2 + 11 * index % 60, channels))
        given = norm.x, norm.weight, norm.bias, *result
        call(library.abele_scale_shift, norm.described, *given, threads_of(index))
        y = norm.x.double() * norm.weight + norm.bias
        yield Case(norm.named, result, [torch.where(y > 0, y, y * norm.slope)])


TABLES: dict[str, dict[str, Table]] = {
    "pools": {"abele_max_pool": _max_pool, "abele_max_pool_backward": _max_pool_backward},
    "upsampling": {
        "abele_upsample": _upsample,
        "abele_upsample_backward": _upsample_backward,
    },
    "norms": {
        "abele_norm_statistics": _norm_statistics,
        "abele_norm_apply": _norm_apply,
        "abele_norm_backward": _norm_backward,
        "abele_norm_sum_backward": _norm_sum_backward,
        "abele_scale_shift": _scale_shift,
    },
}
