"""What the text says of values: what a name is given, and which whole number an expression is."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import NamedTuple

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.scopes import names_in, parameters
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.project import Owner
from abele.port.source import Source

_DEPTH = 8  # names that lead to names, at most
_BINDS = m.Assign() | m.AnnAssign() | m.AugAssign() | m.For() | m.AsName() | m.NamedExpr()
_OPERATORS: dict[type[cst.BaseBinaryOp], Callable[[int, int], int]] = {
    cst.Add: operator.add,
    cst.Subtract: operator.sub,
    cst.Multiply: operator.mul,
}


class Value(NamedTuple):
    """An expression of a file, or one element of it.

    Attributes:
        source: the file.
        node: the expression.
        element: its index; None for the whole.
    """

    source: Source
    node: cst.BaseExpression
    element: int | None = None


def values_of(
    things: Things, source: Source, node: cst.BaseExpression, depth: int = _DEPTH
) -> list[Value]:
    """The expressions that an expression may stand for; none where that is not known.

    A name stands for what its one assignment gives it, a parameter for what all calls of its
    function give.

    Args:
        things: what names stand for.
        source: the file.
        node: the expression.
        depth: how many names may lead from one to the next.
    """
    if not isinstance(node, cst.Name):
        return [Value(source, node)]
    values: list[Value] = []
    for each in _given(things, source, node) if depth else ():
        if each is None:
            return []
        inner = [each] if each.element is not None else values_of(things, *each[:2], depth - 1)
        if not inner:
            return []
        values += inner
    return values


def whole_number(
    things: Things, source: Source, node: cst.BaseExpression, depth: int = _DEPTH
) -> int | None:
    """The whole number that an expression is; None where the text does not say one.

    Args:
        things: what names stand for.
        source: the file.
        node: the expression.
        depth: how many names may lead from one to the next.
    """
    if isinstance(node, cst.Integer):
        return node.evaluated_value
    if isinstance(node, cst.BinaryOperation):
        sides = [whole_number(things, source, each, depth) for each in (node.left, node.right)]
        apply = _OPERATORS.get(type(node.operator))
        left, right = sides
        return None if apply is None or left is None or right is None else apply(left, right)
    if not isinstance(node, cst.Name) or not depth:
        return None
    numbers = {
        whole_number(things, each.source, each.node, depth - 1) if each.element is None else None
        for each in values_of(things, source, node, depth)
    }
    return numbers.pop() if len(numbers) == 1 else None


def bindings(things: Things, source: Source, owner: Owner, name: str) -> list[cst.CSTNode]:
    """What gives a variable of a function or module its values.

    Args:
        things: what names stand for.
        source: the file.
        owner: the function or module.
        name: of the variable.
    """
    return [
        each
        for each in findall(owner, _BINDS)
        if _target(each, name) and things.named(source, each, name) is owner
    ]


def _given(things: Things, source: Source, name: cst.Name) -> Iterator[Value | None]:
    """What a name is given; None for what is not known."""
    owner = things.named(source, name, name.value)
    bound = bindings(things, source, owner, name.value)
    if isinstance(owner, cst.FunctionDef) and name.value in {*parameters(owner)}:
        yield from [None] if bound else _given_by_calls(things, owner, name.value)
        return
    if len(bound) != 1 or not isinstance(bound[0], cst.Assign | cst.AnnAssign):
        yield None
        return
    value, target = bound[0].value, _target(bound[0], name.value)
    if value is None or not isinstance(target, cst.Name | cst.Tuple):
        yield None
    elif isinstance(target, cst.Name):
        yield Value(source, value)
    else:
        index = [name.value in names_in(each.value) for each in target.elements].index(True)
        if isinstance(value, cst.Tuple) and len(value.elements) == len(target.elements):
            yield Value(source, value.elements[index].value)
        else:
            yield Value(source, value, index)


def _target(node: cst.CSTNode, name: str) -> cst.BaseExpression | None:
    """The target by which a statement binds a name; None if it does not."""
    if isinstance(node, cst.Assign):
        targets = [each.target for each in node.targets]
    elif isinstance(node, cst.AsName):
        targets = [node.name]
    else:
        assert isinstance(node, cst.AnnAssign | cst.AugAssign | cst.For | cst.NamedExpr)
        targets = [node.target]
    return next((each for each in targets if name in names_in(each)), None)


def _given_by_calls(things: Things, owner: cst.FunctionDef, name: str) -> Iterator[Value | None]:
    """What the calls of a function give for a parameter, or else its default."""
    source = things.file(owner)
    params = [*owner.params.params, *owner.params.kwonly_params]
    default = next((each.default for each in params if each.name.value == name), None)
    calls = things.calls(owner)
    for call, caller in calls.items():
        value = things.arguments(owner, call).get(name) or argument(call, name)
        if value is None and any(each.star for each in call.args):
            yield None
        elif value is not None:
            yield Value(caller, value)
        else:
            yield None if default is None else Value(source, default)
    if not calls:
        yield None
