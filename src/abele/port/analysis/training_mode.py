"""Reads from the text in which mode a model may be where it is called: ``train()`` or ``eval()``.

Only plain statements count, backwards from the call through the blocks and callers around it.
Whatever else may set a mode, such as ``training = False`` or a hook, makes both modes possible.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import libcst as cst
from libcst import matchers as m

from abele.port import tree
from abele.port.analysis import assumed
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.scopes import parameters
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.project import Project
from abele.port.source import Source

EITHER = frozenset((True, False))
_SETTING = m.Attribute(attr=m.Name("train") | m.Name("eval"))
_PERHAPS = m.IfExp() | m.BooleanOperation() | m.Lambda() | m.ListComp() | m.GeneratorExp()
_FLAG = m.Attribute(attr=m.Name("training"))
#: Makers of models that are perhaps in evaluation mode from the start.
_AS_STORED = re.compile(r"from_pretrained$|deepcopy$|^torch\.(load|hub\.load|jit\.load)$")
#: Words of a program in which a mode, or an average that training renews, matters.
_MATTERS = re.compile(
    r"[Dd]ropout|Norm\d?d?\b|register_buffer|\.training\b|[Rr]relu|RReLU|Transformer|track_running"
    r"|torchvision|timm|from_pretrained|hub\.load"
)


class _Effect(NamedTuple):
    """Modes in which statements may leave a model.

    Attributes:
        modes: True for training, False for evaluation.
        sure: the statements set one of them on every path; otherwise the mode before may remain.
    """

    modes: frozenset[bool] = frozenset()
    sure: bool = False

    def then(self, later: _Effect) -> _Effect:
        return later if later.sure else _Effect(self.modes | later.modes, self.sure)

    def perhaps(self) -> _Effect:
        return _Effect(self.modes)


def mode_matters(project: Project, model: Thing) -> bool:
    """Return whether a model may compute something else in evaluation than in training mode."""
    made = model.made.func if isinstance(model.made, cst.Call) else model.made
    known = model.name.startswith("torch.nn.") or project.class_of(model.source, made) is not None
    return not known or any(_MATTERS.search(each.text) for each in project.sources)


class TrainingMode:
    """Modes in which one model may be."""

    def __init__(self, project: Project, things: Things, model: Thing):
        """Look at one model of a program."""
        self._project, self._things, self._model = project, things, model
        self._inside: set[cst.FunctionDef] = set()
        self._first = EITHER if _AS_STORED.search(model.name) else frozenset((True,))
        self._odd = any(self._is_odd(source) for source in project.sources)

    def at(self, source: Source, node: cst.CSTNode) -> frozenset[bool]:
        """Return the modes in which the model may be where a node is: True for training."""
        return EITHER if self._odd else self._before(source, node, frozenset())

    def _before(
        self, source: Source, node: cst.CSTNode, seen: frozenset[cst.CSTNode]
    ) -> frozenset[bool]:
        modes: frozenset[bool] = frozenset()
        inner = node
        for each in source.above(node):
            if isinstance(each, cst.FunctionDef):
                calls = assumed.callers(self._things, source, node)
                if each in seen:
                    return modes
                if not calls or self._is_given_away(each):
                    return modes | self._first | self._anywhere()
                some = [self._before(at, call, seen | {each}) for call, at in calls.items()]
                return modes.union(*some)
            if isinstance(each, cst.Lambda):
                return EITHER if self._anywhere() else self._first
            effect = _Effect()
            if isinstance(each, cst.IndentedBlock | cst.Module):
                block = list(each.body)
                before = block[: next((i for i, e in enumerate(block) if e is inner), len(block))]
                effect = self._of_block(source, before)
            elif isinstance(each, cst.For | cst.While):
                head = each.iter if isinstance(each, cst.For) else each.test
                skips = findall(each.body, m.Continue() | m.Try()) or self._settings(source, head)
                turn = self._of_block(source, each.body.body)
                effect = self._of(source, each) if skips else turn.perhaps()
            elif isinstance(each, cst.With):
                effect = self._entered(source, each)
            elif isinstance(each, cst.Try | cst.TryStar):
                effect = self._of(source, each)
            else:  # a line of several statements, the header of a condition, or an expression
                pieces = [e for e in tree.children(each) if not isinstance(e, cst.IndentedBlock)]
                effect = _Effect(_union(self._settings(source, e) for e in pieces))
            modes |= effect.modes
            if effect.sure:
                return modes
            inner = each
        return modes | self._first

    def _of_block(self, source: Source, statements: Sequence[cst.CSTNode]) -> _Effect:
        effect = _Effect()
        for each in statements:
            effect = effect.then(self._of(source, each))
        return effect

    def _of(self, source: Source, statement: cst.CSTNode) -> _Effect:
        """Return the effect of one statement."""
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            return _Effect()
        if isinstance(statement, cst.With):
            return self._entered(source, statement).then(
                self._of_block(source, statement.body.body)
            )
        if not isinstance(statement, cst.SimpleStatementLine) or findall(statement, _PERHAPS):
            return _Effect(self._settings(source, statement))
        effect = _Effect()
        for each in statement.body:
            for call in reversed(findall(each, m.Call())):  # inner calls first
                effect = effect.then(self._of_call(source, call))
        return effect

    def _settings(self, source: Source, piece: cst.CSTNode) -> frozenset[bool]:
        """Return the modes that any call in a piece of a program may set."""
        every = (self._of_call(source, call) for call in findall(piece, m.Call()))
        return _union(each.modes for each in every)

    def _entered(self, source: Source, statement: cst.With) -> _Effect:
        """Return what managers of a ``with`` may set before and after its block."""
        every = [self._settings(source, each) for each in statement.items]
        for item in statement.items:
            for call in findall(item, m.Call()):
                cls = self._project.class_of(source, call.func)
                if cls is not None:
                    every.append(self._settings(self._project.source(cls), cls))
        modes = _union(every)
        return _Effect(EITHER if modes else modes)

    def _of_call(self, source: Source, call: cst.Call) -> _Effect:
        """Return the effect of a setting, of a function, or of the call that makes the model."""
        if call is self._model.made:
            return _Effect(self._first, sure=True)
        if m.matches(call.func, _SETTING):
            func = cst.ensure_type(call.func, cst.Attribute)
            things = self._things.of(source, func.value, Kind.MODEL)
            if self._model in things or any(map(self._is_inside, things)):
                return _Effect(*_set_by(func.attr.value, call))
        function = self._things.function(source, call)
        if function is None or function in self._inside:
            return _Effect()
        self._inside.add(function)
        at = self._project.source(function)
        effect = self._of_block(at, function.body.body)
        self._inside.remove(function)
        leaves = findall(function.body, m.Return() | m.Raise() | m.Yield())
        last = function.body.body[-1]
        if any(each is not last and last not in at.above(each) for each in leaves):
            return _Effect(self._settings(at, function.body))
        return effect

    def _is_run(self, source: Source, receiver: cst.BaseExpression) -> bool:
        """Whether a receiver is anything else than a parameter of a function that nothing calls."""
        function = source.enclosing(receiver, cst.FunctionDef)
        given = set[str]() if function is None else {*parameters(function)}
        unused = isinstance(receiver, cst.Name) and receiver.value in given - {"self"}
        return (
            function is None
            or not unused
            or bool(self._things.calls(function) or self._is_given_away(function))
        )

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

    def _is_given_away(self, function: cst.FunctionDef) -> bool:
        """Whether a function is passed on: others may call it, at any time."""
        name = m.Name(function.name.value)
        argument = m.Arg(value=name | m.Attribute(value=m.Name("self"), attr=name))
        return any(findall(source.module, argument) for source in self._project.sources)

    def _anywhere(self) -> frozenset[bool]:
        return _union(self._settings(source, source.module) for source in self._project.sources)

    def _is_odd(self, source: Source) -> bool:
        """Whether a file sets the mode of something in another way than by a plain call."""
        called = {call.func: call for call in findall(source.module, m.Call())}
        for node in findall(source.module, _SETTING):
            things = self._things.of(source, node.value)
            call = called.get(node)
            if source.imported(node).startswith("torch.nn."):
                return True
            if call is None and self._model in things:
                return True
            if call is None or things or len(call.args) > 1 or source.imported(node.value):
                continue
            if self._things.function(source, call) is None and self._is_run(source, node.value):
                return True
        for target in _targets(source.module):
            if m.matches(target, _FLAG):
                return True
        named = m.Call(func=m.Name("getattr") | m.Name("setattr"))
        for call in findall(source.module, named):
            if call.args and self._things.of(source, call.args[0].value, Kind.MODEL):
                return True
        return any(
            each.name.value in ("train", "eval")
            and isinstance(cls := source.enclosing(each, cst.ClassDef), cst.ClassDef)
            and self._project.is_module(cls)
            for each in findall(source.module, m.FunctionDef())
        )


def _union(modes: Iterable[frozenset[bool]]) -> frozenset[bool]:
    return frozenset[bool]().union(*modes)


def _targets(module: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield what assignments of a file assign to."""
    for each in findall(module, m.AssignTarget() | m.AnnAssign() | m.AugAssign()):
        yield each.target


def _set_by(name: str, call: cst.Call) -> tuple[frozenset[bool], bool]:
    """Return the modes that ``train(mode)`` or ``eval()`` sets, and whether that is known."""
    if name == "eval":
        return frozenset((False,)), True
    mode = call.args[0].value if call.args else cst.Name("True")
    if m.matches(mode, m.Name("True") | m.Name("False")):
        return frozenset((cst.ensure_type(mode, cst.Name).value == "True",)), True
    return EITHER, True
