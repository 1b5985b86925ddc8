"""Conditions under which a loop updates after several batches, such as ``(i + 1) % k == 0``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.flow import reads, writes
from abele.port.analysis.parts import Loop, Statement


class Every(NamedTuple):
    """After how many batches an update is made.

    Attributes:
        number: of batches.
        counter: what counts them.
        start: the counter at the first batch of an epoch, 0 or 1.
        also_last: an update is made after the last batch of an epoch, too.
        named: statements that give parts of the condition names.
        lengths: what has to be as long as the epoch for the condition to be what it seems.
    """

    number: cst.BaseExpression
    counter: cst.Name
    start: int
    also_last: bool
    named: tuple[Statement, ...]
    lengths: tuple[cst.BaseExpression, ...]


def read_every(
    test: cst.BaseExpression, loop: Loop | None, before: Sequence[Statement]
) -> Every | None:
    """What a condition says; None if it is another.

    Args:
        test: the condition.
        loop: through the batches, with ``enumerate``.
        before: the statements before, in the same block, which may give parts of it names.
    """
    counted = counted_by(loop)
    if counted is None:
        return None
    counter, start = counted
    named: list[Statement] = []
    parts = [_meant(each, before, named) for each in _either(_meant(test, before, named))]
    number: cst.BaseExpression | None = None
    lengths: list[cst.BaseExpression] = []
    for each in parts:
        whole = m.extract(each, _EVERY[start])
        if whole is not None and number is None:
            code, used = whole["counter"], whole["number"]
            assert isinstance(code, cst.Name)
            assert isinstance(used, cst.BaseExpression)
            if code.value != counter or not _is_one(whole, used):
                return None
            number = used
            continue
        length = (m.extract(each, _last(counter, start)) or {}).get("length")
        if not isinstance(length, cst.BaseExpression):
            return None
        lengths.append(length)
    if number is None:
        return None
    also_last = bool(lengths)
    return Every(number, cst.Name(counter), start, also_last, tuple(named), tuple(lengths))


def left_over(statement: Statement, every: Every) -> list[cst.BaseExpression]:
    """What has to be as long as an epoch for a condition to be that batches are left over.

    Nothing if a statement has another condition, or does something else than to update.

    Args:
        statement: behind the loop through the batches.
        every: after how many of these an update is made.
    """
    if not isinstance(statement, cst.If) or statement.orelse is not None:
        return []
    lines = statement.body.body
    matched = m.extract(statement.test, _REST) or {}
    length, number = matched.get("length"), matched.get("number")
    if (
        not isinstance(length, cst.BaseExpression)
        or not isinstance(number, cst.BaseExpression)
        or not number.deep_equals(every.number)
        or not all(
            m.matches(each, m.SimpleStatementLine(body=[m.Expr(m.Call())])) for each in lines
        )
    ):
        return []
    return [length]


def counted_by(loop: Loop | None) -> tuple[str, int] | None:
    """The name that counts the turns of a loop, and where it starts; None if there is none."""
    if not isinstance(loop, cst.For) or not m.matches(loop, _NUMBERED):
        return None
    args = cst.ensure_type(loop.iter, cst.Call).args
    start = cst.ensure_type(args[1].value, cst.Integer).evaluated_value if args[1:] else 0
    target = cst.ensure_type(loop.target, cst.Tuple)
    return cst.ensure_type(target.elements[0].value, cst.Name).value, start


def _either(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The conditions of which one is enough."""
    if m.matches(test, m.BooleanOperation(operator=m.Or())):
        both = cst.ensure_type(test, cst.BooleanOperation)
        return [*_either(both.left), *_either(both.right)]
    return [test]


