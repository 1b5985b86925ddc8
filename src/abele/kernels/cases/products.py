"""Tables of products of matrices."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import torch

from abele.kernels.binding import Product, Rows
from abele.kernels.cases.case import (
    Case,
    Table,
    Tensor,
    call,
    numbers,
    threads_of,
    unwritten,
)

_PACKED_COLUMNS = 64
# Beside rows, columns and inner dimensions of each remainder: several blocks of each, few rows of a
# long inner dimension, sums of 192 and of 1,024.
_LARGE = ((300, 33, 20), (17, 600, 385), (13, 31, 193), (30, 9, 257), (7, 5, 1035), (1, 3, 1024))


def _sizes() -> Iterator[tuple[int, int, int]]:
    """Yield rows, columns and inner dimension."""
    for index in range(1, 66):
        yield 1 + 7 * index % 31, index, 1 + 5 * index % 37
    yield from _LARGE


def _factors(rows: int, columns: int, inner: int, turned: int) -> tuple[Tensor, Tensor]:
    """Return two factors of which each, both or none are transposed; rows lie apart."""
    a = numbers(inner, rows + 1).T[:rows] if turned % 2 else numbers(rows, inner + 1)[:, :inner]
    if turned // 2:
        return a, numbers(columns, inner + 1, seed=1).T[:inner]
    return a, numbers(inner, columns + 1, seed=1)[:, :columns]


def _described(a: Tensor, b: Tensor, *, packed: int = 0, c_row: int = 0) -> ctypes.Structure:
    (rows, inner), columns = a.shape, b.shape[1]
    steps = 0, *a.stride(), 0, *b.stride(), 0, c_row or columns
    return Product(1, rows, columns, inner, *steps, packed, 0, 0)


def _named(rows: int, columns: int, inner: int) -> dict[str, int]:
    return {"rows": rows, "columns": columns, "inner": inner}


def packed(library: ctypes.CDLL, b: Tensor, threads: int = 1) -> Tensor:
    """Return a matrix as ``abele_product_pack`` packs it."""
    inner, columns = b.shape
    (result,) = unwritten((inner, -(-columns // _PACKED_COLUMNS) * _PACKED_COLUMNS))
    described = Product(1, 1, columns, inner, 0, 0, 1, 0, *b.stride(), 0, columns, 0, 0, 0)
    call(library.abele_product_pack, described, b, result, threads)
    return result


def _products(library: ctypes.CDLL) -> Iterator[Case]:
    for index, sizes in enumerate(_sizes()):
        rows, columns, inner = sizes
        for turned in range(4):
            a, b = _factors(*sizes, turned)
            described, result = _described(a, b), unwritten((rows, columns))
            exact = a.double() @ b.double()
            if turned == 0 and inner > 1:
                described.halves = index % 2
            if turned == 2 and index % 2:
                described.added = 1
                result = [numbers(rows, columns, seed=2)]
                exact += result[0]
            call(library.abele_product, described, a, b, *result, threads_of(4 * index + turned))
            yield Case(_named(*sizes), result, [exact])
    yield from _several(library)


def _several(library: ctypes.CDLL) -> Iterator[Case]:
    """Test batches of products: one result for each, and their sum."""
    for index, (count, rows, columns, inner) in enumerate(((3, 9, 21, 33), (5, 14, 40, 65))):
        a, b = numbers(count, rows, inner), numbers(count, inner, columns, seed=1)
        apart = rows * columns
        named = {"count": count, **_named(rows, columns, inner)}
        for next_c in (apart, 0):
            steps = *a.stride(), *b.stride(), next_c, columns
            described = Product(count, rows, columns, inner, *steps, 0, 0, 0)
            exact = a.double() @ b.double()
            result = unwritten((count, rows, columns) if next_c else (rows, columns))
            call(library.abele_product, described, a, b, *result, threads_of(13 * index))
            yield Case(named, result, [exact if next_c else exact.sum(0)])


def _packing(library: ctypes.CDLL) -> Iterator[Case]:
    for index, sizes in enumerate(_sizes()):
        rows, columns, _ = sizes
        a, b = _factors(*sizes, 2 * (index % 2))
        ready, result = packed(library, b, threads_of(index)), unwritten((rows, columns))
        call(library.abele_product, _described(a, b, packed=1), a, ready, *result, 1)
        yield Case(_named(*sizes), result, [a.double() @ b.double()])


def _taking(result: Tensor, step: int) -> Any:
    """Return a callback that copies rows, ``step`` elements apart, to where they belong."""
    columns = result.shape[1]

    def take(_: Any, address: int, begin: int, count: int) -> None:
        block = (ctypes.c_float * (count * step - step + columns)).from_address(address)
        values = torch.frombuffer(block, dtype=torch.float32)
        result[begin : begin + count] = values.as_strided((count, columns), (step, 1))

    return Rows(take)


def _by_rows(library: ctypes.CDLL) -> Iterator[Case]:
    for index, sizes in enumerate(_sizes()):
        rows, columns, _ = sizes
        a, b = _factors(*sizes, index % 4)
        step = columns + index % 2 * 16
        (result,) = unwritten((rows, columns))

        described = _described(a, b, c_row=step)
        given = described, a, b, _taking(result, step), None, threads_of(index)
        call(library.abele_product_by_rows, *given)
        yield Case(_named(*sizes), [result], [a.double() @ b.double()])


TABLES: dict[str, Table] = {
    "abele_product": _products,
    "abele_product_by_rows": _by_rows,
    "abele_product_pack": _packing,
}
