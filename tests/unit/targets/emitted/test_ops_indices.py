"""Emitted code finds rows of tables as the interpreter does, and leaves other indexing to torch."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from helpers.emitted_operators import Case, test_as_the_interpreter  # noqa: F401

G = torch.Generator().manual_seed(7)
TABLE = torch.randn(9, 6, generator=G)
MANY = torch.randn(40, 3000, generator=G)
ROWS = torch.tensor([[3, 0, 8], [3, 2, 1]])
PICKED = torch.randint(0, 40, (70,), generator=G)

CASES = {
    "embedding": Case(lambda t, i: F.embedding(i, t), (TABLE, ROWS), gradients=True),
    "padding": Case(lambda t, i: F.embedding(i, t, 3), (TABLE, ROWS), gradients=True),
    "many": Case(lambda t, i: F.embedding(i, t), (MANY, PICKED), gradients=True),
    "gather": Case(lambda t, i: t.gather(0, i), (TABLE, ROWS), calls={"gather.default": 1}),
    "rows": Case(lambda t, i: t[i] * 2, (TABLE, ROWS), calls={"index.Tensor": 1}),
}
