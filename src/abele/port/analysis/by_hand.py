"""Recognises updates written by hand: ``p.data.add_(p.grad, alpha=-rate)`` for each parameter."""

from __future__ import annotations

import dataclasses
from typing import cast

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.search import findall

_GRADIENT = m.Attribute(attr=m.Name("grad")) | m.Attribute(
    value=m.Attribute(attr=m.Name("grad")), attr=m.Name("data")
)
_PRODUCT = m.BinaryOperation(operator=m.Multiply(), left=_GRADIENT) | m.BinaryOperation(
    operator=m.Multiply(), right=_GRADIENT
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByHand:
    """Stochastic gradient descent, written out.

    Attributes:
        model: the expression whose parameters are updated.
        rate: by which gradients are multiplied.
        rounded: the product is rounded before it is added, as in ``p -= rate * p.grad``.
    """

    model: cst.BaseExpression
    rate: cst.BaseExpression
    rounded: bool


def read_by_hand(statement: cst.CSTNode) -> ByHand | None:
    """The update that a statement makes; None if it makes none of this shape."""
    loop = _loop(statement)
    model = None if loop is None else _model(loop)
    if loop is None or model is None:
        return None
    rates: list[cst.BaseExpression] = []
    for each in loop.body.body:
        if forgets(each):
            continue
        rate = _rate(each, cst.ensure_type(loop.target, cst.Name).value)
        if rate is None:
            return None
        rates.append(rate)
    if len(rates) != 1:
        return None
    products = findall(loop.body, _PRODUCT)
    return ByHand(model=model, rate=rates[0], rounded=bool(products))


def forgets_all(statement: cst.CSTNode) -> bool:
    """Whether a statement does nothing but forget the gradients of parameters."""
    loop = _loop(statement)
    return loop is not None and _model(loop) is not None and all(map(forgets, loop.body.body))


def forgets(statement: cst.CSTNode) -> bool:
    """Whether a statement forgets the gradient of a parameter."""
    if isinstance(statement, cst.If) and statement.orelse is None:
        return bool(findall(statement.test, _GRADIENT)) and all(map(forgets, statement.body.body))
    none = m.Assign(targets=[m.AssignTarget(_GRADIENT)], value=m.Name("None"))
    zero = m.Expr(m.Call(func=m.Attribute(value=_GRADIENT, attr=m.Name("zero_"))))
    return m.matches(statement, m.SimpleStatementLine(body=[none | zero]))


def _loop(statement: cst.CSTNode) -> cst.For | None:
    """The loop over parameters that a statement is, perhaps under ``torch.no_grad()``."""
    if m.matches(statement, m.With(items=[m.WithItem(item=m.Call(func=_NO_GRAD))])):
        statement = cst.ensure_type(statement, cst.With)
        if len(statement.body.body) != 1:
            return None
        statement = statement.body.body[0]
    simple = isinstance(statement, cst.For) and isinstance(statement.target, cst.Name)
    return cast("cst.For", statement) if simple else None


_NO_GRAD = m.Attribute(attr=m.Name("no_grad")) | m.Name("no_grad")


def _model(loop: cst.For) -> cst.BaseExpression | None:
    """The model whose parameters a loop goes through."""
    parameters = m.Call(func=m.Attribute(attr=m.Name("parameters")), args=[])
    if not m.matches(loop.iter, parameters):
        return None
    return cst.ensure_type(cst.ensure_type(loop.iter, cst.Call).func, cst.Attribute).value


def _rate(statement: cst.CSTNode, name: str) -> cst.BaseExpression | None:
    """The rate of an update of one parameter; None if it is another statement."""
    data = m.Name(name) | m.Attribute(value=m.Name(name), attr=m.Name("data"))
    if not m.matches(statement, m.SimpleStatementLine(body=[m.DoNotCare()])):
        return None
    small = cst.ensure_type(statement, cst.SimpleStatementLine).body[0]
    if isinstance(small, cst.AugAssign) and m.matches(small.target, data):
        if isinstance(small.operator, cst.SubtractAssign):
            return _factor(small.value)
        return _negated(_factor(small.value)) if _adds(small) else None
    if isinstance(small, cst.Assign) and m.matches(small.targets[0].target, data):
        difference = m.BinaryOperation(left=data, operator=m.Subtract())
        if m.matches(small.value, difference):
            return _factor(cst.ensure_type(small.value, cst.BinaryOperation).right)
        return None
    if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
        return _of_call(small.value, data)
    return None


def _adds(small: cst.AugAssign) -> bool:
    return isinstance(small.operator, cst.AddAssign)


def _of_call(call: cst.Call, data: m.BaseMatcherNode) -> cst.BaseExpression | None:
    """The rate of ``add_`` or ``sub_``."""
    names = m.Name("add_") | m.Name("sub_")
    if not m.matches(call.func, m.Attribute(value=data, attr=names)):  # type: ignore[arg-type]
        return None
    subtracts = m.matches(call.func, m.Attribute(attr=m.Name("sub_")))
    alpha = argument(call, "alpha")
    values = [each.value for each in call.args if each.keyword is None]
    if len(values) == 2 and m.matches(values[1], _GRADIENT):  # of torch before 1.5
        rate: cst.BaseExpression | None = values[0]
    elif len(values) == 1 and alpha is not None:
        rate = alpha if m.matches(values[0], _GRADIENT) else None
    else:
        rate = _factor(values[0]) if len(values) == 1 else None
    return rate if subtracts or rate is None else _negated(rate)


def _factor(value: cst.BaseExpression) -> cst.BaseExpression | None:
    """What a gradient is multiplied by."""
    if m.matches(value, m.BinaryOperation(operator=m.Multiply())):
        product = cst.ensure_type(value, cst.BinaryOperation)
        for one, other in ((product.left, product.right), (product.right, product.left)):
            if m.matches(one, _GRADIENT) and not findall(other, _GRADIENT):
                return other
    if m.matches(value, m.UnaryOperation(operator=m.Minus())):
        return _negated(_factor(cst.ensure_type(value, cst.UnaryOperation).expression))
    return None


def _negated(rate: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """A rate with its sign removed; None if it has none, as such an update would ascend."""
    if rate is not None and m.matches(rate, m.UnaryOperation(operator=m.Minus())):
        return cst.ensure_type(rate, cst.UnaryOperation).expression
    return None
