"""Arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from abele.targets.translation.pointwise import Form, Rule, plain

aten = torch.ops.aten


def is_whole(value: Any) -> bool:
    """Whether an operand is an integer or a tensor of integers."""
    if isinstance(value, torch.fx.Node):
        return not value.meta["val"].dtype.is_floating_point
    return isinstance(value, int)


def _either(real: str, whole: str, operands: int) -> Callable[..., Form]:
    """The first ``operands`` arguments in one of two texts, by whether all of them are integers."""

    def form(*given: Any) -> Form:
        used = given[:operands]
        return used, (whole if all(map(is_whole, used)) else real).format

    return form


_PRODUCT = _either("({0} * {1})", "abele::whole_product({0}, {1})", 2)


def _sum(sign: str) -> Callable[..., Form]:
    name = {"+": "abele::whole_sum", "-": "abele::whole_difference"}[sign]

    def form(a: Any, b: Any, alpha: Any = 1) -> Form:
        if alpha == 1:
            return _either(f"({{0}} {sign} {{1}})", f"{name}({{0}}, {{1}})", 2)(a, b)
        whole = f"{name}({{0}}, abele::whole_product({{2}}, {{1}}))"
        return _either(f"({{0}} {sign} {{2}} * {{1}})", whole, 3)(a, b, alpha)

    return form


def _reversed_difference(a: Any, b: Any, alpha: Any = 1) -> Form:
    if alpha == 1:
        return _sum("-")(b, a)
    whole = "abele::whole_difference({1}, abele::whole_product({2}, {0}))"
    return _either("({1} - {2} * {0})", whole, 3)(a, b, alpha)


def _third(text: str) -> Callable[..., Form]:
    product = "abele::whole_product({1}, {2})"

    def form(x: Any, a: Any, b: Any, value: Any = 1) -> Form:
        if value == 1:
            return _either(f"({{0}} + {text})", f"abele::whole_sum({{0}}, {product})", 3)(x, a, b)
        whole = f"abele::whole_sum({{0}}, abele::whole_product({{3}}, {product}))"
        return _either(f"({{0}} + {{3}} * {text})", whole, 4)(x, a, b, value)

    return form


def _power(x: Any, exponent: Any) -> Form:
    whole = {1: "{0}", 2: "({0} * {0})", 3: "({0} * {0} * {0})", 0.5: "std::sqrt({0})"}
    if exponent in whole:
        return (x,), whole[exponent].format
    return (x, exponent), "std::pow({0}, {1})".format


def _clamp(x: Any, low: Any = None, high: Any = None) -> Form:
    if low is None:
        return (x, high), "abele::not_above({0}, {1})".format
    if high is None:
        return (x, low), "abele::not_below({0}, {1})".format
    return (x, low, high), "abele::not_above(abele::not_below({0}, {1}), {2})".format


def _logit(x: Any, eps: Any = None) -> Form:
    text = "abele::log({0} / (1 - {0}))"
    if eps is None or eps < 0:
        return (x,), text.format
    within = "({0} < {1} ? {1} : {0} > 1 - {1} ? 1 - {1} : {0})"  # NaN stays
    return (x, eps), lambda *texts: text.format(within.format(*texts))


def _divided(real: str, whole: str) -> Callable[..., Form]:
    """A quotient or remainder; integers only by a number that every integer can be divided by."""

    def form(a: Any, b: Any) -> Form:
        if not (is_whole(a) and is_whole(b)):
            return (a, b), real.format
        if isinstance(b, torch.fx.Node) or b in (0, -1):
            raise NotImplementedError(b)
        return (a, b), whole.format

    return form


_FLOOR_DIVIDE = _divided("abele::floor_divide({0}, {1})", "abele::whole_floor_divide({0}, {1})")
_TRUNCATED = _divided("std::trunc({0} / {1})", "({0} / {1})")


def _rounded_quotient(a: Any, b: Any, rounding_mode: str | None = None) -> Form:
    if rounding_mode is None:
        raise NotImplementedError("rounding_mode")
    return (_FLOOR_DIVIDE if rounding_mode == "floor" else _TRUNCATED)(a, b)


def _nan_to_num(x: Any, nan: Any = None, positive: Any = None, negative: Any = None) -> Form:
    limits = torch.finfo(x.meta["val"].dtype)
    high = limits.max if positive is None else positive
    low = limits.min if negative is None else negative
    text = "({0} != {0} ? {1} : {0} == {4} ? {2} : {0} == -{4} ? {3} : {0})"
    return (x, nan or 0.0, high, low, math.inf), text.format


# Exact at both ends, as torch has it.
_LERP = "(std::fabs({2}) < 0.5 ? {0} + {2} * ({1} - {0}) : {1} - ({1} - {0}) * (1 - {2}))"

_COPIES = (
    aten.alias.default,
    aten.clone.default,
    aten._to_copy.default,
    aten.detach.default,
    aten.lift_fresh_copy.default,
)
_FLOATING = {
    aten.exp.default: ("abele::exp({0})", 1),
    aten.log.default: ("abele::log({0})", 1),
    aten.log1p.default: ("abele::log1p({0})", 1),
    aten.sqrt.default: ("std::sqrt({0})", 1),
    aten.rsqrt.default: ("(1 / std::sqrt({0}))", 1),
    aten.reciprocal.default: ("(1 / {0})", 1),
    aten.sigmoid.default: ("abele::sigmoid({0})", 1),
    aten.tanh.default: ("abele::tanh({0})", 1),
    aten.erf.default: ("abele::erf({0})", 1),
    aten.sin.default: ("std::sin({0})", 1),
    aten.cos.default: ("std::cos({0})", 1),
    **{
        getattr(aten, name).default: (f"std::{name}({{0}})", 1)
        for name in (
            *("floor", "ceil", "trunc", "tan", "atan", "asin", "acos", "sinh", "cosh"),
            *("asinh", "acosh", "atanh", "exp2", "log2", "log10", "erfc"),
        )
    },
    **{
        getattr(aten, name).default: (f"std::{name}({{0}}, {{1}})", 2)
        for name in ("fmax", "fmin", "atan2", "hypot")
    },
    aten.round.default: ("std::nearbyint({0})", 1),
    aten.frac.default: ("({0} - std::trunc({0}))", 1),
    aten.expm1.default: ("abele::expm1({0})", 1),
    aten.copysign.Tensor: ("std::copysign({0}, {1})", 2),
    aten.copysign.Scalar: ("std::copysign({0}, {1})", 2),
    aten.pow.Tensor_Tensor: ("std::pow({0}, {1})", 2),
    aten.logaddexp.default: ("abele::log_add_exp({0}, {1})", 2),
    aten.xlogy.Tensor: ("abele::x_log_y({0}, {1})", 2),
    aten.pow.Scalar: ("std::pow({0}, {1})", 2),
    aten.lerp.Scalar: (_LERP, 3),
    aten.lerp.Tensor: (_LERP, 3),
}
_ANY = {
    aten.abs.default: ("abele::magnitude({0})", 1),
    aten.sign.default: ("abele::sign({0})", 1),
    aten.sgn.default: ("abele::sign({0})", 1),
    aten.maximum.default: ("abele::maximum({0}, {1})", 2),
    aten.minimum.default: ("abele::minimum({0}, {1})", 2),
    aten.clamp_min.default: ("abele::not_below({0}, {1})", 2),
    aten.clamp_max.default: ("abele::not_above({0}, {1})", 2),
}

RULES: dict[Any, Rule] = {
    **{
        getattr(packet, kind): Rule(form)
        for packet, form in (
            (
                aten.remainder,
                _divided("abele::remainder({0}, {1})", "abele::whole_remainder({0}, {1})"),
            ),
            (aten.fmod, _divided("std::fmod({0}, {1})", "({0} % {1})")),
        )
        for kind in ("Tensor", "Scalar")
    },
    aten.floor_divide.default: Rule(_FLOOR_DIVIDE),
    aten.floor_divide.Scalar: Rule(_FLOOR_DIVIDE),
    aten.div.Tensor_mode: Rule(_rounded_quotient),
    aten.div.Scalar_mode: Rule(_rounded_quotient),
    **{target: Rule(plain("{0}", 1)) for target in _COPIES},
    **{target: Rule(plain(*form), floating=True) for target, form in _FLOATING.items()},
    **{target: Rule(plain(*form)) for target, form in _ANY.items()},
    aten.neg.default: Rule(_either("(-{0})", "abele::whole_difference(decltype({0}){{}}, {0})", 1)),
    aten.mul.Tensor: Rule(_PRODUCT),
    aten.mul.Scalar: Rule(_PRODUCT),
    aten.add.Tensor: Rule(_sum("+")),
    aten.add.Scalar: Rule(_sum("+")),
    aten.sub.Tensor: Rule(_sum("-")),
    aten.sub.Scalar: Rule(_sum("-")),
    aten.rsub.Scalar: Rule(_reversed_difference),
    aten.rsub.Tensor: Rule(_reversed_difference),
    aten.div.Tensor: Rule(plain("({0} / {1})", 2), floating=True),
    aten.div.Scalar: Rule(plain("({0} / {1})", 2), floating=True),
    aten.addcmul.default: Rule(_third("{1} * {2}")),
    aten.addcdiv.default: Rule(_third("({1} / {2})"), floating=True),
    aten.pow.Tensor_Scalar: Rule(_power, floating=True),
    aten.clamp.default: Rule(_clamp),
    aten.clamp.Tensor: Rule(_clamp),
    aten.nan_to_num.default: Rule(_nan_to_num, floating=True),
    aten.logit.default: Rule(_logit, floating=True),
}
