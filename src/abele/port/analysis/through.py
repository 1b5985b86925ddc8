"""Splits a function that calls the model of a step into a part of the host and one compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.flow import reads, writes
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import Statement, StepError, statements_in
from abele.port.analysis.scopes import local_names, parameters
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.edits import renamed
from abele.port.source import Source


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Through:
    """A function of the program that calls a model, as one of its calls makes it run.

    Attributes:
        function: the function.
        place: its first statement that goes into the program.
        body: the statements that do, without the ``return``.
        results: what it returns.
        inputs: names of what they need, each with the expression that gives it in the function.
    """

    function: cst.FunctionDef
    place: Statement
    body: tuple[cst.CSTNode, ...]
    results: tuple[cst.BaseExpression, ...]
    inputs: Mapping[str, str]


def called_through(
    source: Source,
    things: Things,
    function: cst.FunctionDef,
    call: cst.Call,
    models: Mapping[Thing, cst.BaseExpression],
) -> Through:
    """Read a function that calls a model.

    Args:
        source: the file of the function and of the call.
        things: what names stand for.
        function: that is called.
        call: the call; parameters that it does not give are None where that is their default.
        models: those of the program, each with the expression that stands for it in the module.

    Raises:
        StepError: it cannot be divided into what is done before the model's call, on the host,
            and what is done from there on.
    """
    return _Reader(source, things, function, call, models).read()


class _Reader:
    def __init__(
        self,
        source: Source,
        things: Things,
        function: cst.FunctionDef,
        call: cst.Call,
        models: Mapping[Thing, cst.BaseExpression],
    ):
        self._source, self._things, self._models = source, things, models
        self._function, self._call = function, call
        self._statements = list(statements_in(source, function.body))
        self._arguments = things.arguments(function, call)

    def read(self) -> Through:
        first = self._first()
        *body, last = self._statements[first:]
        returned = m.SimpleStatementLine(body=[m.Return(value=m.DoNotCare())])
        if not m.matches(last, returned) or any(findall(each, m.Return()) for each in body):
            name = self._function.name.value
            raise StepError(self._call, f"{name}() has several return statements, or none")
        value: Any = cst.ensure_type(
            cst.ensure_type(last, cst.SimpleStatementLine).body[0], cst.Return
        ).value
        results = (
            [each.value for each in value.elements] if isinstance(value, cst.Tuple) else [value]
        )
        pieces = [each for statement in body for each in self._chosen(statement)]
        names = self._model_names()
        subscripts = self._subscripts([*pieces, *results])
        new: list[Any] = [renamed(_visited(each, subscripts), names) for each in pieces]
        ends: list[Any] = [renamed(_visited(each, subscripts), names) for each in results]
        return Through(
            function=self._function,
            place=self._statements[first],
            body=tuple(new),
            results=tuple(ends),
            inputs=self._inputs([*new, *ends], subscripts),
        )

    def _first(self) -> int:
        """The index of the first statement that calls a model."""
        for index, statement in enumerate(self._statements):
            for call in findall(statement, m.Call()):
                func = call.func if isinstance(call, cst.Call) else None
                known = isinstance(func, cst.Name | cst.Attribute)
                if known and self._things.of(self._source, func, Kind.MODEL):
                    return index
        raise StepError(self._call, f"{self._function.name.value}() calls the model elsewhere")

    def _chosen(self, statement: Any) -> Iterator[cst.CSTNode]:
        """A statement, or those of its branch where the call says which one it is."""
        if not isinstance(statement, cst.If):
            yield statement
            return
        decided = self._is_given(statement.test)
        if decided is None:
            yield statement
            return
        left = statement if decided else statement.orelse
        if isinstance(left, cst.If) and left is not statement:
            yield from self._chosen(left)
        elif left is not None:
            for each in statements_in(self._source, left.body):
                yield from self._chosen(each)

    def _is_given(self, test: cst.BaseExpression) -> bool | None:
        """Whether a test for None is true for this call; None if it is another test."""
        defaults = {each.name.value: each.default for each in self._function.params.params}
        for operator, if_given in ((m.Is(), False), (m.IsNot(), True)):
            target = m.ComparisonTarget(operator, m.Name("None"))
            if m.matches(test, m.Comparison(m.Name(), [target])):
                name = cst.ensure_type(cst.ensure_type(test, cst.Comparison).left, cst.Name).value
                default = defaults.get(name)
                if name in self._arguments:
                    return if_given
                if default is not None and m.matches(default, m.Name("None")):
                    return not if_given
        return None

    def _model_names(self) -> dict[str, str]:
        """Parameters that are models, each with the module's expression for it."""
        names: dict[str, str] = {}
        for name, value in self._arguments.items():
            for thing in self._things.of(self._source, value, Kind.MODEL):
                if thing in self._models:
                    names[name] = self._source.code(self._models[thing])
        return names

    def _subscripts(self, pieces: Sequence[cst.CSTNode]) -> dict[str, str]:
        """Elements that the pieces read of objects of which they read nothing else."""
        local = local_names(self._function)
        element = m.Subscript(value=m.Name(), slice=[m.SubscriptElement(m.Index(m.SimpleString()))])
        nodes = [each for piece in pieces for each in findall(piece, element)]
        inside = {node.value for node in nodes if isinstance(node, cst.Subscript)}
        whole = {
            name.value
            for piece in pieces
            for name in findall(piece, m.Name())
            if isinstance(name, cst.Name) and name not in inside
        }
        chosen: dict[str, str] = {}
        for node in nodes:
            subscript = cst.ensure_type(node, cst.Subscript)
            base = cst.ensure_type(subscript.value, cst.Name).value
            index = cst.ensure_type(subscript.slice[0].slice, cst.Index).value
            key = str(cst.ensure_type(index, cst.SimpleString).evaluated_value)
            if base in local and base not in whole and key.isidentifier():
                name = key if key not in {*local, *whole} else f"{base}_{key}"
                chosen[self._source.code(subscript)] = name
        return chosen

    def _inputs(
        self, pieces: Sequence[cst.CSTNode], subscripts: Mapping[str, str]
    ) -> dict[str, str]:
        """What the pieces need of the function, each with the expression that gives it."""
        by_name = {name: code for code, name in subscripts.items()}
        known = {*local_names(self._function), *parameters(self._function)} - {"self"}
        inputs: dict[str, str] = {}
        written: set[str] = set()
        for piece in pieces:
            for name in reads(piece):
                if name in by_name:
                    inputs[name] = by_name[name]
                elif name in known and name not in written:
                    inputs[name] = name
            written |= set(writes(piece))
        return inputs


def _visited(node: cst.CSTNode, names: Mapping[str, str]) -> Any:
    return node.visit(_Subscripts(names))


class _Subscripts(cst.CSTTransformer):
    """Puts names in the place of elements."""

    def __init__(self, names: Mapping[str, str]):
        super().__init__()
        self._names = names

    def leave_Subscript(self, original_node: cst.Subscript, updated_node: cst.Subscript) -> Any:
        name = self._names.get(cst.Module([]).code_for_node(original_node))
        return updated_node if name is None else cst.Name(name)
