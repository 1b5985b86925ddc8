"""Emitted code reduces tensors as the interpreter does, and as accurately as torch."""

import math

import torch

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
INTS = torch.randint(-9, 9, (5, 33), generator=G)
ODD = torch.tensor([[1.0, math.nan, 3.0, math.nan], [-0.0, 0.0, -1.0, -0.0], [2.0, 2.0, 1.0, 2.0]])
ODD = torch.cat([ODD, torch.full((1, 4), -math.inf)])

CASES = {
    "of a number": Case(
        lambda x: (
            *(x.sum().sum(0), x.sum().mean(-1), x.amax().amax(0), x.sum().sum(0, keepdim=True)),
            x.sum().argmax(0),
        ),
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
    "extremes": Case(
        lambda x: (
            *(x.amax(-1), x.amin((1, 2)), x.amax(0, keepdim=True), x.max(), x.min()),
            *(*x.max(2), *x.min(-1), x.argmax(-1), x.argmin(1, keepdim=True), x.argmax()),
        ),
        (X,),
    ),
    "extremes of odd numbers": Case(
        lambda x: (x.amax(1), x.amin(0), *x.max(1), *x.min(0), x.argmax(1), x.argmin(1), x.max()),
        (ODD,),
        signed_zeros=False,
    ),
    "extremes of integers": Case(
        lambda i: (i.amax(1), *i.max(1), i.argmin(0), i.int().max(), i.double().argmax()), (INTS,)
    ),
    "extremes of many": Case(lambda x: (x.argmax(1), x.amax(), x.argmin(0)), (WIDE,)),
    "gradients of extremes": Case(
        lambda x: (x.amax(-1), x.max(1)[0], x.min()), (X,), gradients=True
    ),
    "variances": Case(
        lambda x: (
            *(x.var(), x.var(-1), x.std((1, 2)), x.var((0, 3), correction=0, keepdim=True)),
            *(*torch.var_mean(x, 1), *torch.std_mean(x, (0, 2), correction=2), x.double().var(2)),
        ),
        (X,),
        gradients=True,
    ),
    "sums of equal numbers": Case(lambda x: (x.sum(0),), (EQUAL,)),
    "variances of many": Case(lambda x: (x.var(1), x.std(), x.var(0)), (WIDE,)),
}


ACCURATE = ("long sums", "tall sums", "sums of equal numbers", "variances of many")
