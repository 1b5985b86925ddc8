"""Finds models that a step calls through functions of the program, such as one for the loss."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.project import Project
from abele.port.source import Source


class Helpers:
    """Functions of a program that call models.

    Attributes:
        functions: those that were followed.
    """

    def __init__(self, project: Project, things: Things):
        """Begin.

        Args:
            project: the program.
            things: what its names stand for.
        """
        self._project, self._things = project, things
        self.functions: dict[cst.FunctionDef, None] = {}

    def models(
        self, source: Source, node: cst.CSTNode
    ) -> Iterator[tuple[Thing, cst.BaseExpression]]:
        """The models that functions called in a piece of a program call.

        Args:
            source: the file.
            node: the piece.

        Yields:
            Each model, with the expression that stands for it in the piece.
        """
        yield from self._models(source, node, ())

    def _models(
        self, source: Source, node: cst.CSTNode, around: tuple[cst.FunctionDef, ...]
    ) -> Iterator[tuple[Thing, cst.BaseExpression]]:
        for call in findall(node, m.Call()):
            assert isinstance(call, cst.Call)
            function = self._things.function(source, call)
            if function is None or function in around or function.name.value == "__init__":
                continue
            for thing, inner in self._inside(function, (*around, function)):
                expression = self._outside(source, call, function, inner)
                if expression is not None:
                    self.functions[function] = None
                    yield thing, expression

    def _inside(
        self, function: cst.FunctionDef, around: tuple[cst.FunctionDef, ...]
    ) -> Iterator[tuple[Thing, cst.BaseExpression]]:
        """The models that a function calls, each with the expression that it has for it."""
        source = self._project.source(function)
        cls = source.enclosing(function, cst.ClassDef)
        if cls is not None and self._project.is_module(cls):
            return
        for call in findall(function.body, m.Call()):
            if isinstance(call, cst.Call) and isinstance(call.func, cst.Name | cst.Attribute):
                for thing in self._things.of(source, call.func, Kind.MODEL):
                    yield thing, call.func
        yield from self._models(source, function.body, around)

    def _outside(
        self, source: Source, call: cst.Call, function: cst.FunctionDef, inner: cst.BaseExpression
    ) -> cst.BaseExpression | None:
        """What the caller has for a function's expression; None if it has none."""
        where = self._project.source(function)
        variable = self._things.variable(where, inner)
        if variable is None:
            return None
        if variable.owner is function:
            return self._things.arguments(function, call).get(variable.name)
        return inner if where is source else None
