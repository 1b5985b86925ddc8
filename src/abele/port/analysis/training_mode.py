"""Whether a model may be in training mode where a node is: what ``train()`` and ``eval()`` say.

A program keeps the mode of its first call, a module has the one that was set last. Statements are
read backwards from the call, through the loops and callers around it. What is not known for sure
may be either.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.project import Owner, Project
from abele.port.source import Source

EITHER = frozenset((True, False))
_SETS = m.Call(func=m.Attribute(attr=m.Name("train") | m.Name("eval")))
_FUNCTIONS = cst.FunctionDef | cst.Lambda
_BLOCKS = cst.IndentedBlock | cst.Module | cst.SimpleStatementLine | cst.SimpleStatementSuite
_DEFINITIONS = cst.FunctionDef | cst.ClassDef


@dataclasses.dataclass(frozen=True)
class _Effect:
    """What a piece of a program does to the mode of a model.

    Attributes:
        modes: in which it may leave the model.
        sure: it leaves the model in one of these whenever it runs.
    """

    modes: frozenset[bool] = frozenset()
    sure: bool = False

    def then(self, later: _Effect) -> _Effect:
        """This, and something after it."""
        if later.sure:
            return later
        return _Effect(self.modes | later.modes, self.sure)

    def perhaps(self) -> _Effect:
        """This, or nothing."""
        return _Effect(self.modes, sure=False)

    @classmethod
    def either(cls, *effects: _Effect) -> _Effect:
        """One of several."""
        modes = frozenset[bool]().union(*(each.modes for each in effects))
        return cls(modes, all(each.sure for each in effects))


class TrainingMode:
    """Knows in which modes a model may be."""

    def __init__(self, project: Project, things: Things, model: Thing):
        """Look at one model.

        Args:
            project: the program.
            things: of the program.
            model: one of them.
        """
        self._project, self._things, self._model = project, things, model
        self._inside: set[Owner] = set()  # functions that are being read, which may call themselves

    def at(self, source: Source, node: cst.CSTNode) -> frozenset[bool]:
        """The modes in which the model may be where a node is: True for training."""
        return self._before(source, node, frozenset())

    def _before(self, source: Source, node: cst.CSTNode, seen: frozenset[Owner]) -> frozenset[bool]:
        modes: frozenset[bool] = frozenset()
        inner = node
        for each in source.above(node):
            statements = _statements(each)
            if inner in statements:
                effect = self._of_all(source, statements[: statements.index(inner)])
                modes |= effect.modes
                if effect.sure:
                    return modes
            if isinstance(each, cst.For | cst.While):
                modes |= self._of_all(source, [each]).modes  # of the turn before
            elif isinstance(each, cst.With):
                modes |= self._entered(source, each).modes
            elif isinstance(each, cst.FunctionDef):
                return modes | self._at_calls(each, seen)
            inner = each
        return modes | {True}  # a module begins in training mode

    def _at_calls(self, function: cst.FunctionDef, seen: frozenset[Owner]) -> frozenset[bool]:
        if function in seen:
            return frozenset()
        calls = self._things.calls(function)
        if not calls:
            return self._anywhere | {True}
        seen |= {function}
        each = [self._before(source, call, seen) for call, source in calls.items()]
        return frozenset[bool]().union(*each)

    @functools.cached_property
    def _anywhere(self) -> frozenset[bool]:
        """The modes that any line sets: what is called by others may come after it."""
        calls = [
            self._set(source, call).modes
            for source in self._project.sources
            for call in findall(source.module, _SETS)
            if self._sets(source, call)
        ]
        return frozenset[bool]().union(*calls)

    def _of_all(self, source: Source, statements: Sequence[cst.CSTNode]) -> _Effect:
        effect = _Effect()
        for statement in statements:
            effect = effect.then(self._of(source, statement))
        return effect

    def _of(self, source: Source, statement: cst.CSTNode) -> _Effect:
        """The effect of one statement."""
        if isinstance(statement, _DEFINITIONS):
            return _Effect()
        if isinstance(statement, cst.SimpleStatementLine | cst.SimpleStatementSuite):
            return self._of_all(source, statement.body)
        if isinstance(statement, cst.With):
            body = self._of_all(source, _statements(statement.body))
            return body.then(self._entered(source, statement))
        if isinstance(statement, cst.If):
            other = _Effect() if statement.orelse is None else self._of(source, statement.orelse)
            body = self._of_all(source, _statements(statement.body))
            return self._of_calls(source, statement.test).then(_Effect.either(body, other))
        if isinstance(statement, cst.Else):
            return self._of_all(source, _statements(statement.body))
        if isinstance(statement, cst.BaseSmallStatement):
            return self._of_calls(source, statement)
        blocks = [self._of_all(source, each.body) for each in _blocks(source, statement)]
        return _Effect.either(_Effect(), *blocks)

    def _entered(self, source: Source, statement: cst.With) -> _Effect:
        """What managers of a ``with`` may set before and after it: whatever their code sets."""
        effect = _Effect()
        for call in (each for item in statement.items for each in findall(item, m.Call())):
            function = self._things.function(source, call)
            if function is not None:
                at = self._project.source(function)
                whole = at.enclosing(function, cst.ClassDef) or function
                for each in findall(whole, _SETS):
                    effect = effect.then(self._set(at, each).perhaps())
        return effect

    def _of_calls(self, source: Source, node: cst.CSTNode) -> _Effect:
        """The effect of the calls in an expression or small statement, inner ones first."""
        effect = _Effect()
        for call in reversed(findall(node, m.Call())):
            if _within(source, call, node):
                given = self._of_call(source, call)
                effect = effect.then(given if _is_sure(source, call, node) else given.perhaps())
        return effect

    def _of_call(self, source: Source, call: cst.Call) -> _Effect:
        if self._sets(source, call):
            return self._set(source, call)
        function = self._things.function(source, call)
        if function is None or function in self._inside:
            return _Effect()
        self._inside.add(function)
        at = self._project.source(function)
        body: Any = function.body
        effect = self._of_all(at, list(body.body))
        self._inside.remove(function)
        returns = [each for each in findall(function, m.Return()) if _within(at, each, function)]
        early = any(at.parent(at.parent(each) or each) is not body for each in returns)
        return effect.perhaps() if early else effect

    def _sets(self, source: Source, call: cst.Call) -> bool:
        """Whether a call sets a mode: not a function of the program that has such a name.

        Unless it is the model's own, which does more beside.
        """
        if not m.matches(call, _SETS):
            return False
        assert isinstance(call.func, cst.Attribute)
        models = self._things.of(source, call.func.value, Kind.MODEL)
        return self._model in models or self._things.function(source, call) is None

    def _set(self, source: Source, call: cst.Call) -> _Effect:
        """The effect of a call of ``train`` or ``eval``."""
        assert isinstance(call.func, cst.Attribute)
        models = self._things.of(source, call.func.value, Kind.MODEL)
        if self._model in models:  # of several, that one which the program has chosen
            return _Effect(_asked(call), sure=True)
        # What is not known may contain the model; what takes values is no module.
        perhaps = not models and _asked(call) != EITHER
        return _Effect(_asked(call)) if perhaps else _Effect()


def _asked(call: cst.Call) -> frozenset[bool]:
    """The mode that a call of ``train`` or ``eval`` sets."""
    assert isinstance(call.func, cst.Attribute)
    if call.func.attr.value == "eval":
        return frozenset((False,))
    if not call.args:
        return frozenset((True,))
    given = call.args[0].value
    if isinstance(given, cst.Name) and given.value in ("True", "False"):
        return frozenset((given.value == "True",))
    return EITHER


def _statements(node: cst.CSTNode) -> Sequence[cst.CSTNode]:
    """The statements of a block, line or module."""
    return list(node.body) if isinstance(node, _BLOCKS) else []


def _blocks(source: Source, statement: cst.CSTNode) -> Iterator[cst.BaseSuite]:
    """The outermost blocks of a loop, a ``try`` or a ``match``."""
    for block in findall(statement, m.IndentedBlock() | m.SimpleStatementSuite()):
        above = itertools.takewhile(lambda each: each is not statement, source.above(block))
        if not any(isinstance(each, cst.BaseSuite) for each in above):
            yield block


def _within(source: Source, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
    """Whether a node is run with a piece around it, and not by a function defined there."""
    for each in source.above(node):
        if each is outer:
            return True
        if isinstance(each, _FUNCTIONS):
            return False
    return True


def _is_sure(source: Source, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
    """Whether a piece of an expression is computed whenever that is."""
    inner = node
    for each in source.above(node):
        if inner is outer:
            break
        chosen = isinstance(each, cst.IfExp) and inner is not each.test
        shortened = isinstance(each, cst.BooleanOperation) and inner is each.right
        if chosen or shortened or isinstance(each, cst.BaseComp):
            return False
        inner = each
    return True
