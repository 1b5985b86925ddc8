"""Finds the variables that Python statements read and write, and their scopes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator

import libcst as cst
from libcst import matchers as m

from abele.port.project import Owner
from abele.port.source import findall

_PIECES = 4096  # that are remembered


@dataclasses.dataclass(frozen=True)
class Variable:
    """A name in a function or module, or an attribute of an object such as ``self.model``."""

    owner: Owner
    name: str


def local_names(function: cst.FunctionDef) -> set[str]:
    """Return a function's local names, parameters included."""
    outside = findall(function.body, m.Global() | m.Nonlocal())
    declared = {each.name.value for node in outside for each in node.names}
    return {*parameters(function), *writes(function.body)} - declared


def parameters(function: cst.FunctionDef | cst.Lambda) -> Iterator[str]:
    """Return the names of a function's parameters, including ``*`` and ``**`` parameters."""
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


def names_in(target: cst.BaseExpression) -> Iterable[str]:
    """Return the variable names that an assignment target binds."""
    if isinstance(target, cst.Name):
        return [target.value]
    if isinstance(target, cst.Tuple | cst.List):
        return [name for element in target.elements for name in names_in(element.value)]
    return []


class _Names(cst.CSTVisitor):
    """Variable names that are read, bound, and changed in part by Python code."""

    def __init__(self) -> None:
        self.read: dict[str, None] = {}
        self.written: dict[str, None] = {}
        self.changed: dict[str, None] = {}

    def visit_Name(self, node: cst.Name) -> None:
        self.read[node.value] = None

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Annotation(self, node: cst.Annotation) -> bool:
        return False

    def _scope(self, node: cst.CSTNode) -> bool:
        """Record the free variables that a function, class or comprehension reads."""
        inner = _Names()
        for each in node.children:
            each.visit(inner)
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            del inner.read[node.name.value]
            self.written[node.name.value] = None
        self.read |= dict.fromkeys(name for name in inner.read if name not in inner.written)
        return False

    visit_Lambda = visit_FunctionDef = visit_ClassDef = _scope
    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _scope

    def visit_Param(self, node: cst.Param) -> bool:
        self.written[node.name.value] = None
        if node.default is not None:
            node.default.visit(self)
        return False

    def visit_CompFor(self, node: cst.CompFor) -> bool:
        self._target(node.target)
        for each in (node.iter, *node.ifs, node.inner_for_in):
            if each is not None:
                each.visit(self)
        return False

    def visit_AssignTarget(self, node: cst.AssignTarget) -> bool:
        self._target(node.target)
        return False

    def visit_AnnAssign(self, node: cst.AnnAssign) -> bool:
        if node.value is not None:
            node.value.visit(self)
            self._target(node.target)
        return False

    def visit_AugAssign(self, node: cst.AugAssign) -> bool:
        node.value.visit(self)
        node.target.visit(self)
        self._target(node.target)
        return False

    def visit_For(self, node: cst.For) -> bool:
        node.iter.visit(self)
        self._target(node.target)
        node.body.visit(self)
        if node.orelse is not None:
            node.orelse.visit(self)
        return False

    def visit_AsName(self, node: cst.AsName) -> bool:
        self._target(node.name)
        return False

    def _target(self, target: cst.BaseExpression) -> None:
        if isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                self._target(element.value)
        elif isinstance(target, cst.Attribute | cst.Subscript):
            target.visit(self)
            base = target
            while isinstance(base, cst.Attribute | cst.Subscript):
                base = base.value
            if isinstance(base, cst.Name):
                self.changed[base.value] = None
        else:
            self.written |= dict.fromkeys(names_in(target))


def reads(node: cst.CSTNode) -> list[str]:
    """Return the variable names that a syntax node reads, in source order.

    Names that are local to a function or comprehension in it are included.
    """
    return list(_names(node).read)


def needs(*nodes: cst.CSTNode) -> list[str]:
    """Return variable names that statements may read before binding them, in source order."""
    needed: dict[str, None] = {}
    _follow(nodes, set(), needed)
    return list(needed)


def _follow(nodes: Iterable[cst.CSTNode], bound: set[str], needed: dict[str, None]) -> set[str]:
    """Record reads of variables that are not yet bound; return the variables bound afterwards."""
    bound = set(bound)
    for node in nodes:
        if isinstance(node, cst.SimpleStatementLine | cst.BaseSuite | cst.Else):
            parts = node.body.body if isinstance(node, cst.Else) else node.body
            bound = _follow(parts, bound, needed)
        elif isinstance(node, cst.If):
            _note(node.test, bound, needed)
            then = _follow([node.body], bound, needed)
            other = bound if node.orelse is None else _follow([node.orelse], bound, needed)
            bound = then & other
        elif isinstance(node, cst.With):
            for item in node.items:
                _note(item.item, bound, needed)
                bound |= set(writes(item))
            bound = _follow([node.body], bound, needed)
        elif isinstance(node, cst.For):
            _note(node.iter, bound, needed)
            _follow([node.body], bound | set(names_in(node.target)), needed)
            _follow([] if node.orelse is None else [node.orelse], bound, needed)
        else:
            _note(node, bound, needed)
            if isinstance(node, cst.BaseSmallStatement):
                bound |= set(writes(node))
    return bound


def _note(node: cst.CSTNode, bound: set[str], needed: dict[str, None]) -> None:
    needed.update((name, None) for name in reads(node) if name not in bound)


def writes(node: cst.CSTNode) -> list[str]:
    """Return the variable names that a statement binds."""
    return list(_names(node).written)


def changes(node: cst.CSTNode) -> list[str]:
    """Return the names of objects whose attributes or elements a statement assigns."""
    return list(_names(node).changed)


@functools.lru_cache(_PIECES)
def _names(node: cst.CSTNode) -> _Names:
    """Return the cached variable names that a syntax node reads and writes."""
    names = _Names()
    node.visit(names)
    return names