def _meant(
    test: cst.BaseExpression, before: Sequence[Statement], named: list[Statement]
) -> cst.BaseExpression:
    """What a name stands for that one statement of the block gives a condition, noted in a list."""
    if not isinstance(test, cst.Name):
        return test
    given = [each for each in before if test.value in writes(each)]
    if len(given) != 1 or not m.matches(given[0], _ASSIGNED):
        return test
    named.append(given[0])
    (small,) = cst.ensure_type(given[0], cst.SimpleStatementLine).body
    return cst.ensure_type(small, cst.Assign).value


def only_for(named: Statement, block: Sequence[Statement], update: Statement) -> bool:
    """Whether the name that a statement gives is read by a condition of the block alone.

    Args:
        named: the statement.
        block: among which it is.
        update: the condition.
    """
    names = {*writes(named)}
    others = [each for each in block if each is not named and each is not update]
    inside = update.body.body if isinstance(update, cst.If) else ()
    return not any(names & {*reads(each)} for each in (*others, *inside))


def _is_one(matched: Mapping[str, object], number: cst.BaseExpression) -> bool:
    """Whether the number that is divided by is the one that the rest is compared with."""
    again = matched.get("again")
    return not isinstance(again, cst.CSTNode) or again.deep_equals(number)


_NAMED = m.SaveMatchedNode(m.Name(), "counter")
_NUMBER = m.SaveMatchedNode(m.DoNotCare(), "number")
_ZERO = [m.ComparisonTarget(m.Equal(), m.Integer("0"))]
_BUT_ONE = m.BinaryOperation(
    left=m.SaveMatchedNode(m.DoNotCare(), "again"), operator=m.Subtract(), right=m.Integer("1")
)


def _rest_of(counted: Any) -> m.BinaryOperation:
    return m.BinaryOperation(left=counted, operator=m.Modulo(), right=_NUMBER)


def _is_zero(counted: Any) -> tuple[Any, ...]:
    rest = _rest_of(counted)
    return m.Comparison(rest, _ZERO), m.UnaryOperation(operator=m.Not(), expression=rest)


_PLUS_ONE = m.BinaryOperation(left=_NAMED, operator=m.Add(), right=m.Integer("1"))
#: A number of batches that can be divided, by where the counter starts.
_EVERY = {
    0: m.OneOf(
        *_is_zero(_PLUS_ONE),
        m.Comparison(_rest_of(_NAMED), [m.ComparisonTarget(m.Equal(), _BUT_ONE)]),
    ),
    1: m.OneOf(*_is_zero(_NAMED)),
}
_LENGTH = m.Call(func=m.Name("len"), args=[m.Arg(m.SaveMatchedNode(m.DoNotCare(), "length"))])
_SOME = _rest_of(_LENGTH)
#: Batches are left over at the end of an epoch.
_REST = m.OneOf(
    _SOME,
    m.Comparison(_SOME, [m.ComparisonTarget(m.NotEqual() | m.GreaterThan(), m.Integer("0"))]),
)


def _last(counter: str, start: int) -> Any:
    """The batch of a loop is its last."""
    name = m.Name(counter)
    next_one = m.BinaryOperation(left=name, operator=m.Add(), right=m.Integer("1"))
    last = m.BinaryOperation(left=_LENGTH, operator=m.Subtract(), right=m.Integer("1"))
    pairs = [(name, _LENGTH)] if start else [(next_one, _LENGTH), (name, last)]
    both = [*pairs, *((right, left) for left, right in pairs)]
    return m.OneOf(
        *(m.Comparison(left, [m.ComparisonTarget(m.Equal(), right)]) for left, right in both)
    )


_ASSIGNED = m.SimpleStatementLine(body=[m.Assign(targets=[m.AssignTarget(m.Name())])])
_START = m.Arg(m.Integer("0") | m.Integer("1"))
#: A loop that counts its turns.
_NUMBERED = m.For(
    target=m.Tuple(elements=[m.Element(m.Name()), m.Element()]),
    iter=m.Call(func=m.Name("enumerate"), args=[m.Arg(), m.AtMostN(_START, n=1)]),
)
