"""Comparisons, truth values, bits, choices, and tensors of one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from abele.targets.translation.pointwise import Form, Rule, plain

aten = torch.ops.aten

_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BITS = {"and": "&", "or": "|", "xor": "^"}
_LOGIC = {"and": "({0} && {1})", "or": "({0} || {1})", "xor": "(!{0} != !{1})"}
_INFINITY = "std::numeric_limits<double>::infinity()"


def _inverted(x: Any) -> Form:
    sign = "!" if x.meta["val"].dtype is torch.bool else "~"
    return (x,), f"({sign}{{0}})".format


def _shifted(sign: str) -> Callable[..., Form]:
    def form(x: Any, places: Any) -> Form:
        bits = torch.iinfo(x.meta["val"].dtype).bits
        if not isinstance(places, int) or not 0 <= places < bits - 1:
            raise NotImplementedError(places)
        return (x, places), f"({{0}} {sign} {{1}})".format

    return form


def _masked_fill(x: Any, mask: Any, value: Any) -> Form:
    return (mask, value, x), "({0} ? {1} : {2})".format


def _filled(value: Any) -> Callable[..., Form]:
    def form(*_: Any, **__: Any) -> Form:
        return (value,), "{0}".format

    return form


def _second(_: Any, value: Any, *__: Any, **___: Any) -> Form:
    return (value,), "{0}".format


def _third(_: Any, __: Any, value: Any, *___: Any, **____: Any) -> Form:
    return (value,), "{0}".format


_CHOICE = Rule(plain("({0} ? {1} : {2})", 3), mask=True)
_SECOND = Rule(_second)
_THIRD = Rule(_third)

RULES: dict[Any, Rule] = {
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
    aten.__lshift__.Scalar: Rule(_shifted("<<")),
    aten.__rshift__.Scalar: Rule(_shifted(">>")),
    aten.isnan.default: Rule(plain("({0} != {0})", 1), promoted=True),
    aten.isinf.default: Rule(plain(f"(abele::magnitude({{0}}) == {_INFINITY})", 1), promoted=True),
    aten.signbit.default: Rule(plain("std::signbit({0})", 1), promoted=True),
    aten.where.self: _CHOICE,
    aten.where.ScalarSelf: _CHOICE,
    aten.where.ScalarOther: _CHOICE,
    aten.where.Scalar: _CHOICE,
    aten.masked_fill.Scalar: Rule(_masked_fill, mask=True),
    aten.masked_fill.Tensor: Rule(_masked_fill, mask=True),
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
    aten.new_full.default: _THIRD,
    aten.scalar_tensor.default: Rule(plain("{0}", 1)),
}
