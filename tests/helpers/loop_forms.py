"""Programs for all forms of loops that emitted code has, for rows of a given length.

Compilers treat a short inner loop otherwise for each length: they unroll it, make one or several
vectors of it, or leave a remainder.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from helpers.emitted_operators import program_of
from helpers.emitted_programs import Case

aten = torch.ops.aten

_ROWS = 16  # more than a vector has elements, so that loops over rows become vectors, too
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
Form = tuple[str, Callable[..., Any], tuple[torch.Tensor, ...]]


def cases(length: int, every: int = 1) -> Iterator[Case]:
    """Trace all forms for rows of a length, most of them also with gradients.

    Args:
        length: of the rows, at least 1.
        every: trace one of so many forms, which are others for each length.
    """
    generator = torch.Generator().manual_seed(length)
    forms = (
        (form, gradients)
        for with_gradients, family in _FAMILIES
        for form in family(length, generator)
        for gradients in ((False, True) if with_gradients else (False,))
    )
    for (name, function, inputs), gradients in itertools.islice(forms, length % every, None, every):
        title = f"{name} of rows of {length}{' with gradients' if gradients else ''}"
        program = program_of(function, inputs, gradients=gradients)
        yield Case(title, program, list(inputs), magnifies=True)


def _numbers(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Multiples of 1/4 from -2 to 2: some equal the bounds that they are compared with."""
    return torch.randint(-8, 9, shape, generator=generator) / 4


def _selections(n: int, generator: torch.Generator) -> Iterator[Form]:
    """Choices between values, by comparisons of clamped values with their bounds."""
    x, g = _numbers(generator, _ROWS, n), _numbers(generator, _ROWS, n)
    row, column = _numbers(generator, n), _numbers(generator, _ROWS, 1)
    mask = x > 0.5
    for name, c in (("row", row), ("column", column), ("all", g), ("number", row[:1])):
        yield f"relu, {name}", lambda x, c, g: torch.where(F.relu(x - c) > 0, g, 0.0), (x, c, g)
        yield (
            f"relu backward, {name}",
            lambda x, c, g: aten.threshold_backward(g, F.relu(x * c + 0.25), 0),
            (x, c, g),
        )
        yield (
            f"clamp, {name}",
            lambda x, c, g: torch.where((x + c).clamp(-0.5, 0.5) < 0.5, g, x),
            (x, c, g),
        )
        yield f"maximum, {name}", lambda x, c, g: torch.where(x.maximum(c) == c, g, -x), (x, c, g)
        yield f"mask, {name}", lambda x, c, m: (x + c).masked_fill(m, 2.0), (x, c, mask)
        yield f"both, {name}", lambda x, c, m: (x > c) & m | (x == c), (x, c, mask)
    yield "mask of a row", lambda x, m: torch.where(m, x, -1.0), (x, row > 0)
    yield "mask of a column", lambda x, m: torch.where(m, x, -1.0), (x, column > 0)
    yield "hardtanh", lambda x, c, g: aten.hardtanh_backward(g, x + c, -0.5, 0.5), (x, row, g)
    yield (
        "transposed",
        lambda x, c, g: torch.where(F.relu(x.t() - c) > 0, g.t(), 0.0),
        (x, column.flatten(), g),
    )
    yield (
        "interleaved",
        lambda x, c, g: torch.stack([torch.where(F.relu(x - c) > 0, g, 0.0), x.clamp(min=0)], -1),
        (x, row, g),
    )
    yield (
        "every other",
        lambda x, c, g: torch.where(F.relu(x[::2] - c) > 0, g[1::2], 0.0),
        (x, row, g),
    )


def _types(n: int, generator: torch.Generator) -> Iterator[Form]:
    """Selections of types other than float."""
    x, g = torch.randint(0, 9, (2, _ROWS, n), generator=generator)
    row = torch.randint(0, 9, (n,), generator=generator)
    for dtype in _INTEGERS:
        given = (x.to(dtype), row.to(dtype), g.to(dtype))
        yield (
            f"bound, {dtype}",
            lambda x, c, g: torch.where(x.maximum(c).clamp(min=4) > 4, g, x),
            given,
        )
        yield f"sum, {dtype}", lambda x, c, g: (x + c * g).sum(0, dtype=torch.int64), given
        yield f"largest, {dtype}", lambda x, c, g: (x + c * g).amax(1), given
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        given = tuple(each.to(dtype) / 4 for each in (x, row, g))
        yield (
            f"relu, {dtype}",
            lambda x, c, g: torch.where(F.relu(x - c) > 0, g, 0.0),
            given,
        )
    bits = (x > 4, row > 4, g > 4)
    yield "bits", lambda x, c, g: torch.where(x ^ c, g, x & g), bits
    yield "any", lambda x, c, g: ((x & c).any(1), (g | c).all(0)), bits
    mixed = (x > 4, row.to(torch.int32), g.float())
    yield "mixed", lambda x, c, g: torch.where(x, g, c.float()) + c, mixed


