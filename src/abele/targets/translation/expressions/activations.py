"""Activations, their gradients, and losses of single elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from abele.targets.translation.pointwise import Form, Rule, plain

aten = torch.ops.aten


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


def _elu(x: Any, alpha: Any = 1, scale: Any = 1, inner: Any = 1) -> Form:
    return (x, alpha * scale, scale, inner), "abele::elu({0}, {1}, {2}, {3})".format


def _celu(x: Any, alpha: Any = 1.0) -> Form:
    return _elu(x, alpha, 1, 1 / alpha)


def _elu_backward(grad: Any, alpha: Any, scale: Any, inner: Any, is_result: bool, x: Any) -> Form:
    below = "({1} + {2})" if is_result else "({2} * abele::exp({1} * {4}))"
    text = f"({{1}} <= 0 ? {{0}} * {{4}} * {below} : {{0}} * {{3}})"
    return (grad, x, alpha * scale, scale, inner), text.format


def _with_defaults(text: str, *defaults: float) -> Callable[..., Form]:
    """The last arguments may be missing."""

    def form(x: Any, *given: Any) -> Form:
        return (x, *given, *defaults[len(given) :]), text.format

    return form


_SIMPLE = {
    aten.relu.default: ("abele::relu({0})", 1),
    aten.threshold_backward.default: ("({1} <= {2} ? 0 : {0})", 3),
    aten.hardtanh_backward.default: ("({1} <= {2} || {1} >= {3} ? 0 : {0})", 4),
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
    aten.softshrink_backward.default: ("({1} >= -{2} && {1} <= {2} ? 0 : {0})", 3),
    aten.hardshrink_backward.default: ("({1} >= -{2} && {1} <= {2} ? 0 : {0})", 3),
}


def _logit_backward(grad: Any, x: Any, eps: Any = None) -> Form:
    slope = "{0} / ({1} * (1 - {1}))"
    if eps is None or eps < 0:
        return (grad, x), f"({{1}} < 0 || {{1}} > 1 ? {{1}} * NAN : {slope})".format
    return (grad, x, eps), f"({{1}} < {{2}} || {{1}} > 1 - {{2}} ? 0 : {slope})".format


RULES: dict[Any, Rule] = {
    **{target: Rule(plain(*form), floating=True) for target, form in _SIMPLE.items()},
    aten.gelu.default: Rule(_gelu, floating=True),
    aten.gelu_backward.default: Rule(_gelu_backward, floating=True),
    aten.leaky_relu.default: Rule(_leaky, floating=True),
    aten.leaky_relu_backward.default: Rule(_leaky_backward, floating=True),
    aten.elu.default: Rule(_elu, floating=True),
    aten.celu.default: Rule(_celu, floating=True),
    aten.elu_backward.default: Rule(_elu_backward, floating=True),
    aten.logit_backward.default: Rule(_logit_backward, floating=True),
    aten.hardtanh.default: Rule(
        _with_defaults("abele::not_above(abele::not_below({0}, {1}), {2})", -1.0, 1.0),
        floating=True,
    ),
    aten.softplus.default: Rule(
        _with_defaults("abele::softplus({0}, {1}, {2})", 1.0, 20.0), floating=True
    ),
    aten.softshrink.default: Rule(
        _with_defaults(
            "({0} > {1} ? {0} - {1} : {0} < -{1} ? {0} + {1} : {0} != {0} ? {0} : 0)", 0.5
        ),
        floating=True,
    ),
    aten.hardshrink.default: Rule(
        _with_defaults("({0} >= -{1} && {0} <= {1} ? 0 : {0})", 0.5), floating=True
    ),
}
