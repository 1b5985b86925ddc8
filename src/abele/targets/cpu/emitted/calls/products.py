"""Calls of the GEMM kernel in generated C++."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele.kernels.binding import TYPES
from abele.targets.cpu.emitted.calls.sixteen_bits import RoundingCall
from abele.targets.translation.operations import Call, StridedCall
from abele.targets.translation.places import Place
from abele.targets.translation.pointwise import HALF

# Below, the library's kernels for such matrices are faster.
_LEAST_ROWS = _LEAST_COLUMNS = 8
_LEAST_WORK = 4096

# A thread is worth waking for half as much as in a convolution, whose threads wait for each other.
_WORK_PER_ADD = 2
# Columns of packed factors are rounded up to this, see abi.h.
_PACKED_COLUMNS = 64

# A loop runs on rows of a result of so many elements while they are computed, if the right factor
# has no more than so many, and a row: both have to stay in the second-level cache.
_LEAST_BY_ROWS, _LARGEST_KEPT, _MOST_COLUMNS = 1 << 19, 1 << 18, 1 << 13
# A smaller one, of at least so many, gains because a thread updates rows that it alone multiplies
# with; not with a longer inner dimension, where each thread would pack too much.
_LEAST_OF_FEW, _FEW = 1 << 15, 64
# Two threads share the inner dimension of few rows with a right factor of so many elements: each
# reads the rows of it that it reads in forward and writes in the update.
_ROWS_TO_INNER, _NEAR_FACTOR = 4, 1 << 18

# A factor of 16 bits with so many elements is for our kernel, also where the library's is faster:
# the library would need a float32 copy.
_LEAST_NARROW = 1 << 12
_INFINITY = "std::numeric_limits<double>::infinity()"

# Steps of a matrix, from row to row and from column to column, as text.
Steps = str


@dataclasses.dataclass(eq=False, kw_only=True)
class Product(RoundingCall):
    """A call of the GEMM kernel: ``writes[0] = reads[0] @ reads[1]``; factors may have 16 bits.

    Attributes:
        count: batch size.
        sizes: rows, columns and inner dimension (m, n, k).
        steps: C++ strides of each factor: batch, row and column.
        halves: two threads share the inner dimension.
        packed: the right factor is packed.
        summed: the result is the sum over the batch.
    """

    count: int
    sizes: tuple[int, int, int]
    steps: tuple[str, ...]
    halves: bool = False
    packed: bool = False
    summed: bool = False

    def described(self) -> str:
        """Return the GEMM's C++ descriptor ``AbeleProduct``, with braces escaped."""
        rows, columns, _ = self.sizes
        result = 0 if self.summed else rows * columns, self.writes[0].stride[-2]
        flags = int(self.packed), 0, int(self.halves)
        types = [TYPES[place.dtype] for place in (*self.reads, *self.writes)]
        numbers = (self.count, *self.sizes, *self.steps, *result, *flags, *types * any(types))
        return f"AbeleProduct{{{{{', '.join(map(str, numbers))}}}}}"

    def move(self, change: Callable[[Place], Place]) -> None:
        """Replace the tensors of a GEMM and update the strides in its C++ text."""
        factors, (result,) = self.reads, self.writes
        super().move(change)
        pairs = zip(factors, self.reads, self.steps, strict=True)
        self.steps = tuple(
            steps if old.stride == new.stride else f"0, {new.stride[0]}, {new.stride[1]}"
            for old, new, steps in pairs
        )
        if (*factors, result) != (*self.reads, *self.writes):
            self.text = _multiplied(self)

    def rounded(self, index: int, result: Place) -> None:
        """Write the result in 16 bits, by threads that share only rows and columns."""
        self.halves = False
        super().rounded(index, result)

    @property
    def adds(self) -> int:
        """Number of FMAs of the GEMM."""
        rows, columns, inner = self.sizes
        return self.count * rows * columns * inner

    @property
    def threads(self) -> str:
        """Number of useful threads for the GEMM, as C++."""
        return threads_for(self.adds)

    @property
    def is_faster_by_rows(self) -> bool:
        """True if fusing the loop that reads the GEMM's result is faster.

        Either the result exceeds the private caches and the right factor, which all rows need, does
        not; or there are few samples, and little is packed.
        """
        rows, columns, inner = self.sizes
        stored = self.writes[0].dtype is not torch.float32
        kept = self.keeps_factor and columns <= _MOST_COLUMNS and not stored
        least = _LEAST_OF_FEW if inner <= _FEW or self.packed else _LEAST_BY_ROWS
        return self.count == 1 and rows * columns >= least and kept

    @property
    def keeps_factor(self) -> bool:
        """True if the GEMM's right factor stays in the L2 cache of each thread."""
        _, columns, inner = self.sizes
        return inner * columns <= _LARGEST_KEPT


