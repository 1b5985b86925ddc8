"""Translation of elementwise operators to C++ expressions."""

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

#: Types that loops compute with in float32 instead, rounding each result, as torch does.
HALF: dict[torch.dtype, str] = {torch.float16: "abele::Half", torch.bfloat16: "abele::Bfloat"}
COMPUTED: dict[torch.dtype, torch.dtype] = dict.fromkeys(HALF, torch.float32)
#: What C++ calls all of them.
NAMES = {**TYPES, **HALF}

#: Operands of an operator, nodes or numbers, and the expression of their texts.
Form = tuple[Sequence[Any], Callable[..., str]]


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule that translates an elementwise operator to a C++ expression.

    Attributes:
        form: returns operands and expression for the operator's arguments; raises
            ``NotImplementedError`` for unsupported ones.
        promoted: operands are converted to their common type instead of the result's.
        floating: only for results of a floating type.
        mask: the first operand is a bool.
    """

    form: Callable[..., Form]
    promoted: bool = False
    floating: bool = False
    mask: bool = False


def literal(value: Any, dtype: torch.dtype) -> str:
    """Return a Python number as a C++ literal of a dtype.

    Raises:
        NotImplementedError: the number cannot be represented in that dtype.
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


def plain(text: str, operands: int) -> Callable[..., Form]:
    """Return an expression template of an operator's first ``operands`` arguments."""
    return picked(text, *range(operands))


def picked(text: str, *positions: int, defaults: tuple[Any, ...] = ()) -> Callable[..., Form]:
    """Return an expression template of selected operator arguments.

    Args:
        text: ``{0}``, ``{1}`` ... are the operands.
        positions: of the operands among the operator's arguments.
        defaults: default values of all arguments.
    """

    def form(*given: Any, **options: Any) -> Form:
        values = (*given, *defaults[len(given) :])
        if options or len(values) <= max(positions):
            raise NotImplementedError(options)
        return [values[position] for position in positions], text.format

    return form


_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BITS = {"and": "&", "or": "|", "xor": "^"}
_LOGIC = {"and": "({0} && {1})", "or": "({0} || {1})", "xor": "(!{0} != !{1})"}
_INFINITY = "std::numeric_limits<double>::infinity()"


def _inverted(x: Any) -> Form:
    sign = "!" if x.meta["val"].dtype is torch.bool else "~"
    return (x,), f"({sign}{{0}})".format


def _filled(value: Any) -> Callable[..., Form]:
    def form(*_: Any, **__: Any) -> Form:
        return (value,), "{0}".format

    return form


_CHOICE = Rule(plain("({0} ? {1} : {2})", 3), mask=True)
_SECOND = Rule(picked("{0}", 1))
_MASKED_FILL = Rule(picked("({0} ? {1} : {2})", 1, 2, 0), mask=True)

_CHOICES: dict[Any, Rule] = {
    **{
        getattr(getattr(aten, name), kind): Rule(plain(f"({{0}} {sign} {{1}})", 2), promoted=True)
        for name, sign in _COMPARED.items()
        for kind in ("Tensor", "Scalar")
    },
    **{
        getattr(getattr(aten, f"bitwise_{name}"), kind): Rule(plain(f"({{0}} {sign} {{1}})", 2))
        for name, sign in _BITS.items()
        for kind in ("Tensor", "Scalar")
    },
    **{
        getattr(aten, f"logical_{name}").default: Rule(plain(text, 2), promoted=True)
        for name, text in _LOGIC.items()
    },
    aten.logical_not.default: Rule(plain("(!{0})", 1), promoted=True),
    aten.bitwise_not.default: Rule(_inverted),
    aten.isnan.default: Rule(plain("({0} != {0})", 1), promoted=True),
    aten.isinf.default: Rule(plain(f"(abele::magnitude({{0}}) == {_INFINITY})", 1), promoted=True),
    aten.signbit.default: Rule(plain("std::signbit({0})", 1), promoted=True),
    aten.where.self: _CHOICE,
    aten.where.ScalarSelf: _CHOICE,
    aten.where.ScalarOther: _CHOICE,
    aten.where.Scalar: _CHOICE,
    aten.masked_fill.Scalar: _MASKED_FILL,
    aten.masked_fill.Tensor: _MASKED_FILL,
    **{
        getattr(aten, f"{prefix}{name}{suffix}").default: Rule(_filled(value))
        for name, value in (("zeros", 0), ("ones", 1))
        for prefix, suffix in (("", ""), ("", "_like"), ("new_", ""))
    },
    aten.zero.default: Rule(_filled(0)),
    aten._efficientzerotensor.default: Rule(_filled(0)),  # torch's has no memory to point at
    aten.copy.default: _SECOND,
    aten.fill.Scalar: _SECOND,
    aten.fill.Tensor: _SECOND,
    aten.full.default: _SECOND,
    aten.full_like.default: _SECOND,
    aten.new_full.default: Rule(picked("{0}", 2)),
    aten.scalar_tensor.default: Rule(plain("{0}", 1)),
}


def _gelu(x: Any, approximate: str = "none") -> Form:
    return (x,), f"abele::gelu<{_tangent(approximate)}>({{0}})".format


def _gelu_backward(grad: Any, x: Any, approximate: str = "none") -> Form:
    return (grad, x), f"abele::gelu_backward<{_tangent(approximate)}>({{0}}, {{1}})".format


