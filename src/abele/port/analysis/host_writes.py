"""Finds what a program changes on the host: weights, and other parts of a model or a loss."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.calls import targets_of
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import Statement, statement_of
from abele.port.analysis.scopes import names_in, parameters
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.project import Project
from abele.port.source import Source


class Part(enum.Enum):
    """What a piece of a program changes of a model."""

    WEIGHTS = "the values of weights"
    TRAINED = "which weights are trained"
    REST = "an attribute"


@dataclasses.dataclass(frozen=True)
class HostWrite:
    """A piece of a program that changes a model, or a loss, on the host.

    Attributes:
        node: the piece.
        statement: with which the change is complete: a loop over weights as a whole.
        things: one of which it changes, with those around it.
        part: what it changes.
    """

    node: cst.CSTNode
    statement: Statement
    things: frozenset[Thing]
    part: Part


@dataclasses.dataclass(frozen=True)
class _Root:
    """What an expression is, or is a part of.

    Attributes:
        things: that it is, or whose part it is.
        whole: it is one of them.
        loop: that goes through the parts of them, if one does.
    """

    things: frozenset[Thing]
    whole: bool
    loop: cst.For | None = None


_WEIGHTS = ("parameters", "named_parameters", "buffers", "named_buffers")
_LAYERS = ("modules", "named_modules", "children", "named_children")
_PASSES = ("enumerate", "list", "tuple", "reversed", "filter")
_SET_WEIGHTS = ("reset_parameters", "load_state_dict")
_AS_BEFORE = ("__init__", "forward", "train", "eval", "state_dict", "parameters", "zero_grad")


def host_writes(project: Project, things: Things, source: Source) -> Iterator[HostWrite]:
    """What a file changes of its models and losses on the host, in the order of the text."""
    return _Reader(project, things, source).read()


class _Reader:
    def __init__(self, project: Project, things: Things, source: Source):
        self._project, self._things, self._source = project, things, source
        self._seen: list[cst.FunctionDef] = []  # whose callers are being asked

    def read(self) -> Iterator[HostWrite]:
        for node in findall(self._source.module, m.Assign() | m.AugAssign() | m.Call()):
            for part, changed in self._changed(node):
                root = self._root(changed)
                if root.things:
                    place = root.loop or statement_of(self._source, node)
                    yield HostWrite(node, place, root.things, part)

    def _changed(self, node: cst.CSTNode) -> Iterator[tuple[Part, cst.BaseExpression]]:
        """What a piece changes, with the expression that it is a part of."""
        if isinstance(node, cst.Assign):
            for each in node.targets:
                yield from self._by_target(each.target)
        elif isinstance(node, cst.AugAssign):
            if isinstance(node.target, cst.Name) and self._root(node.target).loop is not None:
                yield Part.WEIGHTS, node.target
            yield from self._by_target(node.target)
        elif isinstance(node, cst.Call):
            yield from self._by_call(node)

    def _by_target(self, target: cst.BaseExpression) -> Iterator[tuple[Part, cst.BaseExpression]]:
        """What an assignment to an attribute or element changes."""
        if isinstance(target, cst.Attribute):
            name = target.attr.value
            if name == "requires_grad":
                yield Part.TRAINED, target.value
            elif name == "data":
                yield Part.WEIGHTS, target.value
            elif name not in ("grad", "training") and not _is_self(target):
                yield Part.REST, target.value
        elif isinstance(target, cst.Subscript) and not findall(target.value, _GRADIENT):
            of_name = findall(target.slice[0], m.SimpleString())
            root = self._root(target.value)
            weights = not of_name and not root.whole
            yield Part.WEIGHTS if weights else Part.REST, target.value

    def _by_call(self, call: cst.Call) -> Iterator[tuple[Part, cst.BaseExpression]]:
        func, values = call.func, [each.value for each in call.args]
        name = self._source.imported(func)
        if name.startswith("torch.nn.init.") and values:
            yield Part.WEIGHTS, values[0]
        elif name.endswith(".vector_to_parameters") and len(values) > 1:
            yield Part.WEIGHTS, values[1]
        elif (name.startswith("torch.nn.utils.prune.") and values) or (
            m.matches(func, m.Name("setattr")) and len(values) == 3
        ):
            yield Part.REST, values[0]
        elif isinstance(func, cst.Attribute) and not name and not findall(func, _GRADIENT):
            yield from self._by_method(call, func)

    def _by_method(
        self, call: cst.Call, func: cst.Attribute
    ) -> Iterator[tuple[Part, cst.BaseExpression]]:
        name = func.attr.value
        if name == "requires_grad_":
            yield Part.TRAINED, func.value
        elif name in _SET_WEIGHTS[:1] or (name == "apply" and self._sets_weights(call)):
            yield Part.WEIGHTS, func.value
        elif name.endswith("_") and not name.endswith("__"):
            root = self._root(func.value)
            if not root.whole:
                yield Part.WEIGHTS, func.value
        elif name not in _AS_BEFORE:
            method = self._method(func)
            for part in () if method is None else sorted(self._inside(method), key=str):
                yield part, func.value

    def _sets_weights(self, call: cst.Call) -> bool:
        """Whether a function that ``apply`` is given writes weights."""
        value = call.args[0].value if call.args else None
        body = value if isinstance(value, cst.Lambda) else None
        if isinstance(value, cst.Name):
            named = m.FunctionDef(name=m.Name(value.value))
            body = next(iter(findall(self._source.module, named)), None)
        return body is not None and any(
            each.attr.value.endswith("_") or each.attr.value in _SET_WEIGHTS
            for each in findall(body, m.Attribute())
        )

    def _method(self, func: cst.Attribute) -> cst.FunctionDef | None:
        """The method of a model's, or a loss's, class that is called."""
        for thing in self._things.of(self._source, func.value):
            made = thing.made.func if isinstance(thing.made, cst.Call) else None
            cls = None if made is None else self._project.class_of(thing.source, made)
            if cls is not None and self._project.is_module(cls):
                return self._project.method(cls, func.attr.value)
        return None

    def _inside(self, method: cst.FunctionDef) -> set[Part]:
        """What a method of a module changes of its object."""
        parts: set[Part] = set()
        for node in findall(method.body, m.Assign() | m.AugAssign() | m.Call()):
            if isinstance(node, cst.Call):
                func = node.func
                if (
                    isinstance(func, cst.Attribute)
                    and _starts_with_self(func.value)
                    and func.attr.value.endswith("_")
                    and not func.attr.value.endswith("__")
                ):
                    trained = func.attr.value == "requires_grad_"
                    parts.add(Part.TRAINED if trained else Part.WEIGHTS)
                continue
            for target in targets_of(node):
                if isinstance(target, cst.Attribute) and _starts_with_self(target):
                    name = target.attr.value
                    data = {"data": Part.WEIGHTS, "requires_grad": Part.TRAINED}
                    parts.add(data.get(name, Part.REST))
        return parts

    def _root(self, node: cst.BaseExpression) -> _Root:
        """What an expression is, or is a part of."""
        things: set[Thing] = set()
        whole, first = False, True
        base: cst.BaseExpression = node
        while True:
            if isinstance(base, cst.Name | cst.Attribute):
                known = {
                    each
                    for each in self._things.of(self._source, base)
                    if each.kind in (Kind.MODEL, Kind.LOSS)
                }
                things |= known
                whole |= first and bool(known)
            if isinstance(base, cst.Attribute | cst.Subscript):
                base, first = base.value, False
            elif isinstance(base, cst.Call) and isinstance(base.func, cst.Attribute):
                base, first = base.func.value, False
            else:
                break
        if things or not isinstance(base, cst.Name):
            return _Root(frozenset(things), whole)
        root = self._by_loop(node, base.value, first)
        return root if root.things or root.loop else self._by_caller(node, base.value, first)

    def _by_caller(self, node: cst.CSTNode, name: str, alone: bool) -> _Root:
        """What a parameter is, or is a part of, as the callers of its function have it."""
        function = self._source.enclosing(node, cst.FunctionDef)
        if function is None or function in self._seen or name not in parameters(function):
            return _Root(frozenset(), whole=False)
        self._seen.append(function)
        things: set[Thing] = set()
        for call, caller in self._things.calls(function).items():
            value = self._things.arguments(function, call).get(name)
            if value is not None and caller is self._source:
                things |= self._root(value).things
        self._seen.pop()
        return _Root(frozenset(things), whole=alone and bool(things))

    def _by_loop(self, node: cst.CSTNode, name: str, alone: bool) -> _Root:
        """What a name is a part of that a loop binds."""
        for loop in self._source.above(node):
            if isinstance(loop, cst.FunctionDef):
                break
            if isinstance(loop, cst.For) and name in names_in(loop.target):
                through = _gone_through(loop, name)
                for call in findall(through, m.Call(func=m.Attribute())):
                    method = call.func.attr.value
                    if method in (*_WEIGHTS, *_LAYERS):
                        things = self._root(call.func.value).things
                        return _Root(things, alone and method in _LAYERS, loop)
                return _Root(self._root(through).things, whole=False, loop=loop)
        return _Root(frozenset(), whole=False)


_GRADIENT = m.Attribute(attr=m.Name("grad"))


def _gone_through(loop: cst.For, name: str) -> cst.BaseExpression:
    """What a loop goes through to bind a name: one of the arguments of ``zip``."""
    if m.matches(loop.iter, m.Call(func=m.Name("zip"))) and isinstance(loop.target, cst.Tuple):
        parts = cst.ensure_type(loop.iter, cst.Call).args
        for element, each in zip(loop.target.elements, parts, strict=False):
            if name in names_in(element.value):
                return each.value
    return loop.iter


def _is_self(target: cst.Attribute) -> bool:
    return m.matches(target.value, m.Name("self"))


def _starts_with_self(node: cst.BaseExpression) -> bool:
    while isinstance(node, cst.Attribute | cst.Subscript):
        node = node.value
    return m.matches(node, m.Name("self"))


def family(project: Project, things: Things, models: set[Thing]) -> set[Thing]:
    """Some models with those that are made of them, or that they are made of.

    Args:
        project: the program.
        things: of the program.
        models: the models.
    """
    members = set(models)
    while True:
        more = {inner for each in members for inner in _inner(project, things, each)}
        if more <= members:
            return members
        members |= more


def _inner(project: Project, things: Things, model: Thing) -> set[Thing]:
    """The models that a model is made with."""
    if not isinstance(model.made, cst.Call):
        return set()
    arguments = [each.value for each in model.made.args]
    parts = {
        thing
        for value in arguments
        for node in (value, *findall(value, m.Name() | m.Call()))
        for thing in things.of(model.source, node, Kind.MODEL)
    }
    cls = project.class_of(model.source, model.made.func)
    if cls is not None:
        parts |= things.attributes(project.bases(cls)[-1])
    return parts
