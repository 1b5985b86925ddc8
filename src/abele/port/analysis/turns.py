"""Finds what names stand for in each turn of a loop over values that are written out."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.flow import writes
from abele.port.analysis.search import findall
from abele.port.source import Source

#: The names of one turn, each with the expression that it stands for.
Turn: TypeAlias = dict[str, cst.BaseExpression]


def turns(source: Source, loop: cst.For) -> list[Turn]:
    """The turns of a loop over a tuple, list or dictionary that is written out.

    That is ``for phase, loader in (("train", a), ("val", b))``, and the same with ``zip``,
    ``enumerate``, the items of a dictionary, or a variable that is given such a display once.

    Returns:
        Each turn; none if they are not written out.
    """
    rows = _rows(source, loop, loop.iter)
    every = [_bound(loop.target, row) for row in rows]
    return [each for each in every if each]


class Pair(NamedTuple):
    """The names of key and value in a loop over the items of a dictionary, and the dictionary."""

    key: cst.Name
    value: cst.Name
    whole: cst.BaseExpression


def items(loop: cst.For) -> Pair | None:
    """What a loop over the items of a dictionary has; None for another loop."""
    names = m.Tuple(elements=[m.Element(m.Name()), m.Element(m.Name())])
    if not m.matches(loop, m.For(target=names, iter=_ITEMS)):
        return None
    key, value = (each.value for each in cst.ensure_type(loop.target, cst.Tuple).elements)
    func = cst.ensure_type(cst.ensure_type(loop.iter, cst.Call).func, cst.Attribute)
    return Pair(cst.ensure_type(key, cst.Name), cst.ensure_type(value, cst.Name), func.value)


def _rows(
    source: Source, loop: cst.CSTNode, value: cst.BaseExpression
) -> list[list[cst.BaseExpression]]:
    """What a loop goes through; one element each, or several that are a tuple together."""
    value = _display(source, loop, value)
    if isinstance(value, cst.Tuple | cst.List):
        return [_parts(each.value) for each in value.elements]
    if not isinstance(value, cst.Call):
        return []
    if m.matches(value, _ITEMS):
        whole = _display(source, loop, cst.ensure_type(value.func, cst.Attribute).value)
        if isinstance(whole, cst.Dict):
            pairs = [each for each in whole.elements if isinstance(each, cst.DictElement)]
            return [[each.key, each.value] for each in pairs]
    if m.matches(value, m.Call(func=m.Name("enumerate"), args=[m.Arg()])):
        inner = _rows(source, loop, value.args[0].value)
        numbers = [cst.Integer(str(number)) for number in range(len(inner))]
        wholes = [each[0] if len(each) == 1 else _tuple(each) for each in inner]
        return [[number, each] for number, each in zip(numbers, wholes, strict=True)]
    if m.matches(value.func, m.Name("zip")):
        columns = [_display(source, loop, each.value) for each in value.args]
        lists = [each.elements for each in columns if isinstance(each, cst.Tuple | cst.List)]
        if len(lists) == len(columns):
            return [[each.value for each in row] for row in zip(*lists, strict=False)]
    return []


def _display(source: Source, loop: cst.CSTNode, value: cst.BaseExpression) -> cst.BaseExpression:
    """The display that a variable of the function is given, where it is given nothing else."""
    if not isinstance(value, cst.Name):
        return value
    name = value.value
    owner = source.enclosing(loop, cst.FunctionDef) or source.module
    changed = findall(owner, m.AssignTarget(m.Subscript(value=m.Name(name))))
    binds = m.Assign() | m.AugAssign() | m.AnnAssign() | m.For() | m.With()
    bindings = [each for each in findall(owner, binds) if name in writes(each)]
    if (
        changed
        or len(bindings) != 1
        or not m.matches(bindings[0], m.Assign([m.AssignTarget(m.Name())]))
    ):
        return value
    return cst.ensure_type(bindings[0], cst.Assign).value


def _parts(value: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(value, cst.Tuple | cst.List):
        return [each.value for each in value.elements]
    return [value]


def _tuple(values: list[cst.BaseExpression]) -> cst.Tuple:
    return cst.Tuple([cst.Element(each) for each in values])


def _bound(target: cst.BaseExpression, row: list[cst.BaseExpression]) -> Turn:
    """The names that a row gives values."""
    if isinstance(target, cst.Name):
        return {target.value: row[0]} if len(row) == 1 else {}
    if not isinstance(target, cst.Tuple) or len(target.elements) != len(row):
        return {}
    bound: Turn = {}
    for element, value in zip(target.elements, row, strict=True):
        bound |= _bound(
            element.value, _parts(value) if isinstance(element.value, cst.Tuple) else [value]
        )
    return bound


_ITEMS = m.Call(func=m.Attribute(attr=m.Name("items")), args=[])
