"""Self-test cases of norms, softmax, losses, sums, embeddings and checksums."""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from abele.kernels.binding import Dim
from abele.kernels.cases.case import (
    TAILS,
    Case,
    Table,
    Tensor,
    both,
    call,
    double,
    gradients,
    integers,
    named,
    numbers,
    threads_of,
    unwritten,
)

# Large, so that rows of few elements are no sums of rounding errors.
_EPS, _MOMENTUM = 0.25, 0.3
# Of ``checksum.cpp``: words of 64 bits, lanes that sum them, and what their keys grow by.
_ALL, _HALF, _LANES, _ODD = 2**64 - 1, 2**32 - 1, 16, 0x9E3779B97F4A7C15


def _statistics(x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return mean and reciprocal standard deviation in float64."""
    wide = x.double()
    return wide.mean(dims), (wide.var(dims, correction=0) + _EPS).rsqrt()


def _layer_norms(library: ctypes.CDLL) -> Iterator[Case]:
    for index, size in enumerate(TAILS):
        rows, weighted = 1 + index % 5, index % 3 != 0
        x = numbers(rows, size, seed=index)
        parameters = (numbers(size, seed=7), numbers(size, seed=8)) if weighted else (None, None)
        y, mean, rstd = results = unwritten((rows, size), (rows,), (rows,))
        function, threads = library.abele_layer_norm, threads_of(index)
        call(function, int(weighted), rows, size, _EPS, x, *parameters, y, mean, rstd, threads)
        scale, shift = (None if each is None else each.double() for each in parameters)
        exact = functional.layer_norm(x.double(), (size,), scale, shift, _EPS)
        yield Case({"rows": rows, "size": size}, results, [exact, *_statistics(x, (1,))])


def _layer_norm_gradients(
    rows: int, size: int, *, weighted: bool = True
) -> tuple[list[Tensor | None], list[Tensor]]:
    """Return gradient, x, mean, rstd and weight; exact gradients of x, weight and bias."""
    x, grad, weight = numbers(rows, size), numbers(rows, size, seed=1), numbers(size, seed=2)
    weight = weight if weighted else torch.ones_like(weight)
    leaves = double(x, weight, torch.zeros_like(weight))
    y = functional.layer_norm(leaves[0], (size,), leaves[1], leaves[2], _EPS)
    exact = gradients(y, leaves, grad.double())
    mean, rstd = _statistics(x, (1,))
    return [grad, x, mean.float(), rstd.float(), weight if weighted else None], exact


def _layer_norms_backward(library: ctypes.CDLL) -> Iterator[Case]:
    for index, size in enumerate(TAILS):
        rows, function, weighted = 1 + index % 5, library.abele_layer_norm_backward, index % 3 != 0
        given, exact = _layer_norm_gradients(rows, size, weighted=weighted)
        result = unwritten((rows, size))
        call(function, int(weighted), rows, size, *given, *result, threads_of(index))
        yield Case({"rows": rows, "size": size}, result, exact[:1])


def _layer_norm_weights(library: ctypes.CDLL) -> Iterator[Case]:
    for index, size in enumerate(TAILS):
        rows = 1 + 7 * index % 40
        given, exact = _layer_norm_gradients(rows, size)
        results = unwritten((size,), (size,))
        threads = threads_of(index)
        call(library.abele_layer_norm_weights, rows, size, *given[:-1], *results, threads)
        yield Case({"rows": rows, "size": size}, results, exact[1:])


def _groups(library: ctypes.CDLL, *, backward: bool) -> Iterator[Case]:
    for index, pixels in enumerate(TAILS):
        samples, groups, masked = 1 + index % 3, 1 + index % 2, index % 3 == 0
        threads = threads_of(index)
        sizes = samples, 2 * groups, pixels, groups
        of_call = named(("samples", "channels", "pixels", "groups"), sizes)
        x, grad = numbers(*sizes[:3]).relu(), numbers(*sizes[:3], seed=1)
        weight, bias = numbers(sizes[1], seed=2), numbers(sizes[1], seed=3)
        leaves = double(x, weight, bias)
        y = functional.group_norm(leaves[0], groups, leaves[1], leaves[2], _EPS)
        mean, rstd = _statistics(x.view(samples * groups, -1), (1,))
        if not backward:
            results = unwritten(x.shape, mean.shape, rstd.shape)
            call(library.abele_group_norm, *sizes, _EPS, x, weight, bias, *results, threads)
            yield Case(of_call, results, [y, mean, rstd])
            continue
        of_x = gradients(y, leaves[0], grad.double())[0]
        normalised = functional.group_norm(x.double(), groups, eps=_EPS)
        sums = torch.stack([grad.double().sum(2), (grad * normalised).sum(2)], 2)
        results = unwritten(x.shape, (*sizes[:2], 2))
        given = grad, x, mean.float(), rstd.float(), weight
        call(library.abele_group_norm_backward, int(masked), *sizes, *given, *results, threads)
        yield Case(of_call, results, [of_x * (x > 0) if masked else of_x, sums])


def _planes() -> Iterator[tuple[int, int, int]]:
    """Yield sizes of batch norms: samples, channels and pixels."""
    for index, size in enumerate(TAILS):
        yield 2 + index % 5, size, 1
        yield 2 + index % 2, 1 + index % 3, size


def _batch_statistics(library: ctypes.CDLL) -> Iterator[Case]:
    for sizes in _planes():
        channels, x = sizes[1], numbers(*sizes) + 3
        old = numbers(channels, seed=1), numbers(channels, seed=2).abs()
        mean, rstd = _statistics(x, (0, 2))
        news = [each.double() for each in old]
        functional.batch_norm(x.double(), *news, training=True, momentum=_MOMENTUM, eps=_EPS)
        results, part = unwritten(*[(channels,)] * 4), slice(channels // 4, channels)
        given = *sizes, _EPS, _MOMENTUM, x, *old, *results
        call(library.abele_channel_statistics, part.start, part.stop, *given)
        of_call = named(("samples", "channels", "pixels"), sizes)
        exact = [mean, rstd, *news]
        yield Case(of_call, [each[part] for each in results], [each[part] for each in exact])


def _batch_gradients(library: ctypes.CDLL) -> Iterator[Case]:
    for sizes in _planes():
        samples, channels, pixels = sizes
        # Samples of the gradient may be stored with gaps.
        grad = numbers(samples, channels + (3 if pixels > 1 else 0), pixels, seed=1)
        x, (mean, rstd) = numbers(*sizes), _statistics(numbers(*sizes), (0, 2))
        normalised = (x - mean[:, None]) * rstd[:, None]
        given = grad, x, mean.float(), rstd.float()
        results, part = unwritten((channels,), (channels,)), slice(channels // 4, channels)
        function, stride = library.abele_channel_gradients, grad.stride(0)
        call(function, part.start, part.stop, *sizes, stride, *given, *results)
        wide = grad[:, :channels].double()
        exact = (wide * normalised).sum((0, 2)), wide.sum((0, 2))
        of_call = named(("samples", "channels", "pixels"), sizes)
        yield Case(of_call, [each[part] for each in results], [each[part] for each in exact])


def _around() -> Iterator[tuple[int, int, int]]:
    """Yield sizes (outer, size, inner) of reductions along rows and along columns."""
    for index, size in enumerate(TAILS):
        yield 1 + index % 3, size, 1
        yield 1 + index % 2, 1 + index % 7, size


def _softmax(library: ctypes.CDLL) -> Iterator[Case]:
    for index, sizes in enumerate(_around()):
        kind, x, result = index // 2 % 3, numbers(*sizes) * 3, unwritten(sizes)
        x[0, :, 0] = -math.inf if kind == 2 else x[0, :, 0]
        call(library.abele_softmax, kind, *sizes, x, *result, threads_of(index))
        exact = (functional.log_softmax if kind == 1 else functional.softmax)(x.double(), 1)
        exact = exact.nan_to_num() if kind == 2 else exact
        yield Case(named(("outer", "size", "inner"), sizes), result, [exact])


def _softmax_backward(library: ctypes.CDLL) -> Iterator[Case]:
    for index, sizes in enumerate(_around()):
        log, grad, result = index // 2 % 2, numbers(*sizes, seed=1), unwritten(sizes)
        (x,) = double(numbers(*sizes))
        y = (functional.log_softmax if log else functional.softmax)(x, 1)
        exact = gradients(y, x, grad.double())
        given = grad, y.detach().float()
        call(library.abele_softmax_backward, log, *sizes, *given, *result, threads_of(index))
        yield Case(named(("outer", "size", "inner"), sizes), result, exact)


def _labels(library: ctypes.CDLL) -> Iterator[Case]:
    reductions = "none", "mean", "sum"
    for index, (outer, size, inner) in enumerate(_around()):
        kind, ignored = index % 3, -100
        (x,), target = double(numbers(outer, size, inner)), integers(size, outer, inner)
        if target.numel() > 1:
            target.view(-1)[0] = ignored
        weights = numbers(size, seed=2).abs() + 0.5 if index % 4 else numbers(size) * 0 + 1
        how: dict[str, Any] = {"ignore_index": ignored, "reduction": reductions[kind]}
        loss = functional.nll_loss(x, target, weights.double(), **how)
        grad, result = numbers(*loss.shape, seed=1), unwritten((outer, size, inner))
        total = weights[target[target >= 0]].sum()
        given = grad, target, weights if index % 4 else None, total, *result, threads_of(index)
        call(library.abele_nll_loss_backward, kind, outer, size, inner, ignored, *given)
        exact = gradients(loss, x, grad.double())
        yield Case({"outer": outer, "size": size, "inner": inner}, result, exact)


def _sums(library: ctypes.CDLL, *, columns: bool) -> Iterator[Case]:
    one, scale = Dim(1, 0, 0), 0.5
    for index, size in enumerate((*TAILS, 1000)):
        outer, rows, width = 1 + index % 3, 1 + 5 * index % 40, size
        split, norm, x = index % 2, index // 2 % 2, numbers(outer, rows, width)
        terms = x.double().square() if norm else x.double()
        if columns:
            dims = Dim(outer, rows * width, width), Dim(width, 1, 1), one, Dim(rows, width, 0)
            result, exact = unwritten((outer, width)), terms.sum(1)
            function = library.abele_sum_columns
        else:
            dims = one, Dim(outer, rows * width, 1), Dim(rows, width, 0), Dim(width, 1, 0)
            result, exact = unwritten((outer,)), terms.sum((1, 2))
            function = library.abele_sum_rows
        call(function, split, norm, *dims, scale, x, *result, threads_of(index))
        exact = scale * (exact.sqrt() if norm else exact)
        yield Case({"outer": outer, "rows": rows, "columns": width}, result, [exact])


def _embeddings(library: ctypes.CDLL) -> Iterator[Case]:
    for index, width in enumerate(TAILS):
        count, size = 1 + 3 * index % 50, 9
        grad, rows, padding = numbers(count, width), integers(size, count), index % (size + 1) - 1
        result = unwritten((size, width))
        given = count, width, size, padding, grad, rows, *result, threads_of(index)
        call(library.abele_embedding_backward, *given)
        exact = torch.zeros(size, width, dtype=torch.float64, device="cpu")
        exact.index_add_(0, rows[rows != padding], grad[rows != padding].double())
        yield Case({"count": count, "width": width}, result, [exact])


def _mixed(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _ALL
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _ALL
    return x ^ x >> 31


def _checksum_of_part(content: bytes, seed: int) -> int:
    keys, sums = [_mixed(seed + _ODD * i & _ALL) for i in range(_LANES)], [0] * _LANES
    for index, (word,) in enumerate(struct.iter_unpack("<Q", content)):
        turn, lane = divmod(index, _LANES)
        keyed = word ^ (keys[lane] + turn * _ODD & _ALL)
        sums[lane] += (keyed & _HALF) * (keyed >> 32) + (word >> 32) + ((word & _HALF) << 32)
    return functools.reduce(lambda sum, each: _mixed(sum + _ODD + each & _ALL), sums, seed)


def _checksums(library: ctypes.CDLL) -> Iterator[Case]:
    for index, size in enumerate(TAILS):
        sizes = (size, 0, 4 * size + index % 5, *([65536 + 517] if index == 5 else []))
        pieces = [
            integers(256, size, seed=index).to(torch.uint8).numpy().tobytes() for size in sizes
        ]
        parts = [p[at : at + 65536] for p in pieces for at in range(0, len(p), 65536)]
        padded = [part + bytes(-len(part) % (8 * _LANES)) for part in parts]
        exact = sum(_checksum_of_part(part, seed) for seed, part in enumerate(padded)) & _ALL
        result, count = ctypes.c_uint64(), len(sizes)
        memory = (ctypes.c_char_p * count)(*pieces)
        given = memory, (ctypes.c_int64 * count)(*sizes), count, ctypes.byref(result)
        call(library.abele_checksum, *given, threads_of(index))
        found, wanted = ([n >> 16 * i & 0xFFFF for i in range(4)] for n in (result.value, exact))
        narrow = torch.tensor(found, dtype=torch.float32, device="cpu")
        wide = torch.tensor(wanted, dtype=torch.float64, device="cpu")
        yield Case({"bytes": sizes}, [narrow], [wide])


CHECKSUMS: dict[str, Table] = {"abele_checksum": _checksums}
TABLES: dict[str, Table] = {
    "abele_layer_norm": _layer_norms,
    "abele_layer_norm_backward": _layer_norms_backward,
    "abele_layer_norm_weights": _layer_norm_weights,
    **both("abele_group_norm", _groups),
    "abele_channel_statistics": _batch_statistics,
    "abele_channel_gradients": _batch_gradients,
    "abele_softmax": _softmax,
    "abele_softmax_backward": _softmax_backward,
    "abele_nll_loss_backward": _labels,
    "abele_sum_columns": functools.partial(_sums, columns=True),
    "abele_sum_rows": functools.partial(_sums, columns=False),
    "abele_embedding_backward": _embeddings,
}
