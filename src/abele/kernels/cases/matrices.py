"""Self-test cases of GEMMs, recurrent layers, attention and optimizers' updates."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from abele.kernels.binding import (
    Adam,
    AdamTensor,
    Attention,
    Product,
    Recurrent,
    Rows,
    Sgd,
    SgdTensor,
    Steps,
)
from abele.kernels.cases.case import (
    TAILS,
    Case,
    Table,
    Tensor,
    call,
    double,
    gradients,
    nearly,
    numbers,
    threads_of,
    unwritten,
)
from abele.ops import recurrent_loop
from abele.ops.recurrent_cells import CELLS

_PACKED_COLUMNS = 64
# By ABELE_FLOAT32 and so on.
_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_BFLOAT16 = 2
# Beside rows, columns and inner dimensions of each remainder: several blocks of each, few rows of a
# long inner dimension, sums of 192 and of 1,024.
_LARGE = ((300, 33, 20), (17, 600, 385), (13, 31, 193), (30, 9, 257), (7, 5, 1035), (1, 3, 1024))

# Of bfloat16 numbers that are multiplied in pairs.
_OF_PAIRS = ((16, 16, 16), (33, 47, 30), (150, 70, 402), (20, 530, 1030))


def _sizes() -> Iterator[tuple[int, int, int]]:
    """Yield sizes of GEMMs: rows, columns and inner dimension."""
    for index in range(1, 66):
        yield 1 + 7 * index % 31, index, 1 + 5 * index % 37
    yield from _LARGE


def _factors(rows: int, columns: int, inner: int, turned: int) -> tuple[Tensor, Tensor]:
    """Return two GEMM operands with padded rows; bits of ``turned`` select transposed operands."""
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
    """Pack a matrix with ``abele_product_pack``."""
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
    yield from _of_16_bits(library)


def _sizes_of_16_bits() -> Iterator[tuple[tuple[int, int, int], tuple[int, int, int], int]]:
    """Yield sizes, types of factors and result, and which operands are transposed."""
    for index, sizes in enumerate(_sizes()):
        yield sizes, (1 + index % 2, 1 + index // 2 % 2, index % 3), index % 4
    for turned in range(4):
        for sizes in _OF_PAIRS:
            yield sizes, (_BFLOAT16, _BFLOAT16, 2 * (turned % 2)), turned


def _of_16_bits(library: ctypes.CDLL) -> Iterator[Case]:
    """Test GEMMs of 16-bit factors: with float32 results, and with 16-bit ones."""
    for index, (sizes, kinds, turned) in enumerate(_sizes_of_16_bits()):
        rows, columns, _ = sizes
        a, b = _factors(*sizes, turned)
        a, b = (
            each.to(_TYPES[kind], memory_format=torch.preserve_format)
            for each, kind in zip((a, b), kinds[:2], strict=True)
        )
        described, exact = _described(a, b), a.double() @ b.double()
        described.a_type, described.b_type, described.c_type = kinds
        (result,) = unwritten((rows, columns))
        made = result if kinds[2] == 0 else result.to(_TYPES[kinds[2]])
        call(library.abele_product, described, a, b, made, threads_of(index))
        if kinds[2]:
            result = _where_near(made, exact)
        yield Case(_named(*sizes), [result], [exact])


def _of_bfloat16(library: ctypes.CDLL) -> Iterator[Case]:
    """Test products of bfloat16 matrices with a packed factor and a bias."""
    for index, (rows, columns, inner) in enumerate((*list(_sizes())[::2], *_OF_PAIRS)):
        sizes = rows, columns, inner + inner % 2
        a, bias = numbers(rows, sizes[2]).bfloat16(), numbers(columns, seed=2)
        b = numbers(*sizes[1:][:: 1 - index % 2 * 2], seed=1).bfloat16()
        b = b if index % 2 else b.T
        (pairs,) = unwritten((sizes[2] // 2, -(-columns // _PACKED_COLUMNS) * _PACKED_COLUMNS))
        described, made = _described(a, b), unwritten((rows, columns))[0].bfloat16()
        call(library.abele_product_bfloat16_pack, described, b, pairs, threads_of(index))
        call(library.abele_product_bfloat16, described, a, pairs, bias, made, threads_of(index))
        exact = a.double() @ b.double() + bias.double()
        # Unwritten pairs are NaN, which equals nothing; what is written shows in the product.
        yield Case(_named(*sizes), [_where_near(made, exact), pairs], [exact, pairs.double()])


def _where_near(result: Tensor, exact: Tensor) -> Tensor:
    """Return exact numbers where a 16-bit result is as near as its type allows."""
    allowed = exact.abs() * torch.finfo(result.dtype).eps + 1e-4  # what float32 sums lose
    return torch.where((result - exact).abs() <= allowed, exact.float(), result.float())


def _several(library: ctypes.CDLL) -> Iterator[Case]:
    """Test batched GEMMs: with a result per GEMM, and with the sum of all."""
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


def _clamped(library: ctypes.CDLL) -> Iterator[Case]:
    for index, sizes in enumerate((*_sizes(), (150, 520, 70), (9, 70, 400))):
        rows, columns, inner = sizes
        a, b = _factors(*sizes, 2 * (index % 2))
        bias, added = numbers(columns, seed=2), numbers(rows, columns, seed=3)
        ready, (result,) = packed(library, b), unwritten((rows, columns))
        low, high, exact = -0.5 * inner**0.5, inner**0.5, a.double() @ b.double() + bias
        if index % 2:
            result.copy_(added)
            exact += added.double()
        given = _described(a, b, packed=1), a, ready, bias, result if index % 2 else None
        threads = threads_of(index)
        call(library.abele_product_clamped, *given, low, high, result, threads)
        yield Case(_named(*sizes), [result], [exact.clamp(low, high)])


def _taking(result: Tensor, step: int) -> Any:
    """Return a callback that copies rows, with a stride of ``step`` elements, into a result."""
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


# -- recurrent layers -----------------------------------------------------------------------------


class _Layer(NamedTuple):
    """A recurrent layer with small random numbers, for self-tests."""

    kind: str
    named: dict[str, int]
    inputs: Tensor
    weight: Tensor
    bias: Tensor | None
    state: list[Tensor | None]
    reverse: bool
    kept: bool
    threads: int

    def described(self) -> ctypes.Structure:
        """Return the C structure of the layer."""
        return Recurrent(CELLS[self.kind].index, *self.named.values(), self.reverse, self.kept)

    def exact(self) -> dict[str, Tensor]:
        """Return the results of all time steps in float64, by name."""
        given = _wide(self.inputs, self.weight, self.bias, *self.state)
        made = recurrent_loop.forward(self.kind, *given, self.reverse, self.kept)
        return dict(zip(recurrent_loop.results(self.kind), made, strict=True))


def _wide(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if each is None else each.double() for each in tensors]


def _layers(*, backward: bool) -> Iterator[_Layer]:
    for index, units in enumerate(TAILS[:-2]):
        steps, batch = 1 + index % 3, 1 + 5 * index % 9
        for kind in ("lstm", "gru", "rnn_relu" if index // 2 % 2 else "rnn_tanh"):
            width = CELLS[kind].gates * units
            yield _Layer(
                kind,
                {"steps": steps, "batch": batch, "units": units},
                numbers(steps, batch, width),
                numbers(width, units, seed=1) / math.sqrt(units),
                numbers(width, seed=2) if index % 4 else None,
                [numbers(batch, units, seed=3), _of_lstm(kind, batch, units, seed=4)],
                bool(index % 2),
                backward or index % 4 != 1,
                threads_of(index),
            )


def _of_lstm(kind: str, *shape: int, seed: int) -> Tensor | None:
    return numbers(*shape, seed=seed) if kind == "lstm" else None


def _written(exact: dict[str, Tensor], *names: str) -> list[Tensor | None]:
    """Allocate result tensors by name; None for a result that a kind of layer does not have."""
    return [unwritten(exact[name].shape)[0] if name in exact else None for name in names]


def _case(layer: _Layer, results: list[Tensor | None], exact: dict[str, Tensor]) -> Case:
    return Case(layer.named, [each for each in results if each is not None], [*exact.values()])


def _recurrent(library: ctypes.CDLL) -> Iterator[Case]:
    for layer in _layers(backward=False):
        exact = layer.exact()
        results = _written(exact, "states", "cells", "gates")
        given = layer.inputs, packed(library, layer.weight.T), layer.bias, *layer.state
        call(library.abele_recurrent, layer.described(), *given, *results, layer.threads)
        if not layer.kept and "gates" in exact:  # the gates of any step
            exact.pop("gates")
            results[2] = None
        yield _case(layer, results, exact)


def _recurrent_backward(library: ctypes.CDLL) -> Iterator[Case]:
    for layer in _layers(backward=True):
        forward, state = layer.exact(), layer.state[0]
        assert state is not None
        known: list[Any] = [forward.get(name) for name in ("states", "cells", "gates")]
        of_c = _of_lstm(layer.kind, *state.shape, seed=7)
        steps = layer.named["steps"]
        grads = numbers(steps, *state.shape, seed=5), numbers(*state.shape, seed=6), of_c
        given = *_wide(*grads, layer.weight), *known, layer.reverse
        made = recurrent_loop.backward(layer.kind, *given)
        exact = dict(zip(recurrent_loop.gradients(layer.kind), made, strict=True))
        results = _written(exact, "inputs", "products", "h", "c")
        read = (None if each is None else each.float() for each in known)
        before = *grads, packed(library, layer.weight), *read
        described = layer.described()
        call(library.abele_recurrent_backward, described, *before, *results, layer.threads)
        yield _case(layer, results, exact)


# -- attention ------------------------------------------------------------------------------------

_SAMPLES, _HEADS = 2, 2


def _heads() -> Iterator[tuple[int, int, int, int, bool]]:
    """Yield sizes of attention: queries, keys, depth, depth of values and causal masking."""
    for index in range(1, 34):
        yield 1 + 11 * index % 40, 1 + 7 * index % 40, index, 1 + 5 * index % 33, index % 2 == 0
    yield from ((64, 64, 32, 32, True), (70, 200, 16, 48, False), (150, 130, 24, 40, True))


class _Heads:
    """Random operands of an attention and its exact result; in bfloat16, depths are made even."""

    def __init__(self, sizes: tuple[int, int, int, int, bool], kind: int):
        queries, keys, depth, value_depth, causal = sizes
        if kind:
            depth, value_depth = depth + depth % 2, value_depth + value_depth % 2
        scale = 1 / math.sqrt(depth)
        self.described = Attention(
            _SAMPLES, _HEADS, queries, keys, depth, value_depth, int(causal), scale, kind
        )
        self.named = {
            **{"queries": queries, "keys": keys, "depth": depth},
            **{"value_depth": value_depth, "causal": int(causal)},
        }
        shapes = (queries, depth), (keys, depth), (keys, value_depth), (queries, value_depth)
        self.q, self.k, self.v, self.grad = (
            numbers(_SAMPLES, _HEADS, *each, seed=seed).to(_TYPES[kind])
            for seed, each in enumerate(shapes)
        )
        self.leaves = double(self.q, self.k, self.v)
        q, k, v = self.leaves
        scores = scale * q @ k.mT
        if causal:
            hidden = torch.ones(queries, keys, dtype=torch.bool, device="cpu").triu(1)
            scores = scores.masked_fill(hidden, -math.inf)
        self.y, self.logarithms = scores.softmax(-1) @ v, scores.logsumexp(-1)


def _kinds_of_heads() -> Iterator[_Heads]:
    """Yield attentions of all sizes in float32, and of some in bfloat16."""
    for index, sizes in enumerate(_heads()):
        yield _Heads(sizes, 0)
        if index % 4 == 3 or index > 32:
            yield _Heads(sizes, _BFLOAT16)


def _strides(*tensors: Tensor) -> ctypes.Array[Any]:
    return (Steps * len(tensors))(*(each.stride()[:3] for each in tensors))


def _attention(library: ctypes.CDLL) -> Iterator[Case]:
    for index, heads in enumerate(_kinds_of_heads()):
        q, k, v = heads.q, heads.k, heads.v
        y, logarithms = unwritten(heads.y.shape, heads.logarithms.shape)
        y = y if q.dtype is torch.float32 else y.to(q.dtype)
        given = heads.described, _strides(q, k, v, y), q, k, v, y, logarithms
        call(library.abele_attention, *given, threads_of(index))
        exact = heads.y.detach()
        results = [nearly(y, exact), logarithms]
        yield Case(heads.named, results, [exact, heads.logarithms.detach()])


def _attention_backward(library: ctypes.CDLL) -> Iterator[Case]:
    for index, heads in enumerate(_kinds_of_heads()):
        kind = heads.q.dtype
        exact = gradients(heads.y, heads.leaves, heads.grad.double())
        results = unwritten(*(each.shape for each in exact))
        results = results if kind is torch.float32 else [each.to(kind) for each in results]
        y, logarithms = heads.y.detach().to(kind), heads.logarithms.detach().float()
        given = heads.grad, heads.q, heads.k, heads.v, y
        function, threads = library.abele_attention_backward, threads_of(index)
        call(
            function,
            heads.described,
            _strides(*given, *results),
            *given,
            logarithms,
            *results,
            threads,
        )
        yield Case(heads.named, list(map(nearly, results, exact)), exact)


# -- updates --------------------------------------------------------------------------------------

# The last is more than one piece that a thread takes.
_SIZES = (*TAILS, 16_400)


def _tensors(index: int, count: int) -> list[list[Tensor]]:
    """Return ``count`` optimizer tensors of each of two parameters."""
    sizes = enumerate((_SIZES[index], 5))
    return [[numbers(size, seed=10 * at + kind) for kind in range(count)] for at, size in sizes]


def _adam(library: ctypes.CDLL) -> Iterator[Case]:
    rate, beta1, beta2, eps = 0.125, 0.5, 0.75, 0.25  # exact in float32
    for index, size in enumerate(_SIZES):
        decay, scale, kind = 0.5 * (index % 2), 2.0 ** (index % 3), index % len(_TYPES)
        dtype = _TYPES[kind]
        each = [(p.to(dtype), m, v.abs_(), g.to(dtype)) for p, m, v, g in _tensors(index, 4)]
        steps = [torch.tensor(float(at), dtype=torch.float64, device="cpu") for at in (index, 0)]
        exact = list[Tensor]()
        for tensors, step in zip(each, steps, strict=True):
            param, first, second, grad = (tensor.double() for tensor in tensors)
            grad, count = grad / scale, step.item() + 1
            m = first + (1 - beta1) * (grad - first)
            v = beta2 * second + (1 - beta2) * grad * grad
            root = (v / (1 - beta2**count)).sqrt()
            moved = rate / (1 - beta1**count) * m / (root + eps)
            exact += [param * (1 - rate * decay) - moved, m, v]
        described = ((*t, s) for t, s in zip(each, steps, strict=True))
        rows = (AdamTensor * 2)(*((t[0].numel(), *(x.data_ptr() for x in t)) for t in described))
        settings = Adam(beta1, beta2, eps, decay, scale, kind, kind)
        call(library.abele_adam, settings, rows, 2, rate, threads_of(index))
        results = [tensor for tensors in each for tensor in tensors[:3]]
        for at in (0, 3):  # what is rounded to 16 bits is as near as its type allows
            near = (results[at] - exact[at]).abs() <= exact[at].abs() * torch.finfo(dtype).eps
            results[at] = torch.where(near, exact[at].float(), results[at].float())
        exact += [torch.full((), at + 1.0, device="cpu") for at in (index, 0)]
        yield Case({"size": size}, [*results, *steps], exact)


def _sgd(library: ctypes.CDLL) -> Iterator[Case]:
    rate, momentum, rest = 0.125, 0.75, 0.5
    for index, size in enumerate(_SIZES):
        decay, nesterov = 0.25 * (index % 2), index // 2 % 2
        each = _tensors(index, 3)
        exact = list[Tensor]()
        for tensors in each:
            param, velocity, grad = (tensor.double() for tensor in tensors)
            g = grad + decay * param
            v = momentum * velocity + rest * g
            exact += [param - rate * (g + momentum * v if nesterov else v), v]
        rows = (SgdTensor * 2)(*((t[0].numel(), *(x.data_ptr() for x in t)) for t in each))
        settings = Sgd(rate, momentum, rest, decay, float(nesterov))
        call(library.abele_sgd, settings, rows, 2, threads_of(index))
        yield Case({"size": size}, [t for tensors in each for t in tensors[:2]], exact)


TABLES: dict[str, dict[str, Table]] = {
    "products": {
        "abele_product": _products,
        "abele_product_by_rows": _by_rows,
        "abele_product_clamped": _clamped,
        "abele_product_pack": _packing,
    },
    "bfloat16_products": {f"abele_product_bfloat16{end}": _of_bfloat16 for end in ("", "_pack")},
    "recurrent": {"abele_recurrent": _recurrent, "abele_recurrent_backward": _recurrent_backward},
    "attention": {
        "abele_attention": _attention,
        "abele_attention_backward": _attention_backward,
    },
    "adam": {"abele_adam": _adam},
    "sgd": {"abele_sgd": _sgd},
}