def _tangent(approximate: str) -> str:
    return "true" if approximate == "tanh" else "false"


def _leaky_backward(grad: Any, x: Any, slope: Any, from_result: bool) -> Form:
    if from_result and slope < 0:
        raise NotImplementedError("slope")
    return (grad, x, slope), "({1} > 0 ? {0} : {0} * {2})".format


def _elu(x: Any, alpha: Any = 1, scale: Any = 1, inner: Any = 1) -> Form:
    return (x, alpha * scale, scale, inner), "abele::elu({0}, {1}, {2}, {3})".format


def _celu(x: Any, alpha: Any = 1.0) -> Form:
    return _elu(x, alpha, 1, 1 / alpha)


def _elu_backward(grad: Any, alpha: Any, scale: Any, inner: Any, is_result: bool, x: Any) -> Form:
    below = "({1} + {2})" if is_result else "({2} * abele::exp({1} * {4}))"
    text = f"({{1}} > 0 ? {{0}} * {{3}} : {{0}} * {{4}} * {below})"
    return (grad, x, alpha * scale, scale, inner), text.format


_UNIT = (None, -1.0, 1.0)
_SIMPLE = {
    aten.relu.default: ("abele::relu({0})", 1),
    aten.threshold_backward.default: ("({1} <= {2} ? 0 : {0})", 3),
    aten.hardtanh_backward.default: ("({1} > {2} && {1} < {3} ? {0} : 0)", 4),
    aten.silu.default: ("({0} * abele::sigmoid({0}))", 1),
    aten.silu_backward.default: ("abele::silu_backward({0}, {1})", 2),
    aten.sigmoid_backward.default: ("({0} * (1 - {1}) * {1})", 2),
    aten.tanh_backward.default: ("({0} * (1 - {1} * {1}))", 2),
    aten.softplus_backward.default: ("abele::softplus_backward({0}, {1}, {2}, {3})", 4),
    aten.log_sigmoid_backward.default: ("abele::log_sigmoid_backward({0}, {1}, {2})", 3),
    aten.mish.default: ("abele::mish({0})", 1),
    aten.mish_backward.default: ("abele::mish_backward({0}, {1})", 2),
    aten.hardsigmoid.default: ("abele::hard_sigmoid({0})", 1),
    aten.hardsigmoid_backward.default: ("({1} > -3 && {1} < 3 ? {0} / 6 : 0)", 2),
    aten.hardswish.default: ("({0} * abele::hard_sigmoid({0}))", 1),
    aten.hardswish_backward.default: ("abele::hard_swish_backward({0}, {1})", 2),
    aten._prelu_kernel.default: ("({0} > 0 ? {0} : {1} * {0})", 2),
}


_ACTIVATIONS: dict[Any, Rule] = {
    **{target: Rule(plain(*form), floating=True) for target, form in _SIMPLE.items()},
    aten.gelu.default: Rule(_gelu, floating=True),
    aten.gelu_backward.default: Rule(_gelu_backward, floating=True),
    aten.leaky_relu.default: Rule(
        picked("({0} > 0 ? {0} : {0} * {1})", 0, 1, defaults=(None, 0.01)), floating=True
    ),
    aten.leaky_relu_backward.default: Rule(_leaky_backward, floating=True),
    aten.elu.default: Rule(_elu, floating=True),
    aten.celu.default: Rule(_celu, floating=True),
    aten.elu_backward.default: Rule(_elu_backward, floating=True),
    aten.hardtanh.default: Rule(
        picked("abele::not_above(abele::not_below({0}, {1}), {2})", 0, 1, 2, defaults=_UNIT),
        floating=True,
    ),
    aten.softplus.default: Rule(
        picked("abele::softplus({0}, {1}, {2})", 0, 1, 2, defaults=(None, 1.0, 20.0)), floating=True
    ),
}


def is_whole(value: Any) -> bool:
    """Return whether an operand is an integer or a tensor of integers."""
    if isinstance(value, torch.fx.Node):
        return not value.meta["val"].dtype.is_floating_point
    return isinstance(value, int)


def _either(real: str, whole: str, operands: int) -> Callable[..., Form]:
    """Return a C++ expression template, chosen by whether all operands are integers."""

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
    whole = {1: "{0}", 2: "({0} * {0})", 3: "({0} * {0} * {0})"}
    whole |= {0.5: "std::sqrt({0})", -0.5: "(1 / std::sqrt({0}))"}
    if exponent in whole:
        return (x,), whole[exponent].format
    return (x, exponent), "std::pow({0}, {1})".format


def _clamp(x: Any, low: Any = None, high: Any = None) -> Form:
    if low is None:
        return (x, high), "abele::not_above({0}, {1})".format
    if high is None:
        return (x, low), "abele::not_below({0}, {1})".format
    return (x, low, high), "abele::not_above(abele::not_below({0}, {1}), {2})".format


def _divided(real: str, whole: str) -> Callable[..., Form]:
    """Return an expression template of a quotient; integers need a safe constant divisor."""

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
    aten.clamp_min.Tensor: ("abele::not_below({0}, {1})", 2),
    aten.clamp_max.default: ("abele::not_above({0}, {1})", 2),
}

_ARITHMETIC: dict[Any, Rule] = {
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
}

RULES: dict[Any, Rule] = {**_ACTIVATIONS, **_ARITHMETIC, **_CHOICES}
