"""Emitted code finds elements by their numbers as the interpreter does."""

import torch

from helpers.emitted_operators import Case, test_as_the_interpreter  # noqa: F401

G = torch.Generator().manual_seed(7)
X = torch.randn(4, 5, 6, generator=G)
INDEX = torch.randint(0, 5, (4, 3, 6), generator=G)
ROWS = torch.tensor([3, 0, -1, 3, 2])
PAIRS = torch.tensor([[0, 1], [4, -2]])
DISTINCT = torch.tensor([3, 0, 2])
MANY = torch.randn(40, 3000, generator=G)
PICKED = torch.randint(0, 40, (70,), generator=G)

CASES = {
    "narrow numbers": Case(
        lambda x, i: (x.gather(1, i), x.scatter_add(1, i, x[:, :3])),
        (X, INDEX.int()),
        gradients=True,
    ),
    "gather": Case(lambda x, i: (x.gather(1, i), x.gather(-2, i)), (X, INDEX), gradients=True),
    "gather in memory of others": Case(
        lambda x, i: x.transpose(0, 2).gather(1, i.transpose(0, 2)), (X, INDEX), gradients=True
    ),
    "gather less": Case(
        lambda x, i: x.gather(1, i[:2]),
        (X, INDEX),
        gradients=True,
        calls={"gather.default": 1, "scatter_add.default": 1},
    ),
    "scatter": Case(
        lambda x, i: (
            torch.zeros_like(x).scatter_add(1, i, x[:, :3]),
            x.scatter(1, i[:, :1], x[:, :1]),
            x.scatter(1, i, 2.5),
            i.scatter_add(1, i % 3, i),
        ),
        (X, INDEX),
    ),
    "index_select": Case(
        lambda x, i: (
            x.index_select(0, i.abs()),
            x.index_select(-1, i.abs()),
            x.transpose(0, 1).index_select(1, i.abs()),
        ),
        (X, ROWS),
        gradients=True,
    ),
    "index_add": Case(lambda x, i: x.index_add(1, i.abs(), x * 2), (X, ROWS), gradients=True),
    "rows": Case(lambda x, i: (x[i], x[:, i], x[:, :, i] * 2), (X, ROWS), gradients=True),
    "rows of rows": Case(lambda x, i: (x[:, i], x[1][i, None]), (X, PAIRS), gradients=True),
    "pairs": Case(
        lambda x, i, j: (x[:, i, i + 1], x[j, j], x[j, j, j % 2], x[j[:, None], j]),
        (X, PAIRS, DISTINCT),
        gradients=True,
    ),
    "apart": Case(lambda x, j: x[j, :, j], (X, DISTINCT), calls={"index.Tensor": 1}),
    "written": Case(lambda x, j: _written(x * 1, j), (X, DISTINCT), gradients=True),
    "integers and truth": Case(lambda x, i: ((x > 0)[:, i], x.long()[i, i], i[i]), (X, ROWS % 4)),
    "many": Case(lambda x, i: (x[i], x.index_select(0, i)), (MANY, PICKED), gradients=True),
}


def _written(x, j):
    x[j] = 2.0
    x[:, j] += 1.0
    x[:, :, j] = x[:, :, :1]
    return x.index_put((j,), x[0], accumulate=True)
