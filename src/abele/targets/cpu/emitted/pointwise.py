"""Elementwise operators as expressions of C++."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten

#: Types that loops compute with, and what C++ calls them.
TYPES: dict[torch.dtype, str] = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "bool",
}

#: Operands of an operator, nodes or numbers, and the expression of their texts.
Form = tuple[Sequence[Any], Callable[..., str]]


@dataclasses.dataclass(frozen=True)
class Rule:
    """How an operator becomes an expression.

    Attributes:
        form: takes the operator's arguments by position; raises ``NotImplementedError`` for
            arguments that have no form here.
        promoted: operands are converted to their common type instead of the result's.
        floating: only where the result is of a floating type.
        mask: the first operand is a truth value.
    """

    form: Callable[..., Form]
    promoted: bool = False
    floating: bool = False
    mask: bool = False


def literal(value: Any, dtype: torch.dtype) -> str:
    """A Python number as C++ of a type.

    Raises:
        NotImplementedError: the number has no form in that type.
    """
    name = TYPES[dtype]
    if not isinstance(value, bool | int | float):
        raise NotImplementedError(value)
    if dtype is torch.bool:
        return "true" if value else "false"
    if dtype.is_floating_point:
        value = float(value)
        if math.isfinite(value):
            return f"{name}({value!r})"
        limit = "quiet_NaN" if math.isnan(value) else "infinity"
        sign = "-" if value < 0 else ""
        return f"{sign}std::numeric_limits<{name}>::{limit}()"
    if value != int(value):
        raise NotImplementedError(value)
    return f"{name}({int(value)})"


def _plain(text: str, operands: int, **fixed: Any) -> Callable[..., Form]:
    """The first ``operands`` arguments in the places of ``text``; further ones do not matter.

    Args:
        text: ``{0}``, ``{1}`` ... are the operands.
        operands: how many.
        fixed: values that keyword arguments must have.
    """

    def form(*given: Any, **options: Any) -> Form:
        for name, value in fixed.items():
            if options.get(name, value) != value:
                raise NotImplementedError(name)
        return given[:operands], text.format

    return form


def _sum(sign: str) -> Callable[..., Form]:
    def form(a: Any, b: Any, alpha: Any = 1) -> Form:
        if alpha == 1:
            return (a, b), f"({{0}} {sign} {{1}})".format
        return (a, b, alpha), f"({{0}} {sign} {{2}} * {{1}})".format

    return form


def _reversed_difference(a: Any, b: Any, alpha: Any = 1) -> Form:
    if alpha == 1:
        return (a, b), "({1} - {0})".format
    return (a, b, alpha), "({1} - {2} * {0})".format


def _third(text: str) -> Callable[..., Form]:
    def form(x: Any, a: Any, b: Any, value: Any = 1) -> Form:
        if value == 1:
            return (x, a, b), f"({{0}} + {text})".format
        return (x, a, b, value), f"({{0}} + {{3}} * {text})".format

    return form


def _power(x: Any, exponent: Any) -> Form:
    whole = {1: "{0}", 2: "({0} * {0})", 3: "({0} * {0} * {0})", 0.5: "std::sqrt({0})"}
    if exponent in whole:
        return (x,), whole[exponent].format
    return (x, exponent), "std::pow({0}, {1})".format


def _clamp(x: Any, low: Any = None, high: Any = None) -> Form:
    if low is None:
        return (x, high), "abele::minimum({0}, {1})".format
    if high is None:
        return (x, low), "abele::maximum({0}, {1})".format
    return (x, low, high), "abele::minimum(abele::maximum({0}, {1}), {2})".format


def _gelu(x: Any, approximate: str = "none") -> Form:
    return (x,), f"abele::gelu<{_tangent(approximate)}>({{0}})".format


def _gelu_backward(grad: Any, x: Any, approximate: str = "none") -> Form:
    return (grad, x), f"abele::gelu_backward<{_tangent(approximate)}>({{0}}, {{1}})".format


def _tangent(approximate: str) -> str:
    return "true" if approximate == "tanh" else "false"


def _leaky(x: Any, slope: Any = 0.01) -> Form:
    return (x, slope), "({0} > 0 ? {0} : {0} * {1})".format


def _leaky_backward(grad: Any, x: Any, slope: Any, from_result: bool) -> Form:
    if from_result and slope < 0:
        raise NotImplementedError("slope")
    return (grad, x, slope), "({1} > 0 ? {0} : {0} * {2})".format


def _filled(value: Any) -> Callable[..., Form]:
    return lambda *_, **__: ((value,), "{0}".format)


_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# Exact at both ends, as torch has it.
_LERP = "({2} < 0.5 ? {0} + {2} * ({1} - {0}) : {1} - ({1} - {0}) * (1 - {2}))"

_COPIES = (aten.alias.default, aten.clone.default, aten._to_copy.default, aten.detach.default)
_FLOATING = {
    aten.exp.default: ("abele::exp({0})", 1),
    aten.log.default: ("std::log({0})", 1),
    aten.log1p.default: ("std::log1p({0})", 1),
    aten.sqrt.default: ("std::sqrt({0})", 1),
    aten.rsqrt.default: ("(1 / std::sqrt({0}))", 1),
    aten.reciprocal.default: ("(1 / {0})", 1),
    aten.sigmoid.default: ("abele::sigmoid({0})", 1),
    aten.tanh.default: ("abele::tanh({0})", 1),
    aten.erf.default: ("abele::erf({0})", 1),
    aten.sin.default: ("std::sin({0})", 1),
    aten.cos.default: ("std::cos({0})", 1),
    aten.abs.default: ("std::fabs({0})", 1),
    aten.silu.default: ("({0} * abele::sigmoid({0}))", 1),
    aten.pow.Scalar: ("std::pow({0}, {1})", 2),
    aten.sigmoid_backward.default: ("({0} * (1 - {1}) * {1})", 2),
    aten.tanh_backward.default: ("({0} * (1 - {1} * {1}))", 2),
    aten.lerp.Scalar: (_LERP, 3),
    aten.lerp.Tensor: (_LERP, 3),
}
_ANY = {
    aten.neg.default: ("(-{0})", 1),
    aten.relu.default: ("abele::relu({0})", 1),
    aten.mul.Tensor: ("({0} * {1})", 2),
    aten.mul.Scalar: ("({0} * {1})", 2),
    aten.maximum.default: ("abele::maximum({0}, {1})", 2),
    aten.minimum.default: ("abele::minimum({0}, {1})", 2),
    aten.clamp_min.default: ("abele::maximum({0}, {1})", 2),
    aten.clamp_max.default: ("abele::minimum({0}, {1})", 2),
    aten.threshold_backward.default: ("({1} <= {2} ? 0 : {0})", 3),
}

RULES: dict[Any, Rule] = {
    **{target: Rule(_plain("{0}", 1)) for target in _COPIES},
    **{target: Rule(_plain(*form), floating=True) for target, form in _FLOATING.items()},
    **{target: Rule(_plain(*form)) for target, form in _ANY.items()},
    **{
        getattr(getattr(aten, name), kind): Rule(_plain(f"({{0}} {sign} {{1}})", 2), promoted=True)
        for name, sign in _COMPARED.items()
        for kind in ("Tensor", "Scalar")
    },
    aten.add.Tensor: Rule(_sum("+")),
    aten.add.Scalar: Rule(_sum("+")),
    aten.sub.Tensor: Rule(_sum("-")),
    aten.sub.Scalar: Rule(_sum("-")),
    aten.rsub.Scalar: Rule(_reversed_difference),
    aten.rsub.Tensor: Rule(_reversed_difference),
    aten.div.Tensor: Rule(_plain("({0} / {1})", 2), floating=True),
    aten.div.Scalar: Rule(_plain("({0} / {1})", 2), floating=True),
    aten.addcmul.default: Rule(_third("{1} * {2}")),
    aten.addcdiv.default: Rule(_third("({1} / {2})"), floating=True),
    aten.pow.Tensor_Scalar: Rule(_power, floating=True),
    aten.clamp.default: Rule(_clamp),
    aten.gelu.default: Rule(_gelu, floating=True),
    aten.gelu_backward.default: Rule(_gelu_backward, floating=True),
    aten.leaky_relu.default: Rule(_leaky, floating=True),
    aten.leaky_relu_backward.default: Rule(_leaky_backward, floating=True),
    aten.where.self: Rule(_plain("({0} ? {1} : {2})", 3), mask=True),
    aten.logical_not.default: Rule(_plain("(!{0})", 1), promoted=True),
    aten.ones_like.default: Rule(_filled(1)),
    aten.zeros_like.default: Rule(_filled(0)),
    aten.zeros.default: Rule(_filled(0)),
    aten.ones.default: Rule(_filled(1)),
    aten.full.default: Rule(lambda size, value, **_: ((value,), "{0}".format)),
    aten.full_like.default: Rule(lambda x, value, **_: ((value,), "{0}".format)),
    aten.scalar_tensor.default: Rule(lambda value, **_: ((value,), "{0}".format)),
}
