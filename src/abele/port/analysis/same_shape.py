"""Finds out whether the inputs of a repeated call have one shape, as far as the text says."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Set

import libcst as cst
from libcst import matchers as m

from abele.port.analysis import batches
from abele.port.analysis.calls import SAME
from abele.port.analysis.flow import reads, writes
from abele.port.analysis.kinds import Thing
from abele.port.analysis.scopes import names_in, parameters
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.project import Owner
from abele.port.source import Source

_BINDS = m.Assign() | m.AnnAssign() | m.AugAssign() | m.NamedExpr()
_SAME = m.OneOf(*map(m.Name, sorted(SAME)))


class Shapes:
    """Follows the inputs of calls to where they get their shapes."""

    def __init__(self, things: Things, even: Set[Thing]):
        """Begin.

        Args:
            things: what the program's names stand for.
            even: loaders of which all batches have one size.
        """
        self._things, self._even = things, even
        self._seen: set[tuple[Owner, str]] = set()

    def is_one(self, source: Source, call: cst.Call) -> bool:
        """Whether nothing in the program gives the inputs of a call another shape."""
        self._seen.clear()
        return all(self._is_fixed(source, each.value) for each in call.args)

    def _is_fixed(self, source: Source, value: cst.BaseExpression) -> bool:
        """Whether all that an expression reads is the same, or of one shape, in each run."""
        inner = {name for each in findall(value, m.CompFor()) for name in names_in(each.target)}
        names = [each for each in reads(value) if each not in inner and not hasattr(builtins, each)]
        return all(self._is_fixed_name(source, value, name) for name in names)

    def _is_fixed_name(self, source: Source, at: cst.CSTNode, name: str) -> bool:
        if name == "self":
            return all(self._is_fixed_attribute(source, each) for each in findall(at, _OF_SELF))
        owner = self._things.named(source, at, name)
        if (owner, name) in self._seen:
            return True
        self._seen.add((owner, name))
        is_parameter = isinstance(owner, cst.FunctionDef) and name in parameters(owner)
        if (
            isinstance(owner, cst.FunctionDef)
            and is_parameter
            and not self._is_given_one(owner, name)
        ):
            return False
        inner = [each for each in _comprehensions(source, at) if name in names_in(each.target)]
        if inner:
            return not self._varies(source, inner[0])
        turns = [each for each in findall(owner, m.For()) if name in names_in(each.target)]
        if any(self._is_in(source, owner, each) and self._varies(source, each) for each in turns):
            return False
        return all(
            self._is_fixed_value(source, owner, name, each) for each in findall(owner, _BINDS)
        )

    def _varies(self, source: Source, loop: cst.For | cst.CompFor) -> bool:
        """Whether the turns of a loop may have values of several shapes."""
        loaders = batches.loaders_of(self._things, source, loop)
        return not loaders or not loaders <= self._even

    def _is_fixed_value(self, source: Source, owner: Owner, name: str, node: cst.CSTNode) -> bool:
        """Whether a statement gives a name of a function, if it does, what has one shape."""
        if name not in writes(node) or not self._is_in(source, owner, node):
            return True
        value = _value_for(node, name)
        if not isinstance(value, cst.BaseExpression):
            return False
        again = isinstance(node, cst.AugAssign) or name in reads(value)
        moved = m.matches(value, m.Call(func=m.Attribute(value=m.Name(name), attr=_SAME)))
        if again and moved:
            return True
        if again and source.enclosing(node, cst.For, cst.While) is not None:
            return False
        return self._is_fixed(source, value)

    def _is_in(self, source: Source, owner: Owner, node: cst.CSTNode) -> bool:
        return self._things.owner(source, node) is owner

    def _is_given_one(self, function: cst.FunctionDef, name: str) -> bool:
        """Whether a function is given the same expression for a parameter in all its calls."""
        values = {
            (caller.code(value), caller, value)
            for call, caller in self._things.calls(function).items()
            for each, value in self._things.arguments(function, call).items()
            if each == name
        }
        return len({text for text, _, _ in values}) == 1 and all(
            self._is_fixed(caller, value) for _, caller, value in values
        )

    def _is_fixed_attribute(self, source: Source, attribute: cst.Attribute) -> bool:
        """Whether an attribute of ``self`` gets one value."""
        same = m.AssignTarget(m.Attribute(value=m.Name("self"), attr=m.Name(attribute.attr.value)))
        return len(findall(source.module, same)) <= 1


def _comprehensions(source: Source, node: cst.CSTNode) -> Iterator[cst.CompFor]:
    """The loops of comprehensions around a node, in its function."""
    for each in source.above(node):
        if isinstance(each, cst.FunctionDef):
            break
        if isinstance(each, cst.BaseComp):
            yield from findall(each.for_in, m.CompFor())


def _value_for(node: cst.CSTNode, name: str) -> object:
    """What a statement gives a name: its own part, where several names are given one each."""
    value = getattr(node, "value", None)
    if isinstance(node, cst.Assign) and isinstance(value, cst.Tuple):
        target = node.targets[0].target
        if isinstance(target, cst.Tuple) and len(target.elements) == len(value.elements):
            parts = zip(target.elements, value.elements, strict=True)
            return next((part.value for one, part in parts if name in names_in(one.value)), value)
    return value


_OF_SELF = m.Attribute(value=m.Name("self"))