def threads_for(adds: int) -> str:
    """Return the number of useful threads for ``adds`` FMAs, as C++."""
    return f"abele_threads(0, {_WORK_PER_ADD * adds}, threads)"


def is_ours(dtype: torch.dtype, rows: int, columns: int, inner: int) -> bool:
    """Return whether the library kernel computes a GEMM, by dtype and sizes."""
    large = rows >= _LEAST_ROWS and columns >= _LEAST_COLUMNS
    return dtype is torch.float32 and large and rows * columns * inner >= _LEAST_WORK


def has_narrow_factor(*factors: Place) -> bool:
    """Return whether a factor has 16 bits and is too large for a float32 copy."""
    return max((each.size for each in factors if each.dtype in HALF), default=0) >= _LEAST_NARROW


def product(
    a: Place,
    b: Place,
    result: Place,
    count: int,
    steps: tuple[Steps, Steps],
    *,
    packed: bool = False,
    summed: bool = False,
) -> Product:
    """Return a call of the GEMM kernel, batched if ``count`` is more than one.

    Args:
        a: ``[rows, inner]``, with a batch dimension first if ``count`` is more than one.
        b: ``[inner, columns]``, likewise; with more columns if ``packed``.
        result: contiguous ``[rows, columns]``, likewise unless ``summed``.
        count: batch size.
        steps: C++ strides of ``a`` and ``b``: batch, row and column.
        packed: ``b`` is what ``packing`` writes; its first ``columns`` columns count.
        summed: the result is the sum over the batch.
    """
    (rows, inner), columns = a.shape[-2:], result.shape[-1]
    sizes = rows, columns, inner
    rounds = () if summed else (0,)

    def form(_: Sequence[Place], __: Sequence[Place]) -> str:
        return _multiplied(made)

    made = Product(
        [a, b],
        [result],
        "",
        form=form,
        rounds=rounds,
        count=count,
        sizes=sizes,
        steps=steps,
        packed=packed,
        summed=summed,
    )
    near = inner * columns <= _NEAR_FACTOR and _ROWS_TO_INNER * rows <= inner
    made.halves = near and count == 1 and b.stride[-1] == 1 and not packed
    made.text = _multiplied(made)
    return made


def _multiplied(made: Product) -> str:
    return f"status |= abele_product(&{made.described()}, {{0}}, {{1}}, {{2}}, {made.threads})"


def by_rows(made: Product, turns: int, loop: str) -> str:
    """Return the C++ call of a GEMM whose result rows go to a loop and are never stored.

    Args:
        made: the GEMM.
        turns: iterations of the loop per row.
        loop: C++ lambda of (result, begin, end) that runs iterations ``begin`` to ``end``.
    """
    return (
        f"status |= abele::multiply_by_rows<{turns}>({made.described()}, {{0}}, {{1}}, "
        f"{made.threads}, {loop})"
    )


def bounds(low: float | None = None, high: float | None = None) -> str:
    """Return two bounds of results as C++ arguments."""
    ends = (low, "-" + _INFINITY), (high, _INFINITY)
    return ", ".join(other if end is None else repr(float(end)) for end, other in ends)


