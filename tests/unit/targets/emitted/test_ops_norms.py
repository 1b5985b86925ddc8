"""Norms of emitted code give what the interpreter gives, as accurately as torch."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from helpers.emitted_operators import (  # noqa: F401 - tests of this module, too
    Case,
    Compiled,
    test_as_the_interpreter,
    test_not_less_accurate_than_torch,
)

G = torch.Generator().manual_seed(4)
IMAGES = torch.randn(3, 5, 8, 9, generator=G)
LARGE = torch.randn(2, 70, 33, 31, generator=G) * 3 + 50
ROWS = torch.randn(37, 131, generator=G) + 5
WEIGHT, BIAS, MEAN, VAR = (torch.rand(131, generator=G) + 0.5 for _ in range(4))


def _batch_norm(x, *, training, affine=True, stats=True, momentum=0.3):
    c = x.shape[1]
    mean, var, weight, bias = ((each[:c] * 1).to(x.dtype) for each in (MEAN, VAR, WEIGHT, BIAS))
    mean, var = (mean, var) if stats else (None, None)
    weight, bias = (weight, bias) if affine else (None, None)
    y = F.batch_norm(x, mean, var, weight, bias, training, momentum)
    return (y, mean * 1, var * 1) if stats and training else y


CASES = {
    **{
        " ".join(
            ["batch norm of", kind, *["training"] * training, *["plain"] * (not affine)]
        ): Case(
            lambda x, t=training, a=affine: _batch_norm(x, training=t, affine=a),
            (values,),
            gradients=True,
            rtol=1e-4,
            atol=1e-4,
        )
        for kind, values in (
            ("images", IMAGES),
            ("rows", ROWS),
            ("sequences", IMAGES.flatten(2)),
            ("volumes", IMAGES[:, :, None].repeat(1, 1, 2, 1, 1)),
            ("images with neighbouring channels", IMAGES.to(memory_format=torch.channels_last)),
            ("large images", LARGE),
        )
        for training in (True, False)
        for affine in (True, False)
    },
    "batch norm without statistics": Case(
        lambda x: _batch_norm(x, training=True, stats=False), (IMAGES,), True, atol=1e-4
    ),
    "batch norm and its activation": Case(
        lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True) + x),
        (IMAGES, WEIGHT[:5], BIAS[:5]),
        gradients=True,
        rtol=1e-4,
        atol=1e-4,
    ),
    **{
        f"batch norm of large images and {name}": Case(
            lambda x, w, b, f=f: f(F.batch_norm(x, None, None, w, b, True), x),
            (LARGE, WEIGHT[:70], BIAS[:70]),
            gradients=True,
            rtol=1e-4,
            atol=1e-4,
        )
        for name, f in {
            "relu": lambda y, x: F.relu(y),
            "relu6": lambda y, x: F.relu6(y),
            "silu": lambda y, x: F.silu(y),
            "a sum": lambda y, x: F.relu(y + x),
            "both": lambda y, x: (F.relu6(y) * 2, F.silu(y)),
            "a gate for each channel": lambda y, x: F.silu(y) * y.mean((2, 3), keepdim=True),
        }.items()
    },
    "layer norm of one element": Case(  # 0, exactly
        lambda x: (F.layer_norm(x, (1,)), F.layer_norm(x * 0.3 + 7, (1,))),
        (ROWS[:, :, None],),
        rtol=0,
        atol=0,
    ),
    "layer norm": Case(
        lambda x, w, b: [F.layer_norm(x, (131,), *each) for each in ((w, b), (w,), ())],
        (ROWS, WEIGHT, BIAS),
        gradients=True,
        rtol=1e-4,
        atol=1e-4,
    ),
    "group norm behind a ReLU": Case(
        lambda x, w, b: F.group_norm(F.relu(x), 5, w, b),
        (IMAGES, WEIGHT[:5], BIAS[:5]),
        gradients=True,
        rtol=1e-4,
        atol=1e-4,
    ),
    "group norm behind a ReLU that others read": Case(
        lambda x, w, b: F.group_norm(F.relu(x), 5, w, b) + F.relu(x) ** 2,
        (IMAGES, WEIGHT[:5], BIAS[:5]),
        gradients=True,
        rtol=1e-4,
        atol=1e-4,
    ),
    "group norm": Case(
        lambda x, w, b: F.group_norm(x, 5, w, b),
        (LARGE, WEIGHT[:70], BIAS[:70]),
        True,
        rtol=1e-3,
        atol=1e-3,
    ),
}

ACCURATE = [n for n in CASES if n.startswith("batch norm of large") and "training" in n]
ROUNDING = 2**-22


DIVERGED = Case(
    lambda x, y, w: (
        F.layer_norm(x, (131,)),
        F.layer_norm(x, (131,), w, w),
        F.group_norm(y, 5, w[:5], w[:5]),
    ),
    ((ROWS - 5) * 1e22, IMAGES * 1e22, WEIGHT),
)


@pytest.mark.compiler
def test_rows_whose_variance_overflows_do_not_look_finite():
    results = Compiled({"diverged": DIVERGED}).run("diverged")
    assert all(bool(each.isnan().all()) for each in results)