def _activations(n: int, generator: torch.Generator) -> Iterator[Form]:
    """Functions with bounds of their own, of a sum with a row."""
    x, row = _numbers(generator, _ROWS, n), _numbers(generator, n)
    for function in (
        *(F.relu, F.relu6, F.leaky_relu, F.elu, F.celu, F.selu, F.softplus, F.hardsigmoid),
        *(F.hardswish, F.hardtanh, F.hardshrink, F.softshrink, F.gelu, F.silu, F.mish),
        *(F.logsigmoid, torch.sigmoid, torch.tanh, torch.exp, torch.abs, torch.sign),
    ):
        name = function.__name__
        yield name, lambda x, c, function=function: function(x + c), (x, row)


def _images(n: int, generator: torch.Generator) -> Iterator[Form]:
    """Three and four dimensions, with factors along each of them."""
    x, g = _numbers(generator, 4, n, 3), _numbers(generator, 4, n, 3)
    wide = _numbers(generator, 3, 5, n)
    for name, shape in (("first", (4, 1, 1)), ("middle", (n, 1)), ("last", (3,)), ("two", (n, 3))):
        c = _numbers(generator, *shape)
        yield name, lambda x, c, g: torch.where(F.relu(x - c) > 0, g, 0.0), (x, c, g)
    for name, shape in (("rows", (5, 1)), ("two rows", (5, n)), ("outer", (3, 1, n))):
        c = _numbers(generator, *shape)
        yield name, lambda x, c: torch.where((x * c).clamp(max=1) < 1, x, c), (wide, c)
    channels = _numbers(generator, 2, 6, n, 3).to(memory_format=torch.channels_last)
    c = _numbers(generator, 6, 1, 1)
    yield "channels last", lambda x, c: torch.where(F.relu(x - c) > 0, x, 0.0), (channels, c)


def _reductions(n: int, generator: torch.Generator) -> Iterator[Form]:
    """Sums and extremes along each side, of what a loop computes."""
    x, row = _numbers(generator, _ROWS, n), _numbers(generator, n)
    for dim in (0, 1):
        for name in ("sum", "mean", "amax", "amin", "logsumexp", "cumsum"):
            function = getattr(torch, name)
            yield (
                f"{name} along {dim}",
                lambda x, c, function=function, dim=dim: function(F.relu(x - c), dim),
                (x, row),
            )
        yield f"softmax along {dim}", lambda x, c, dim=dim: (x * c).softmax(dim), (x, row)
        yield (
            f"log softmax along {dim}",
            lambda x, c, dim=dim: (x * c).log_softmax(dim),
            (x, row),
        )
        yield f"norm along {dim}", lambda x, c, dim=dim: (x - c + 9).norm(dim=dim), (x, row)
    yield "sum", lambda x, c: F.relu(x - c).sum(), (x, row)
    yield "product", lambda x, c: (x * 0.25 + c * 0.125 + 1).prod(1), (x, row)


def _places_of_extremes(n: int, generator: torch.Generator) -> Iterator[Form]:
    """Results that have no gradient."""
    x, row = _numbers(generator, _ROWS, n), _numbers(generator, n)
    for dim in (0, 1):
        yield f"argmax along {dim}", lambda x, c, dim=dim: (x - c).argmax(dim), (x, row)
        yield f"smallest along {dim}", lambda x, c, dim=dim: (x - c).min(dim), (x, row)


