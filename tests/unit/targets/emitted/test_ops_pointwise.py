"""Elementwise operators of emitted code give what the interpreter gives."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from helpers.emitted_operators import Case, test_as_the_interpreter  # noqa: F401

G = torch.Generator().manual_seed(1)
X = torch.randn(3, 5, 7, generator=G)
Y = torch.randn(5, 7, generator=G)
P = X.abs() + 0.5
WIDE = X * 20
ODD = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, -0.5, 1.5])
# Of a positive infinity torch's GELU is NaN or infinity, by how many numbers there are.
FINITE = ODD[~ODD.isposinf()]
OTHER = torch.tensor(
    [1.0, math.nan, 2.0, -0.0, 0.0, -1.0, math.inf, -math.inf, 0.5, -0.5, 0.0, 3.0]
)
INTS = torch.tensor([[-7, -3, 0], [3, 7, 12]])
MASK = X > 0.3
# Nothing stops a division of integers by zero.
BY_TORCH = ("remainder.Tensor", "fmod.Tensor", "floor_divide.default")


def _extremes(dtype: torch.dtype) -> torch.Tensor:
    limits = torch.iinfo(dtype)
    near = [limits.min, limits.min + 1, limits.max, limits.max // 2 + 1, -1, 0, 1, 100]
    return torch.tensor(near, dtype=dtype)


def _overflowing(i):
    """What is never true of integers without end, and so may be lost by a compiler."""
    return (
        (
            *(i + 1 > i, i - 1 < i, i * 2 // 2, i * 4 // 4, 3 * i // 3, i.abs() < 0, -i, -i < 0),
            *(1 - i > -i, i * i, torch.add(i, i, alpha=3), torch.sub(i, i, alpha=-5)),
            *(torch.rsub(i, i, alpha=2), torch.addcmul(i, i, i, value=7), i * 1103515245 + 12345),
        )
        if i.dtype in (torch.int32, torch.int64)
        else (i + 1 > i, i * 2 // 2, i.abs(), -i, i * i)
    )


CASES = {
    **{
        f"{name} of {kind}": Case(getattr(torch, name), (values,))
        for name in (
            *("floor", "ceil", "round", "trunc", "sign", "frac", "isnan", "isinf", "isfinite"),
            *("exp2", "expm1", "log2", "log10", "tan", "atan", "sinh", "cosh", "asinh", "erfc"),
            *("square", "signbit", "logical_not", "relu", "abs", "neg", "sgn", "acosh"),
            *("atanh", "asin", "acos", "special_entr", "tanh", "erf"),
        )
        if hasattr(torch, name)
        for kind, values in (("numbers", X), ("odd numbers", ODD))
    },
    **{
        f"{name} of odd pairs": Case(
            # Of two zeros torch takes either as the larger, by where they are in a vector.
            *(getattr(torch, name), (ODD, OTHER)),
            signed_zeros=name not in ("maximum", "minimum", "fmax", "fmin"),
        )
        for name in (
            *("pow", "remainder", "fmod", "copysign", "maximum", "minimum", "atan2", "fmax"),
            *("fmin", "logical_and", "logical_or", "logical_xor", "hypot", "xlogy"),
            *("floor_divide", "true_divide", "add", "mul", "sub"),
        )
    },
    **{
        f"{name} of integers": Case(
            getattr(torch, name),
            (INTS, INTS.flip(1) + 20),
            calls={each: 1 for each in BY_TORCH if each.split(".")[0] == name},
        )
        for name in (
            *("remainder", "fmod", "bitwise_and", "bitwise_or", "bitwise_xor", "floor_divide"),
            *("maximum", "div", "logical_and", "mul", "eq"),
        )
    },
    **{
        f"{name} with gradients": Case(function, (X,), gradients=True)
        for name, function in {
            "silu": F.silu,
            "hardtanh": lambda x: F.hardtanh(x, -0.4, 0.9),
            "relu6": F.relu6,
            "elu": lambda x: F.elu(x, 0.7),
            "selu": F.selu,
            "celu": lambda x: F.celu(x, 1.3),
            "softplus": lambda x: F.softplus(x, 2.0, 1.0),
            "log_sigmoid": F.logsigmoid,
            "mish": F.mish,
            "hardswish": lambda x: F.hardswish(x * 4),
            "hardsigmoid": lambda x: F.hardsigmoid(x * 4),
            "softsign": F.softsign,
            "clamp": lambda x: x.clamp(-0.5, 0.5),
            "tanhshrink": F.tanhshrink,
        }.items()
    },
    "wide gelu": Case(
        lambda x: (F.gelu(x), torch.ops.aten.gelu_backward(torch.ones_like(x), x)),
        (torch.linspace(-12, 12, 4801),),
    ),
    "gelu of odd numbers": Case(
        lambda x: (F.gelu(x), torch.ops.aten.gelu_backward(x, x), torch.erf(x), torch.tanh(x)),
        (torch.cat([FINITE, torch.tensor([-1e38, 1e38, -1e-38, 1e-38, 13.5, -13.5])]),),
        signed_zeros=False,  # of numbers that are too small for a float
    ),
    "sharp activations": Case(
        lambda x: (F.elu(x), F.softplus(x), F.logsigmoid(x), F.silu(x), F.hardtanh(x), F.mish(x)),
        (torch.cat([WIDE.flatten(), ODD]),),
    ),
    "slopes at odd numbers": Case(
        lambda x, ones: (
            torch.ops.aten.elu_backward(ones, 1.0, 1.0, 1.0, False, x),
            torch.ops.aten.hardswish_backward(ones, x),
            torch.ops.aten.hardtanh_backward(ones, x, 0.0, 6.0),
            x**-0.5,
        ),
        (ODD.repeat(8), torch.ones(96)),  # torch has other rules for the last few of 32
    ),
    "powers": Case(lambda p, y: (p**y, 2.0**y, p**-1, p**1.5, p**-0.5, p**2, y**3), (P, Y), True),
    "ternaries": Case(
        lambda x, y, m: (
            torch.where(m, x, 2.0),
            torch.where(m, 1.0, x),
            torch.where(m, 1.0, 0.0),
            x.masked_fill(m, -math.inf),
            x.masked_fill(~m, 3),
            x.masked_fill(m, y[0, 0]),
            x.clamp(y - 0.5, y + 0.5),
            torch.lerp(x, y, 0.3),
        ),
        (X, Y, MASK),
    ),
    "fills": Case(
        lambda x: (
            *(torch.zeros_like(x), torch.full_like(x, 2.5), torch.full((2, 3), 7)),
            *(
                torch.zeros(2, 2),
                torch.ones(3, dtype=torch.bool),
                x.new_zeros(2),
                x.new_full((2,), 3.0),
            ),
            *(torch.zeros_like(x).fill_(1.5), x.clone().zero_(), torch.full((), math.inf)),
            torch.full((2,), True),
        ),
        (X,),
    ),
    "truth": Case(
        lambda x, m: (
            *(m & (x > 0), m | (x > 1), m ^ (x > 0), ~m, m & 1, ~(x > 0).long()),
            *(x.bool(), x.logical_and(m), m.float() * x, m.to(torch.int32) + 1),
        ),
        (X, MASK),
    ),
    "integers": Case(lambda i: (i & 3, i | 8, -i, i.abs(), i % 4, i // 4, i.sign()), (INTS,)),
    **{
        f"overflow of {dtype}": Case(_overflowing, (_extremes(dtype),))
        for dtype in (torch.int64, torch.int32, torch.int16, torch.int8)
    },
    "products": Case(lambda x, y: (torch.addcmul(x, x, y, value=0.5), x.float_power(2)), (X, Y)),
    "doubles": Case(
        lambda x: (x.double().exp(), x.double().tanh(), (x.double() ** 3).float()), (X,)
    ),
    "rounding modes": Case(
        lambda x, y: (
            *(torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc")),
            *(x.remainder(0.7), x.fmod(0.7)),
        ),
        (X, Y),
    ),
}


@pytest.mark.compiler
def test_gelu_is_not_less_accurate_than_torchs(compiled):
    case = CASES["wide gelu"]
    exact = case.function(case.inputs[0].double())
    results = zip(compiled.run("wide gelu"), compiled.interpreted("wide gelu"), exact, strict=True)
    for ours, theirs, true in results:
        ours, theirs = ours.double() - true, theirs.double() - true
        assert ours.abs().max() <= theirs.abs().max()
        assert ours.square().mean() <= theirs.square().mean()
