"""Pools and upsampling in emitted code give what the interpreter gives."""

import math

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from helpers.emitted_operators import Case, test_as_the_interpreter  # noqa: F401

G = torch.Generator().manual_seed(8)
X = torch.randn(2, 3, 12, 18, generator=G)
ODD = torch.randn(3, 11, 13, generator=G)
LARGE = torch.randn(2, 8, 64, 66, generator=G)
TIES = torch.randint(0, 3, (2, 3, 12, 18), generator=G).float()
NANS = X.clone()
NANS[0, 0, 3, 4] = NANS[1, 2, 0, 1] = math.nan

CASES = {
    "mean pools": Case(
        lambda x, y: (
            F.avg_pool2d(x, 2),
            F.avg_pool2d(x, (3, 2)),
            F.avg_pool2d(y, 2),
            F.avg_pool2d(y, (1, 4)),
        ),
        (X, ODD),
        gradients=True,
    ),
    "overlapping mean pools": Case(
        lambda x, y: (F.avg_pool2d(x, 3, 1), F.avg_pool2d(y, 3, 2)), (X, ODD)
    ),
    "padded mean pools": Case(
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        (X,),
        True,
        calls={"avg_pool2d.default": 1, "avg_pool2d_backward.default": 1},
    ),
    "max pools": Case(
        lambda x, y: (F.max_pool2d(x, 2), F.max_pool2d(y, 2)), (X, ODD), gradients=True
    ),
    "other max pools": Case(
        lambda x, y: (
            F.max_pool2d(y, 3, 2),
            F.max_pool2d(x, 3, 2, 1),
            F.max_pool2d(y, 2, ceil_mode=True),
        ),
        (X, ODD),
        True,
        calls={"max_pool2d_with_indices.default": 3, "max_pool2d_with_indices_backward.default": 3},
    ),
    "max pools of ties": Case(lambda x: F.max_pool2d(x, 2), (TIES,), True),
    "max pools of indices": Case(
        lambda x: F.max_pool2d(x, 2, return_indices=True),
        (X,),
        True,
        calls={"max_pool2d_with_indices.default": 1, "max_pool2d_with_indices_backward.default": 1},
    ),
    "max pools of NaN": Case(
        lambda x: (F.max_pool2d(x, 2), F.max_pool2d(x[1:], 2)), (NANS,), gradients=True
    ),
    "large pools": Case(
        lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 2)), (LARGE,), gradients=True
    ),
}
