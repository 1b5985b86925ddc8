"""Values that stay as they are for a whole run, and what they are called in other functions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.calls import targets_of
from abele.port.analysis.scopes import Variable, is_method, parameters
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.analysis.written_values import bindings
from abele.port.project import Project
from abele.port.source import Source

_DEPTH = 8  # names that lead to names, at most
_CONSTRUCTORS = ("__init__", "__post_init__")


class NotOneValueError(Exception):
    """A value may change, or has no name in some place; the reason."""


@dataclasses.dataclass(frozen=True)
class Path:
    """What a value is read from.

    Attributes:
        variable: that is given a value once.
        way: attributes and keys that lead from it to the value, as text.
        bound: the statement that gives the variable its value; None for a parameter.
    """

    variable: Variable
    way: tuple[str, ...] = ()
    bound: cst.CSTNode | None = dataclasses.field(default=None, compare=False)

    def leads_to(self, other: Path) -> bool:
        """Whether another path begins with this one."""
        return self.variable == other.variable and other.way[: len(self.way)] == self.way


class OneValue:
    """Follows values of a program to the one place where they come from."""

    def __init__(self, project: Project, things: Things):
        """Follow none yet.

        Args:
            project: the program.
            things: what names stand for.
        """
        self._project, self._things = project, things

    def path(self, source: Source, node: cst.BaseExpression) -> Path:
        """Where an expression comes from.

        Raises:
            NotOneValueError: it may change, or the text does not say where it comes from.
        """
        path = self._follow(source, node, _DEPTH)
        for each in self._project.sources:
            self._check(each, path)
        return path

    def name(
        self, path: Path, source: Source, place: cst.CSTNode
    ) -> tuple[str, cst.CSTNode | None]:
        """What a value is called in some place.

        Returns:
            The text, and the statement of the same function that has to come before; None if
            there is none.

        Raises:
            NotOneValueError: it has no name there.
        """
        for name, other, needed in self._names(path, source, place):
            if other.leads_to(path):
                return name + "".join(path.way[len(other.way) :]), needed
        line, _ = source.position(place)
        raise NotOneValueError(f"it has no name in line {line} of {source.name}")

    def _names(
        self, path: Path, source: Source, place: cst.CSTNode
    ) -> Iterator[tuple[str, Path, cst.CSTNode | None]]:
        """Names in some place, with their paths and what has to come before."""
        inner = self._things.owner(source, place)
        for owner in source.above(place):
            if not isinstance(owner, cst.FunctionDef):
                continue
            for name in parameters(owner):
                origin = self._tried(source, owner, name)
                if origin is not None and self._things.named(source, place, name) is owner:
                    yield name, origin, None
        root = path.variable
        if self._things.named(source, place, root.name) is root.owner:
            yield root.name, Path(root), path.bound if root.owner is inner else None
        if not isinstance(inner, cst.FunctionDef) or not is_method(inner):
            return
        for assign in findall(source.enclosing(inner, cst.ClassDef) or inner, m.Assign()):
            for target in targets_of(assign):
                variable = self._things.variable(source, target)
                if variable is None or not variable.name.startswith("self."):
                    continue
                try:
                    origin = self._follow(source, target, _DEPTH)
                except NotOneValueError:
                    continue
                same = self._things.owner(source, assign) is inner
                yield variable.name, origin, assign if same else None

    def _tried(self, source: Source, owner: cst.FunctionDef, name: str) -> Path | None:
        try:
            return self._of_parameter(source, owner, name, _DEPTH)
        except NotOneValueError:
            return None

    def _follow(self, source: Source, node: cst.BaseExpression, depth: int) -> Path:
        """Where an expression comes from, if its names are given values once."""
        way: tuple[str, ...] = ()
        while (variable := self._things.variable(source, node)) is None:
            step = _step(node)
            if step is None or not isinstance(node, cst.Attribute | cst.Subscript):
                raise NotOneValueError("it is computed anew in each turn: give it a name before")
            way, node = (step, *way), node.value
        if variable.name.startswith("self."):
            path = self._of_attribute(variable, depth)
        elif isinstance(variable.owner, cst.FunctionDef) and (
            variable.name in parameters(variable.owner)
        ):
            path = self._of_parameter(source, variable.owner, variable.name, depth)
        else:
            path = self._of_name(source, node, variable, depth)
        return dataclasses.replace(path, way=path.way + way)

    def _of_name(
        self, source: Source, node: cst.BaseExpression, variable: Variable, depth: int
    ) -> Path:
        name = variable.name
        bound = bindings(self._things, source, variable.owner, name)
        if not bound and source.imported(node):
            return Path(variable)
        if len(bound) != 1 or not isinstance(bound[0], cst.Assign | cst.AnnAssign):
            raise NotOneValueError(f"{name} is not given its value in one place")
        return self._given(source, variable, bound[0], depth)

    def _given(
        self, source: Source, variable: Variable, bound: cst.Assign | cst.AnnAssign, depth: int
    ) -> Path:
        """Where the value of the one assignment to a variable comes from."""
        inside = source.enclosing(bound, cst.For, cst.While, cst.FunctionDef)
        if isinstance(inside, cst.For | cst.While):
            raise NotOneValueError(f"{variable.name} is given its value in a loop")
        alone = isinstance(bound, cst.AnnAssign) or (
            len(bound.targets) == 1 and not isinstance(bound.targets[0].target, cst.Tuple)
        )
        if alone and depth and bound.value is not None:
            try:
                return self._follow(source, bound.value, depth - 1)
            except NotOneValueError:
                pass  # the value has no name before
        if inside is not None and not self._is_called_once(inside):
            raise NotOneValueError(
                f"{variable.name} is given its value in each call of {inside.name.value}()"
            )
        return Path(variable, bound=bound)

    def _of_parameter(self, source: Source, owner: cst.FunctionDef, name: str, depth: int) -> Path:
        at = self._things.file(owner)
        if bindings(self._things, at, owner, name):
            raise NotOneValueError(f"{name} is given another value in {owner.name.value}()")
        calls = self._things.calls(owner)
        if calls and self._is_passed(owner):
            raise NotOneValueError(f"others may call {owner.name.value}() with another {name}")
        origins = [self._argument(owner, call, name, calls[call], depth) for call in calls]
        paths = {each for each in origins if isinstance(each, Path)}
        errors = [each for each in origins if isinstance(each, NotOneValueError)]
        if len(paths) == 1 and not errors:
            return paths.pop()
        if not self._is_called_once(owner):
            reason = f"calls of {owner.name.value}() give {name} different values"
            raise errors[0] if errors and not paths else NotOneValueError(reason)
        return Path(Variable(owner, name))

    def _argument(
        self, owner: cst.FunctionDef, call: cst.Call, name: str, caller: Source, depth: int
    ) -> Path | NotOneValueError:
        """Where an argument of a call comes from, or why that is not known."""
        value = self._things.arguments(owner, call).get(name) or argument(call, name)
        if value is None or not depth:
            return NotOneValueError(f"a call of {owner.name.value}() does not name {name}")
        try:
            return self._follow(caller, value, depth - 1)
        except NotOneValueError as error:
            return error

    def _of_attribute(self, variable: Variable, depth: int) -> Path:
        """Where an attribute comes from that one constructor sets."""
        name = variable.name.removeprefix("self.")
        sets = [
            (source, node, target)
            for source in self._project.sources
            for node, target in _targets(source)
            if isinstance(target, cst.Attribute) and target.attr.value == name
        ]
        if len(sets) == 1:
            ((source, node, target),) = sets
            if (
                isinstance(node, cst.Assign | cst.AnnAssign)
                and self._things.variable(source, target) == variable
                and _is_constructor(source, node)
            ):
                return self._given(source, variable, node, depth)
        raise NotOneValueError(f"{variable.name} is not set by one constructor alone")

    def _is_passed(self, function: cst.FunctionDef) -> bool:
        """Whether a function, or one of its name, is an argument of a call."""
        name = m.Name(function.name.value)
        passed = m.Arg(name | m.Attribute(attr=name))
        return any(findall(each.module, passed) for each in self._project.sources)

    def _is_called_once(self, function: cst.FunctionDef) -> bool:
        calls = self._things.calls(function)
        return len(calls) <= 1 and not any(
            isinstance(
                source.enclosing(call, cst.For, cst.While, cst.FunctionDef), cst.For | cst.While
            )
            for call, source in calls.items()
        )

    def _check(self, source: Source, path: Path) -> None:
        """Nothing in a file may change what a path leads to.

        Raises:
            NotOneValueError: something may.
        """
        names = {_bare(each) for each in path.way}
        if isinstance(path.variable.owner, cst.Module):
            names.add(path.variable.name)
        changing = [
            node
            for node, target in _targets(source)
            if (isinstance(target, cst.Attribute) and target.attr.value in names
                and not (m.matches(target.value, m.Name("self")) and _is_constructor(source, node)))
            or (isinstance(target, cst.Subscript) and self._sets_key(source, target, path, names))
        ]  # fmt: skip
        changing += [
            each
            for each in findall(source.module, m.Call() | m.FunctionDef())
            if self._may_change(source, each, path, names)
        ]
        for node in changing:
            line, _ = source.position(node)
            raise NotOneValueError(f"line {line} of {source.name} may give it another value")

    def _sets_key(self, source: Source, target: cst.Subscript, path: Path, names: set[str]) -> bool:
        key = _step(target)
        return _bare(key) in names if key else self._leads(source, target.value, path)

    def _may_change(
        self, source: Source, node: cst.Call | cst.FunctionDef, path: Path, names: set[str]
    ) -> bool:
        """Whether a call, or a property, may change what a path leads to."""
        if isinstance(node, cst.FunctionDef):
            return node.name.value in names and bool(node.decorators)
        if m.matches(node.func, m.Name("setattr")) and node.args[1:]:
            key = node.args[1].value
            known = isinstance(key, cst.SimpleString)
            return key.evaluated_value in names if known else bool(names)
        alone = isinstance(source.parent(node), cst.Expr)
        if not alone or not isinstance(node.func, cst.Attribute):
            return False
        return self._leads(source, node.func.value, path)

    def _leads(self, source: Source, node: cst.BaseExpression, path: Path) -> bool:
        """Whether an expression is an object on a path, or has its attributes."""
        if isinstance(node, cst.Call) and m.matches(node, _VARS):
            node = node.args[0].value
        elif isinstance(node, cst.Attribute) and node.attr.value == "__dict__":
            node = node.value
        try:
            return self._follow(source, node, _DEPTH).leads_to(path)
        except NotOneValueError:
            return False


_VARS = m.Call(func=m.Name("vars"), args=[m.Arg()])


def _step(node: cst.BaseExpression) -> str | None:
    """The attribute or the written key by which an expression reads a part; None for others."""
    if isinstance(node, cst.Attribute):
        return f".{node.attr.value}"
    if not isinstance(node, cst.Subscript) or len(node.slice) != 1:
        return None
    index = node.slice[0].slice
    key = index.value if isinstance(index, cst.Index) else None
    if isinstance(key, cst.Integer):
        return f"[{key.evaluated_value}]"
    if isinstance(key, cst.SimpleString) and isinstance(key.evaluated_value, str):
        return f"[{json.dumps(key.evaluated_value, ensure_ascii=False)}]"
    return None


def _bare(step: str) -> str:
    """The name of an attribute, or the key, of one step."""
    return step[1:] if step.startswith(".") else step.strip('[]"')


def _targets(source: Source) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    """What the statements of a file give values."""
    for node in findall(source.module, m.Assign() | m.AugAssign()):
        for target in targets_of(node):
            parts = target.elements if isinstance(target, cst.Tuple | cst.List) else ()
            for each in (target, *(part.value for part in parts)):
                yield node, each
    for node in findall(source.module, m.AnnAssign() | m.For() | m.Del()):
        yield node, node.target


def _is_constructor(source: Source, node: cst.CSTNode) -> bool:
    function = source.enclosing(node, cst.FunctionDef)
    return function is not None and function.name.value in _CONSTRUCTORS
