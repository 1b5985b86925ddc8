"""Finds the function or module whose variable a name is, and what binds it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import libcst as cst

from abele.port import tree
from abele.port.project import Owner


@dataclasses.dataclass(frozen=True)
class Variable:
    """A name in a function or module, or an attribute of an object such as ``self.model``."""

    owner: Owner
    name: str


def local_names(function: cst.FunctionDef) -> set[str]:
    """Return a function's local names, parameters included."""
    bound = _Bound()
    tree.visit(function.body, bound)
    return {*parameters(function), *bound.names} - bound.outside


def parameters(function: cst.FunctionDef) -> Iterator[str]:
    """Return the names of a function's parameters, with those of ``*`` and ``**``."""
    params = function.params
    for each in (*params.posonly_params, *params.params, *params.kwonly_params):
        yield each.name.value
    for star in (params.star_arg, params.star_kwarg):
        if isinstance(star, cst.Param):
            yield star.name.value


def is_method(function: cst.FunctionDef) -> bool:
    """Return whether a function's first parameter is named ``self`` or ``cls``."""
    params = function.params.params
    return bool(params) and params[0].name.value in ("self", "cls")


class _Bound(cst.CSTVisitor):
    """Names that a function's statements bind, and those that they take from outside."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.outside: set[str] = set()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        self.names.add(node.name.value)
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        self.names.add(node.name.value)
        return False

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        return False

    def visit_Global(self, node: cst.Global) -> None:
        self.outside.update(each.name.value for each in node.names)

    def visit_Nonlocal(self, node: cst.Nonlocal) -> None:
        self.outside.update(each.name.value for each in node.names)

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        self.names.update(names_in(node.target))

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        self.names.update(names_in(node.target))

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self.names.update(names_in(node.target))

    def visit_For(self, node: cst.For) -> None:
        self.names.update(names_in(node.target))

    def visit_AsName(self, node: cst.AsName) -> None:
        self.names.update(names_in(node.name))


def names_in(target: cst.BaseExpression) -> Iterable[str]:
    """Return the names that an assignment to a target binds."""
    if isinstance(target, cst.Name):
        return [target.value]
    if isinstance(target, cst.Tuple | cst.List):
        return [name for element in target.elements for name in names_in(element.value)]
    if isinstance(target, cst.StarredElement):
        return names_in(target.value)
    return []
