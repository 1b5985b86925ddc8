"""Emitted code reduces tensors as the interpreter does, and as accurately as torch."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch.linalg import vector_norm

from helpers.emitted_operators import (  # noqa: F401 - tests of this module, too
    Case,
    test_as_the_interpreter,
    test_not_less_accurate_than_torch,
)

G = torch.Generator().manual_seed(3)
X = torch.randn(4, 5, 6, 7, generator=G)
WIDE = torch.randn(3, 70001, generator=G) + 100
TALL = torch.randn(40001, 70, generator=G) + 100
EQUAL = torch.tensor([0.7123, 3.141]).expand(125, 2).contiguous()  # rounding errors add up
MANY = torch.randn(37, 2123, generator=G)  # more than are summed together
NARROW = MANY[:, :1090].bfloat16()
INTS = torch.randint(-9, 9, (5, 33), generator=G)
CASES = {
    "of a number": Case(
        lambda x: (*(x.sum().sum(0), x.sum().mean(-1), x.sum().sum(0, keepdim=True)),),
        (torch.arange(6.0),),
        gradients=True,
    ),
    "sums": Case(
        lambda x: (
            *(x.sum(), x.sum(0), x.sum(-1), x.sum((0, 2, 3)), x.sum((1, 3), keepdim=True)),
            *(x.sum((0, 2)), x.sum((1, 2)), x.mean((0, 1, 2)), x.mean((2, 3)), x.mean()),
        ),
        (X,),
        gradients=True,
    ),
    "sums of others in memory": Case(
        lambda x: (
            *(x.transpose(0, 2).sum((0, 2)), x[:, ::2].sum((1, 3)), x[..., 1:].sum((0, 3))),
            x.permute(3, 1, 0, 2).mean((1, 3)),
        ),
        (X,),
    ),
    "sums of integers": Case(
        lambda i, x: (i.sum(), i.sum(0), (i > 0).sum(1), (x > 0).sum(), i.int().sum(-1)), (INTS, X)
    ),
    "sums of doubles": Case(
        lambda x: (x.double().sum(), x.double().mean(0), x.sum(dtype=torch.float64)), (X,)
    ),
    "long sums": Case(lambda x: (x.sum(), x.sum(1), x.mean(0), x.t().sum(0)), (WIDE,)),
    "tall sums": Case(lambda x: (x.sum(0), x.sum(1), x.mean(), x[:, :3].sum(0)), (TALL,)),
    "sums of equal numbers": Case(lambda x: (x.sum(0),), (EQUAL,)),
    "sums of many columns": Case(lambda x: (x.sum(0), x[:, :-1].mean(0)), (MANY,)),
    "sums of 16 bits": Case(
        lambda x, y: (x.float().sum(0), y.float().mean(0), x.float().sum()), (NARROW, MANY.half())
    ),
    "norms": Case(
        lambda x: (
            *(x.norm(), x.norm(dim=0), x.norm(dim=-1, keepdim=True), vector_norm(x, 2, (0, 1, 3))),
            *(vector_norm(x.transpose(0, 2)), x[..., 1:].norm(dim=(1, 3)), x.double().norm()),
            *((x * 0).norm(dim=1), (x / 0).norm(dim=2), (x * 1e30).norm(dim=3)),
        ),
        (X,),
    ),
    "gradients of norms": Case(
        lambda x: (x.norm(), F.normalize(x, dim=1), F.cosine_similarity(x[0], x[1])), (X,), True
    ),
    "long norms": Case(lambda x: (x.norm(), x.norm(dim=1), x.t().norm(dim=0)), (WIDE,)),
    "tall norms": Case(lambda x: (x.norm(dim=0), x.norm(), x[:, :3].norm(dim=0)), (TALL,)),
    "norms that torch computes": Case(
        lambda x: (x.norm(1), vector_norm(x, float("inf")), x[:1, :1, :1, 0].norm()),
        (X,),
        calls={"linalg_vector_norm.default": 3},
    ),
}


ACCURATE = ("long sums", "tall sums", "sums of equal numbers", "long norms", "tall norms")