UNBOUNDED = bounds()


@dataclasses.dataclass(eq=False)
class ClampedProduct(StridedCall):
    """A GEMM with a packed factor and a bias, whose results are kept between two bounds."""


def clamped(translator: Any, a: Place, factor: Place, added: Sequence[Place], within: str) -> Place:
    """Add the GEMM of a matrix and a constant one, plus a bias and maybe a matrix, in ``bounds``.

    Args:
        translator: of the program.
        a: ``[rows, inner]``; one of its strides is 1.
        factor: ``[inner, columns]``, likewise.
        added: ``[columns]``, and optionally ``[rows, columns]``, contiguous.
        within: bounds of the result.
    """
    (rows, inner), columns = a.shape, factor.shape[1]
    result = translator.new((rows, columns), a.dtype)
    more = "{3}" if len(added) > 1 else "nullptr"

    def form(reads: Sequence[Place], _: Sequence[Place]) -> str:
        steps = 0, *reads[0].stride, 0, 0, 0, 0, columns, 1, 0, 0
        described = ", ".join(map(str, (1, rows, columns, inner, *steps)))
        return (
            f"status |= abele_product_clamped(&AbeleProduct{{{{{described}}}}}, {{0}}, {{1}}, "
            f"{{2}}, {more}, {within}, {{{len(reads)}}}, {threads_for(rows * columns * inner)})"
        )

    reads = [a, packed_factor(translator, factor), *added]
    translator.add(ClampedProduct(reads, [result], form(reads, []), form))
    return result


def packed_factor(translator: Any, factor: Place) -> Place:
    """Pack the right factor of GEMMs.

    Args:
        translator: of the program.
        factor: ``[inner, columns]``; one of its strides is 1.
    """
    inner, columns = factor.shape
    shape = inner, -(-columns // _PACKED_COLUMNS) * _PACKED_COLUMNS
    packed = translator.new(shape, factor.dtype)
    steps = ", ".join(map(str, (0, *factor.stride)))
    described = f"AbeleProduct{{{{1, 1, {columns}, {inner}, 0, 0, 0, {steps}, 0, 0, 0, 0, 0}}}}"
    text = f"status |= abele_product_pack(&{described}, {{0}}, {{1}}, threads)"
    translator.add(Call([factor], [packed], text))
    return packed


def bfloat16_layer(translator: Any, a: Place, factor: Place, bias: Place | None) -> Place:
    """Add the GEMM of bfloat16 matrices of which the right one is constant, plus a bias.

    Args:
        translator: of the program.
        a: ``[rows, inner]``, the inner dimension being even.
        factor: ``[inner, columns]``.
        bias: ``[columns]``.
    """
    a, (inner, columns) = translator.contiguous(a), factor.shape
    if factor.stride[0] != 1 or factor.stride[1] % 2:
        factor = translator.contiguous(factor)
    shape = inner // 2, -(-columns // _PACKED_COLUMNS) * _PACKED_COLUMNS
    packed = translator.new(shape, torch.float32)
    result = translator.new((a.shape[0], columns), a.dtype)
    numbers = (1, a.shape[0], columns, inner, 0, inner, 1, 0, *factor.stride, 0, columns)
    described = f"&AbeleProduct{{{{{', '.join(map(str, numbers))}}}}}"
    text = f"status |= abele_product_bfloat16_pack({described}, {{0}}, {{1}}, threads)"
    translator.add(Call([factor], [packed], text))
    added = translator.new((columns,), torch.float32)
    translator.pointwise([0.0 if bias is None else bias], "{0}".format, added)
    text = (
        f"status |= abele_product_bfloat16({described}, {{0}}, {{1}}, {{2}}, {{3}}, "
        f"{threads_for(result.size * inner)})"
    )
    translator.add(Call([a, packed, added], [result], text))
    return result
