"""Finds the keys by which statements read a dictionary, if they read nothing else of it."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.project import Project
from abele.port.source import Source


def read_by_key(
    project: Project, things: Things, source: Source, name: str, pieces: Iterable[cst.CSTNode]
) -> tuple[str, ...]:
    """The keys of the parts of a dictionary that statements read.

    Functions and models of the program that are given the dictionary are followed.

    Args:
        project: the program.
        things: what its names stand for.
        source: the file of the statements.
        name: of the dictionary.
        pieces: the statements.

    Returns:
        Texts of keys, in the order of the text; none if anything else is done with the dictionary.
    """
    keys = _Keys(project, things)
    return tuple(keys.names) if keys.read(source, name, pieces) else ()


class _Keys:
    """Collects keys.

    Attributes:
        names: the keys, each once.
    """

    def __init__(self, project: Project, things: Things):
        self._project, self._things = project, things
        self._seen: set[tuple[cst.FunctionDef, str]] = set()
        self.names: dict[str, None] = {}

    def read(self, source: Source, name: str, pieces: Iterable[cst.CSTNode]) -> bool:
        """Collect those by which pieces of a file read a dictionary; whether that is all."""
        nodes = [node for piece in pieces for node in findall(piece, m.Name(name))]
        return all(self._use(source, node) for node in nodes)

    def _use(self, source: Source, node: cst.Name) -> bool:
        """Follow one use of the name; whether it reads parts and nothing else."""
        parent = source.parent(node)
        around = None if parent is None else source.parent(parent)
        if isinstance(parent, cst.Arg) and isinstance(around, cst.Call):
            return parent.keyword is node or self._passed_on(source, around, parent)
        if isinstance(parent, cst.Attribute):
            return parent.attr is node
        if not m.matches(parent or node, _BY_TEXT) or isinstance(around, _CHANGES):
            return False
        index = cst.ensure_type(cst.ensure_type(parent, cst.Subscript).slice[0].slice, cst.Index)
        self.names[cst.ensure_type(index.value, cst.SimpleString).value] = None
        return True

    def _passed_on(self, source: Source, call: cst.Call, argument: cst.Arg) -> bool:
        """Follow a call that is given the dictionary."""
        functions = self._called(source, call)
        return bool(functions) and all(
            self._inside(function, call, argument) for function in functions
        )

    def _called(self, source: Source, call: cst.Call) -> list[cst.FunctionDef]:
        """The functions of the program that a call may run; none if others may be among them."""
        function = self._things.function(source, call)
        if function is not None:
            return [function]
        inside = source.enclosing(call, cst.ClassDef)
        if inside is not None and m.matches(call.func, m.Name("self")):
            classes: list[cst.ClassDef | None] = [inside]
        else:
            made = [(each.source, each.made) for each in self._things.of(source, call.func)]
            classes = [
                self._project.class_of(at, node.func) if isinstance(node, cst.Call) else None
                for at, node in made
            ]
        forwards = [
            None if each is None else self._project.method(each, "forward") for each in classes
        ]
        return [each for each in forwards if each is not None] if all(forwards) else []

    def _inside(self, function: cst.FunctionDef, call: cst.Call, argument: cst.Arg) -> bool:
        """Collect the keys by which a function reads an argument."""
        arguments = self._things.arguments(function, call)
        name = next((each for each, value in arguments.items() if value is argument.value), None)
        if name is None:
            return False
        if (function, name) in self._seen:
            return True
        self._seen.add((function, name))
        return self.read(self._things.file(function), name, [function.body])


_CHANGES = cst.AssignTarget | cst.AugAssign | cst.Del | cst.AnnAssign | cst.NamedExpr
_BY_TEXT = m.Subscript(slice=[m.SubscriptElement(m.Index(m.SimpleString()))])
