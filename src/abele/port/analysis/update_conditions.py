"""Conditions under which a loop updates after several batches: ``(i + 1) % k == 0``."""

from __future__ import annotations

from typing import Any, NamedTuple

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.parts import Loop


class Every(NamedTuple):
    """After how many batches an update is made.

    Attributes:
        number: of batches.
        counter: what counts them.
        start: the counter at the first batch of an epoch, 0 or 1.
    """

    number: cst.BaseExpression
    counter: cst.Name
    start: int


def read_every(test: cst.BaseExpression, loop: Loop | None) -> Every | None:
    """Return what the condition of an update in a loop over batches says; None if it is another."""
    if not isinstance(loop, cst.For) or not m.matches(loop, _NUMBERED):
        return None
    args = cst.ensure_type(loop.iter, cst.Call).args
    start = cst.ensure_type(args[1].value, cst.Integer).evaluated_value if args[1:] else 0
    counter = cst.ensure_type(cst.ensure_type(loop.target, cst.Tuple).elements[0].value, cst.Name)
    counted: Any = m.Name(counter.value)
    if not start:
        counted = m.BinaryOperation(left=counted, operator=m.Add(), right=m.Integer("1"))
    number = m.SaveMatchedNode(m.DoNotCare(), "number")
    rest = m.BinaryOperation(left=counted, operator=m.Modulo(), right=number)
    zero = m.Comparison(rest, [m.ComparisonTarget(m.Equal(), m.Integer("0"))])
    negated = m.UnaryOperation(operator=m.Not(), expression=rest)
    found = (m.extract(test, m.OneOf(zero, negated)) or {}).get("number")
    return Every(found, counter, start) if isinstance(found, cst.BaseExpression) else None


_START = m.Arg(m.Integer("0") | m.Integer("1"))
#: A loop that counts its turns.
_NUMBERED = m.For(
    target=m.Tuple(elements=[m.Element(m.Name()), m.Element()]),
    iter=m.Call(func=m.Name("enumerate"), args=[m.Arg(), m.AtMostN(_START, n=1)]),
)
