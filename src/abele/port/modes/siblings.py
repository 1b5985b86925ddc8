"""Adds the new mode wherever a program compares with CPU, or lists it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.search import findall
from abele.port.modes.switch import Switch, members
from abele.port.source import Source


def with_siblings(module: cst.Module, switch: Switch, source: Source) -> cst.Module:
    """A file in which the new mode goes with CPU.

    Args:
        module: what the file has become.
        switch: of the program.
        source: the file as it was.
    """
    names = switch.names(source)
    module = module.visit(_Siblings(switch, names)) if names else module
    return module.visit(_Member(switch)) if source is switch.source else module


def places(source: Source, switch: Switch) -> Iterator[cst.CSTNode]:
    """The nodes of a file where CPU is compared or listed."""
    names = switch.names(source)
    for node in findall(source.module, m.Comparison() | m.Dict() | m.List() | m.Tuple() | m.Set()):
        changed = node.visit(_Siblings(switch, names)) if names else node
        if isinstance(changed, cst.CSTNode) and not changed.deep_equals(node):
            inner = findall(node, m.Comparison() | m.Dict() | m.List() | m.Tuple() | m.Set())
            if not any(each is not node and _changes(each, switch, names) for each in inner):
                yield node


def _changes(node: cst.CSTNode, switch: Switch, names: Sequence[str]) -> bool:
    changed = node.visit(_Siblings(switch, names))
    return isinstance(changed, cst.CSTNode) and not changed.deep_equals(node)


class _Siblings(cst.CSTTransformer):
    def __init__(self, switch: Switch, names: Sequence[str]):
        super().__init__()
        self._switch = switch
        self._like = [f"{name}.{switch.like}" for name in names]
        self._new = {f"{name}.{switch.like}": f"{name}.{switch.new}" for name in names}

    def _named(self, node: cst.CSTNode) -> str:
        """The text of an expression that is the member for CPU; ``""`` for any other."""
        code = cst.Module([]).code_for_node(node) if isinstance(node, cst.Attribute) else ""
        return code if code in self._new else ""

    def leave_Comparison(self, original_node: Any, updated_node: cst.Comparison) -> Any:
        """``mode == CPU`` becomes ``mode in (CPU, NEW)``."""
        if len(updated_node.comparisons) != 1:
            return updated_node
        (target,) = updated_node.comparisons
        left, right, operator = updated_node.left, target.comparator, target.operator
        if self._named(left):
            left, right = right, left
        name = self._named(right)
        equal = isinstance(operator, cst.Equal | cst.Is)
        if not name or not (equal or isinstance(operator, cst.NotEqual | cst.IsNot)):
            return updated_node
        word = "in" if equal else "not in"
        code = cst.Module([]).code_for_node(left)
        made: Any = cst.parse_expression(f"{code} {word} ({name}, {self._new[name]})")
        return made.with_changes(lpar=updated_node.lpar, rpar=updated_node.rpar)

    def leave_MatchValue(self, original_node: Any, updated_node: cst.MatchValue) -> Any:
        """``case CPU`` becomes ``case CPU | NEW``."""
        name = self._named(updated_node.value)
        if not name:
            return updated_node
        text = f"match x:\n    case {name} | {self._new[name]}:\n        pass\n"
        statement: Any = cst.parse_statement(text)
        return statement.cases[0].pattern

    def leave_Tuple(self, original_node: Any, updated_node: Any) -> Any:
        return self._listed(updated_node)

    def leave_List(self, original_node: Any, updated_node: Any) -> Any:
        return self._listed(updated_node)

    def leave_Set(self, original_node: Any, updated_node: Any) -> Any:
        return self._listed(updated_node)

    def leave_Dict(self, original_node: Any, updated_node: Any) -> Any:
        keys = [getattr(each, "key", None) for each in updated_node.elements]
        return self._added(updated_node, keys, "key")

    def _listed(self, node: Any) -> Any:
        return self._added(node, [each.value for each in node.elements], "value")

    def _added(self, node: Any, named: Sequence[Any], field: str) -> Any:
        """A display with the new mode after CPU, unless it is there already."""
        codes = [cst.Module([]).code_for_node(each) for each in named if each is not None]
        elements: list[Any] = []
        for element, each in zip(node.elements, named, strict=True):
            elements.append(element)
            name = "" if each is None else self._named(each)
            if name and self._new[name] not in codes:
                elements[-1] = element.with_changes(comma=_COMMA)
                added = element.with_changes(**{field: cst.parse_expression(self._new[name])})
                elements.append(added)
        return node if len(elements) == len(node.elements) else node.with_changes(elements=elements)


_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


class _Member(cst.CSTTransformer):
    """Adds the member to the enumeration."""

    def __init__(self, switch: Switch):
        super().__init__()
        self._switch = switch

    def leave_ClassDef(self, original_node: Any, updated_node: cst.ClassDef) -> Any:
        known = members(updated_node)
        same = updated_node.name.value == self._switch.cls.name.value
        if not same or self._switch.new in known:
            return updated_node
        body = list(updated_node.body.body)
        last = max(i for i, each in enumerate(body) if _assigns(each, known))
        text = f"{self._switch.new:<{_width(body[last])}} = {_value(self._switch.new, known)}"
        body[last + 1 : last + 1] = [cst.parse_statement(text)]
        return updated_node.with_changes(body=updated_node.body.with_changes(body=body))


def _assigns(statement: Any, names: Any) -> bool:
    return any(
        m.matches(statement, m.SimpleStatementLine([m.Assign([m.AssignTarget(m.Name(name))])]))
        for name in names
    )


def _width(statement: Any) -> int:
    """How wide names are in a column of members; 0 if these are not below each other."""
    target = statement.body[0].targets[0]
    space = len(target.whitespace_before_equal.value)
    return len(target.target.value) + space - 1 if space > 1 else 0


def _value(new: str, known: dict[str, cst.BaseExpression]) -> str:
    """A value of the kind that the others have, and that none of them has."""
    values = list(known.values())
    if all(isinstance(each, cst.Integer) for each in values):
        return str(max(int(cst.ensure_type(each, cst.Integer).value) for each in values) + 1)
    if all(isinstance(each, cst.SimpleString) for each in values):
        first = cst.ensure_type(values[0], cst.SimpleString)
        text = str(first.evaluated_value)
        quote = first.quote
        return f"{quote}{new.lower() if text.islower() else new}{quote}"
    return cst.Module([]).code_for_node(values[-1])
