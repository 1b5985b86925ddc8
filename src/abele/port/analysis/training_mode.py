"""Finds out whether a model may be in training mode at a node, by ``train()`` and ``eval()``.

A program keeps the mode of its first call, a module has the one that was set last. What is done is
read backwards from the call, through the loops and callers around it. What is not known for sure
may be either.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence

import libcst as cst
from libcst import matchers as m

from abele.port.analysis import assumed
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.mode_settings import (
    EITHER,
    first_mode,
    mentioned,
    setting_of,
    settings_in,
)
from abele.port.analysis.restored_mode import saved_at
from abele.port.analysis.scopes import is_method
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.project import Owner, Project
from abele.port.source import Source

__all__ = ["EITHER", "TrainingMode"]

_FUNCTIONS = cst.FunctionDef | cst.Lambda
_BLOCKS = cst.IndentedBlock | cst.Module | cst.SimpleStatementLine | cst.SimpleStatementSuite
_HEADED = cst.If | cst.While | cst.For | cst.With | cst.Match
_TRIES = cst.Try | cst.TryStar
_DEFINITIONS = cst.FunctionDef | cst.ClassDef
_DONE = m.Call() | m.Assign() | m.AnnAssign() | m.AugAssign()
_LEAVES = m.Return() | m.Break() | m.Continue() | m.Raise() | m.Yield()


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
        self._known: assumed.Facts = {}  # what conditions around the node say, as far as was read

    def at(self, source: Source, node: cst.CSTNode) -> frozenset[bool]:
        """The modes in which the model may be where a node is: True for training."""
        return self._before(source, node, frozenset()) | self._mentioned

    def _before(self, source: Source, node: cst.CSTNode, seen: frozenset[Owner]) -> frozenset[bool]:
        modes: frozenset[bool] = frozenset()
        inner = node
        self._known = assumed.facts(source, node)
        for each in source.above(node):
            if isinstance(each, cst.FunctionDef):
                return modes | self._at_calls(source, node, each, seen)
            if isinstance(each, cst.Lambda):
                return modes | self._anywhere
            if isinstance(each, cst.For | cst.While):
                self._known = assumed.left(self._known, each)
            effect = self._up_to(source, each, inner, node)
            modes |= effect.modes
            if effect.sure:
                return modes
            inner = each
        return modes | self._first

    def _up_to(
        self, source: Source, outer: cst.CSTNode, inner: cst.CSTNode, node: cst.CSTNode
    ) -> _Effect:
        """What a piece of the program does before the part of it in which a node is."""
        statements = _statements(outer)
        if inner in statements:
            return self._of_statements(source, statements[: statements.index(inner)])
        if isinstance(outer, cst.BaseSmallStatement):
            return self._earlier(source, outer, node)
        if isinstance(outer, _HEADED):
            if not isinstance(inner, cst.BaseSuite | cst.If | cst.Else | cst.MatchCase):
                return self._earlier(source, inner, node)
            return self._turn_before(source, outer).then(self._of_header(source, outer))
        if isinstance(outer, _TRIES) and inner is not outer.body:
            return self._of(source, outer).perhaps()
        return _Effect()

    def _of_statements(self, source: Source, statements: Sequence[cst.CSTNode]) -> _Effect:
        """What statements do before a node, read backwards from it."""
        effect, restored = _Effect(), len(statements)
        for index in range(len(statements) - 1, -1, -1):
            self._known = assumed.left(self._known, statements[index])
            saved = saved_at(statements, index)
            if index < restored and saved is None:
                effect = self._of(source, statements[index]).then(effect)
            elif index < restored:
                restored = saved or 0
        return effect

    def _turn_before(self, source: Source, statement: cst.CSTNode) -> _Effect:
        if isinstance(statement, cst.For | cst.While):
            return self._of(source, statement).perhaps()
        return _Effect()

    def _of_header(self, source: Source, statement: _HEADED) -> _Effect:
        """What is done by what stands before the block of a statement."""
        if isinstance(statement, cst.With):
            effect = _together(self._of_piece(source, each) for each in statement.items)
            return effect.then(self._entered(source, statement))
        if isinstance(statement, cst.For):
            return self._of_piece(source, statement.iter)
        piece = statement.subject if isinstance(statement, cst.Match) else statement.test
        return self._of_piece(source, piece)

    def _earlier(self, source: Source, piece: cst.CSTNode, node: cst.CSTNode) -> _Effect:
        """What a piece does before a node in it is run; after it, where it may be run again."""
        around = {node, *source.above(node)}
        again = any(isinstance(each, cst.BaseComp | cst.IfExp) for each in around)
        position, effect = source.position(node), _Effect()
        for each in reversed(findall(piece, _DONE)):
            if each in around or not _within(source, each, piece):
                continue
            inside = node in source.above(each)
            if inside or source.position(each) < position:
                effect = effect.then(self._part(source, each, piece))
            elif again:
                effect = effect.then(self._part(source, each, piece).perhaps())
        return effect

    def _at_calls(
        self,
        source: Source,
        node: cst.CSTNode,
        function: cst.FunctionDef,
        seen: frozenset[Owner],
    ) -> frozenset[bool]:
        if function in seen:
            return frozenset()
        calls = assumed.callers(self._things, source, node)
        if not calls or self._is_given_away(function):
            return self._anywhere
        seen |= {function}
        each = [self._before(source, call, seen) for call, source in calls.items()]
        return frozenset[bool]().union(*each)

    def _is_given_away(self, function: cst.FunctionDef) -> bool:
        """Whether a function is named where it is not called: others may call it, at any time."""
        name = m.Name(function.name.value)
        if is_method(function):
            argument = m.Arg(value=m.Attribute(value=m.Name("self"), attr=name))
            return bool(findall(self._project.source(function).module, argument))
        return any(
            self._project.function(source, each.value) is function
            for source in self._project.sources
            for each in findall(source.module, m.Arg(value=name))
        )

    @functools.cached_property
    def _first(self) -> frozenset[bool]:
        """The modes in which the model may be when it has just been made."""
        return first_mode(self._model.name)

    @functools.cached_property
    def _anywhere(self) -> frozenset[bool]:
        """The modes that any line sets: what is called by others may come after it."""
        modes = self._first
        for source in self._project.sources:
            for each in settings_in(source, self._things, source.module):
                modes |= self._set(source, each.node).modes
        return modes

    @functools.cached_property
    def _mentioned(self) -> frozenset[bool]:
        """The modes that methods set which have been given other names."""
        modes: frozenset[bool] = frozenset()
        for source in self._project.sources:
            for each in mentioned(source):
                if self._model in self._things.of(source, each.model, Kind.MODEL):
                    modes |= each.modes
        return modes

    def _of_block(self, source: Source, block: cst.CSTNode) -> _Effect:
        """The effect of a block, which a statement in it may leave."""
        effect, left = _Effect(), False
        before: list[_Effect] = []
        statements = _statements(block)
        for index, statement in enumerate(statements):
            before.append(effect)
            saved = saved_at(statements, index)
            if saved is not None:
                effect = before[saved]
                continue
            each = self._of(source, statement)
            effect = effect.then(each.perhaps() if left else each)
            left = left or any(
                _within(source, leave, statement) for leave in findall(statement, _LEAVES)
            )
        return effect

    def _of(self, source: Source, statement: cst.CSTNode) -> _Effect:
        """The effect of one statement."""
        if isinstance(statement, _DEFINITIONS):
            return _Effect()
        if isinstance(statement, cst.SimpleStatementLine | cst.SimpleStatementSuite):
            return self._of_block(source, statement)
        if isinstance(statement, cst.With):
            body = self._of_block(source, statement.body)
            return (
                self._of_header(source, statement).then(body).then(self._entered(source, statement))
            )
        if isinstance(statement, cst.If):
            other = _Effect() if statement.orelse is None else self._of(source, statement.orelse)
            body = self._of_block(source, statement.body)
            true = assumed.says(self._known, statement.test)
            chosen = _Effect.either(body, other) if true is None else body if true else other
            return self._of_header(source, statement).then(chosen)
        if isinstance(statement, cst.Else):
            return self._of_block(source, statement.body)
        if isinstance(statement, cst.BaseSmallStatement):
            return self._of_piece(source, statement)
        blocks = [self._of_block(source, each) for each in _blocks(source, statement)]
        effect = _Effect.either(_Effect(), *blocks)
        if isinstance(statement, _TRIES):  # which may leave its block anywhere
            parts = [self._of(source, each).modes for each in _statements(statement.body)]
            return _Effect(effect.modes.union(*parts))
        header = self._of_header(source, statement) if isinstance(statement, _HEADED) else _Effect()
        return header.then(effect)

    def _entered(self, source: Source, statement: cst.With) -> _Effect:
        """What managers of a ``with`` may set before and after it: whatever their code sets."""
        effect = _Effect()
        for call in (each for item in statement.items for each in findall(item, m.Call())):
            function = self._things.function(source, call)
            if function is not None:
                at = self._project.source(function)
                whole = at.enclosing(function, cst.ClassDef) or function
                for each in settings_in(at, self._things, whole):
                    effect = effect.then(self._set(at, each.node).perhaps())
        return effect

    def _of_piece(self, source: Source, node: cst.CSTNode) -> _Effect:
        """The effect of what an expression or small statement does, inner calls first."""
        parts = [each for each in findall(node, _DONE) if _within(source, each, node)]
        return _together(self._part(source, each, node) for each in reversed(parts))

    def _part(self, source: Source, part: cst.CSTNode, piece: cst.CSTNode) -> _Effect:
        """The effect of one call or assignment in a piece."""
        effect = _Effect(self._first, sure=True) if part is self._model.made else _Effect()
        if isinstance(part, cst.Call):
            effect = effect.then(self._of_call(source, part))
        effect = effect.then(self._set(source, part))
        return effect if _is_sure(source, part, piece) else effect.perhaps()

    def _of_call(self, source: Source, call: cst.Call) -> _Effect:
        """The effect of what a function of the program does, unless the call itself sets a mode."""
        function = self._things.function(source, call)
        if function is None or function in self._inside or self._set(source, call).sure:
            return _Effect()
        self._inside.add(function)
        at = self._project.source(function)
        known, self._known = self._known, {}
        effect = self._of_block(at, function.body)
        self._known = known
        self._inside.remove(function)
        later = any(_within(at, each, function) for each in findall(function, m.Yield()))
        return effect.perhaps() if later else effect

    def _set(self, source: Source, node: cst.CSTNode) -> _Effect:
        """The effect of a call or assignment that sets a mode.

        A function of the program that has such a name is none, unless it is the model's own, which
        does more beside.
        """
        setting = setting_of(source, self._things, node)
        if setting is None:
            return _Effect()
        if setting.condition is not None:
            true = assumed.says(self._known, setting.condition)
            modes = setting.modes if true is None else frozenset((true,))
            setting = dataclasses.replace(setting, modes=modes)
        things = self._things.of(source, setting.model)
        models = {each for each in things if each.kind is Kind.MODEL}
        if self._model in models:  # of several, that one which the program has chosen
            return _Effect(setting.modes, sure=setting.whole)
        if models:
            inside = [self._is_inside(each) for each in models]
            return _Effect(setting.modes, sure=setting.whole) if all(inside) else _Effect()
        named = isinstance(node, cst.Call) and self._things.function(source, node) is not None
        if named or self._is_object(source, setting.model):
            return _Effect()
        # What is not known may contain the model; what takes values is no module.
        return _Effect(setting.modes) if setting.modes != EITHER else _Effect()

    def _is_inside(self, other: Thing) -> bool:
        """Whether another model makes this one, or is made with it, as a layer."""
        if not isinstance(other.made, cst.Call):
            return False
        cls = self._project.class_of(other.source, other.made.func)
        around = self._model.source.enclosing(self._model.made, cst.ClassDef)
        if cls is not None and around in self._project.bases(cls):
            return True
        arguments = (self._things.of(other.source, each.value) for each in other.made.args)
        return any(self._model in each for each in arguments)

    def _is_object(self, source: Source, node: cst.BaseExpression) -> bool:
        """Whether an expression is ``self`` of a class that is no module."""
        cls = source.enclosing(node, cst.ClassDef) if m.matches(node, m.Name("self")) else None
        return cls is not None and not self._project.is_module(cls)


def _together(effects: Iterable[_Effect]) -> _Effect:
    """The effect of one after the other."""
    return functools.reduce(_Effect.then, effects, _Effect())


def _statements(node: cst.CSTNode) -> Sequence[cst.CSTNode]:
    """The statements of a block, line or module."""
    return list(node.body) if isinstance(node, _BLOCKS) else []


def _blocks(source: Source, statement: cst.CSTNode) -> Iterator[cst.BaseSuite]:
    """The outermost blocks of a loop, a ``try`` or a ``match``."""
    for block in findall(statement, m.IndentedBlock() | m.SimpleStatementSuite()):
        if not any(isinstance(each, cst.BaseSuite) for each in source.between(block, statement)):
            yield block


def _within(source: Source, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
    """Whether a node is run with a piece around it, and not by a function defined there."""
    return not any(isinstance(each, _FUNCTIONS) for each in source.between(node, outer))


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
