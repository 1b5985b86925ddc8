"""Losses, softmax and tables of emitted code give what the interpreter gives."""

import math

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from helpers.emitted_operators import (  # noqa: F401 - tests of this module, too
    Case,
    test_as_the_interpreter,
    test_not_less_accurate_than_torch,
)

G = torch.Generator().manual_seed(5)
X = torch.randn(6, 7, 9, generator=G)
Y = torch.randn(6, 7, 9, generator=G)
FAR = X * 30 + 1000
LOGITS = torch.randn(4, 5, 40, 41, generator=G)
LABELS = torch.randint(0, 5, (4, 40, 41), generator=G)
LABELS[1, 3] = -100
CLASSES = torch.randn(40, 10, generator=G)
NUMBERS = torch.randint(0, 10, (40,), generator=G)
WEIGHTS = torch.rand(10, generator=G) + 0.1
PROBABILITIES = torch.rand(6, 7, generator=G)
MANY, OTHERS = torch.randn(2, 90000, generator=G)
ODD = torch.tensor(
    [[0.0, math.inf, 1.0], [math.nan, 1.0, 2.0], [-math.inf] * 3, [-0.0, -math.inf, 5]]
)
safe_softmax = torch.ops.aten._safe_softmax
ROWS = torch.randint(0, 10, (3, 8), generator=G)
KINDS = ("none", "mean", "sum")

CASES = {
    **{
        f"{name} {kind}": Case(
            lambda x, y, f=f, k=kind: f(x, y, reduction=k), (X, Y), gradients=True
        )
        for name, f in {
            "mse": F.mse_loss,
            "l1": F.l1_loss,
            "smooth l1": lambda x, y, reduction: F.smooth_l1_loss(
                x, y, reduction=reduction, beta=0.7
            ),
            "bce": lambda x, y, reduction: F.binary_cross_entropy(
                x.sigmoid(), y.detach().sigmoid(), reduction=reduction
            ),
            "bce of logits": lambda x, y, reduction: F.binary_cross_entropy_with_logits(
                x, y.detach().sigmoid(), reduction=reduction
            ),
            "divergence": lambda x, y, reduction: F.kl_div(
                x, y.softmax(-1), reduction="batchmean" if reduction == "mean" else reduction
            ),
        }.items()
        for kind in KINDS
    },
    "mse of many": Case(F.mse_loss, (MANY, OTHERS), gradients=True),
    "mse of others in memory": Case(
        lambda x, y: F.mse_loss(x.transpose(0, 2), y.transpose(0, 2)), (X, Y), gradients=True
    ),
    "certain probabilities": Case(
        lambda p: F.binary_cross_entropy(p.round(), p.detach(), reduction="none"),
        (PROBABILITIES,),
        gradients=True,
    ),
    **{
        f"{f.__name__} over {dim}": Case(
            lambda x, y, f=f, d=dim: f(x, d) * y, (values, Y), True, rtol=1e-5, atol=1e-4
        )
        for f in (torch.softmax, torch.log_softmax, safe_softmax)
        for dim in (0, 1, 2)
        for values in (X,)
    },
    "large logits": Case(
        lambda x: (x.softmax(1), x.log_softmax(-1), x.log_softmax(0)), (FAR,), atol=1e-4
    ),
    "odd logits": Case(
        lambda x: (x.softmax(1), x.log_softmax(-1), x.softmax(0), x.log_softmax(0)), (ODD,)
    ),
    "odd logits, of which all may be masked": Case(
        lambda x: [safe_softmax(each, dim) for each in (x, x.t()) for dim in (0, 1)], (ODD,)
    ),
    **{
        f"cross entropy {kind}": Case(
            lambda x, y, k=kind: F.cross_entropy(x, y, reduction=k),
            (CLASSES, NUMBERS),
            gradients=True,
        )
        for kind in KINDS
    },
    **{
        f"weighted cross entropy {kind}": Case(
            lambda x, y, w, k=kind: F.cross_entropy(x, y, w.detach(), reduction=k, ignore_index=3),
            (CLASSES, NUMBERS, WEIGHTS),
        )
        for kind in KINDS
    },
    **{
        f"cross entropy of images {kind}": Case(
            lambda x, y, k=kind: F.cross_entropy(x, y, reduction=k), (LOGITS, LABELS), True
        )
        for kind in KINDS
    },
    "weighted gradients": Case(
        lambda x, y: F.cross_entropy(x, y, WEIGHTS[:5], label_smoothing=0.0),
        (LOGITS, LABELS),
        gradients=True,
    ),
    "label smoothing": Case(
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), (CLASSES, NUMBERS), True
    ),
    "soft labels": Case(lambda x, y: F.cross_entropy(x, y.softmax(1)), (X, Y), gradients=True),
    "everything ignored": Case(lambda x, y: F.nll_loss(x, y * 0 - 100), (CLASSES, NUMBERS)),
    "embedding": Case(lambda t, i: F.embedding(i, t, padding_idx=3), (CLASSES[:10], ROWS), True),
    "wide embedding": Case(
        lambda t, i: F.embedding(i, t), (MANY.view(10, -1)[:, :1003], ROWS), True
    ),
}

ACCURATE = ("large logits", "mse of many", "cross entropy of images mean")