def _moves(n: int, generator: torch.Generator) -> Iterator[Form]:
    """Gathers, scatters, triangles and padding."""
    x, row = _numbers(generator, _ROWS, n), _numbers(generator, n)
    rows = torch.randint(0, _ROWS, (7,), generator=generator)
    columns = torch.randint(0, n, (_ROWS, 5), generator=generator)
    yield "rows", lambda x, c, i: F.relu(x - c)[i], (x, row, rows)
    yield "columns", lambda x, c, i: F.relu(x - c)[:, i[0]], (x, row, columns)
    yield "gather", lambda x, c, i: F.relu(x - c).gather(1, i), (x, row, columns)
    yield "embedding", lambda x, c, i: F.relu(F.embedding(i, x) - c), (x, row, rows)
    yield "added", lambda x, c, i: x.index_add(0, i, (x - c)[:7]), (x, row, rows)
    yield (
        "scattered",
        lambda x, c, i: x.scatter_add(1, i, F.relu(x[:, :1] - c[:1])),
        (
            *(x, row),
            columns[:, :1],
        ),
    )
    yield "lower triangle", lambda x, c: (x - c).tril(), (x, row)
    yield "upper triangle", lambda x, c: F.relu(x - c).triu(1), (x, row)
    yield "padded", lambda x, c: F.pad(F.relu(x - c), (1, 2, 1, 0), value=0.5), (x, row)
    yield "flipped", lambda x, c: F.relu(x.flip(1) - c), (x, row)
    yield "rolled", lambda x, c: F.relu(x.roll(1, 1) - c), (x, row)
    yield "joined", lambda x, c: torch.cat([F.relu(x - c), x + c], 1), (x, row)
    yield "halves", lambda x, c: torch.where(x[:8] > c, x[8:], 0.0), (x, row)


def _windows(n: int, generator: torch.Generator) -> Iterator[Form]:
    """Pools and windows of rows, and of images of such rows."""
    x, image = _numbers(generator, 2, 3, n + 3), _numbers(generator, 2, 3, 6, n + 3)
    row = _numbers(generator, n + 3)
    yield "largest", lambda x, c: F.max_pool1d(F.relu(x - c), 3, 2, 1), (x, row)
    yield "mean", lambda x, c: F.avg_pool1d(F.relu(x - c), 3, 1, 1), (x, row)
    yield "largest of images", lambda x, c: F.max_pool2d(F.relu(x - c), 2), (image, row)
    yield "mean of images", lambda x, c: F.relu(F.avg_pool2d(x - c, 2, padding=1)), (image, row)
    yield "windows", lambda x, c: F.relu(x - c).unfold(2, 3, 1).sum(-1), (x, row)
    yield "patches", lambda x, c: F.unfold(F.relu(x - c), 3, padding=1), (image, row)
    yield "adaptive", lambda x, c: F.adaptive_avg_pool1d(F.relu(x - c), 3), (x, row)
    yield "larger", lambda x, c: F.interpolate(F.relu(x - c), scale_factor=2), (x, row)


def _norms(n: int, generator: torch.Generator) -> Iterator[Form]:
    """Norms with an activation, and losses."""
    x, row = _numbers(generator, _ROWS, n), _numbers(generator, n) + 3
    labels = torch.randint(0, n, (_ROWS,), generator=generator)
    image = _numbers(generator, 4, 6, n)
    yield (
        "batch norm",
        lambda x, c: F.relu(F.batch_norm(x, None, None, c, c * 0.1, training=True)),
        (x, row),
    )
    yield (
        "batch norm of images",
        lambda x, c: F.relu(F.batch_norm(x, None, None, c, -c, training=True)),
        (image, _numbers(generator, 6) + 3),
    )
    yield "layer norm", lambda x, c: F.relu(F.layer_norm(x, [x.shape[1]], c)), (x + 3, row)
    yield "group norm", lambda x, c: F.hardtanh(F.group_norm(x * c, 2)), (image, row)
    yield "cross entropy", lambda x, c, i: F.cross_entropy(F.relu(x - c), i), (x, row, labels)
    yield "smooth l1", lambda x, c: F.smooth_l1_loss(x, (x * 0 + c)), (x, row)
    yield "squares", lambda x, c: F.mse_loss(F.relu(x), (x * 0 + c)), (x, row)


_FAMILIES: tuple[tuple[bool, Callable[[int, torch.Generator], Iterator[Form]]], ...] = (
    (False, _selections),
    (False, _types),
    (True, _activations),
    (True, _images),
    (True, _reductions),
    (False, _places_of_extremes),
    (True, _moves),
    (True, _windows),
    (True, _norms),
)
