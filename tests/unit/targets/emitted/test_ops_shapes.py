"""Emitted code moves elements as the interpreter does."""

import operator

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from helpers.emitted_operators import Case, test_as_the_interpreter  # noqa: F401

G = torch.Generator().manual_seed(2)
X = torch.randn(4, 5, 6, generator=G)
Y = torch.randn(4, 5, 6, generator=G)

CASES = {
    "pieces of a type without loops": Case(
        lambda x: (*torch.unsafe_chunk(x, 2), x.unsafe_split(3, 1)[1]),
        (X.to(torch.complex64),),
        calls={str(operator.getitem): 3},  # what is returned is copied
    ),
    "written slices": Case(
        lambda x, y: _written(x * 2, y),
        (X, Y),
        gradients=True,
        calls={"slice_scatter.default": 4, "select_scatter.default": 6},
    ),
    # Positions in the memory that a tensor is a part of, which is another one in a program.
    "as_strided": Case(
        lambda x, y: (
            (x * 2).as_strided((2, 2), (1, 2), 1),
            (y * 2)[1:].as_strided((2, 2), (1, 2), 1) * 3,
            torch.cat([torch.as_strided_scatter(x[0] * 2, y[0, :2, :2], (2, 2), (1, 2), 1), y[0]]),
        ),
        (X, Y),
        gradients=True,
        calls={"as_strided_scatter.default": 4},
    ),
    # As many elements as the memory has, yet not all of it.
    "as_strided over itself": Case(
        lambda x, y: (x * y).as_strided(x.shape, (1, 1, 1)), (X, Y), calls={}
    ),
    "lazy conjugates": Case(
        lambda x, y: torch.complex(x, y).conj().imag * 3 + x,
        (X, Y),
        gradients=True,
        calls={
            "complex.default": 1,
            "_conj.default": 4,
            "view_as_real.default": 2,
            "_neg_view.default": 1,
            "view_as_complex.default": 1,
        },
    ),
    "zeros without memory": Case(lambda x: torch.sgn(x * 3) + x, (X,), gradients=True),
    "repeat": Case(
        lambda x, y: (x.repeat(2, 3, 1, 2), y[:, 0].t().repeat(2, 1), x.long().repeat(1, 1, 2)),
        (X, Y),
    ),
    "repeat with gradients": Case(lambda x: x.repeat(2, 1, 3), (X,), gradients=True),
    "pad": Case(
        lambda x, y: (
            F.pad(x, (1, 2)),
            F.pad(y, (0, -2, 3, 1), value=1.5),
            F.pad(x, (-1, -1, -2, 0)),
        ),
        (X, Y),
        gradients=True,
    ),
}


def _written(x, y):
    x[1:3, ::2] = y[1:3, ::2]
    x[0] += y[1]
    x[..., -1] = 0.0
    return x
