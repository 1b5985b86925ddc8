"""Finds out whether a model may have averages that training renews, such as those of batch norm.

What a model is made of is followed from the expression that makes it: through names, functions and
classes of the program, and what is put into the model later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.flow import writes
from abele.port.analysis.kinds import Thing
from abele.port.analysis.scopes import parameters
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.project import Owner, Project
from abele.port.source import Source

#: Names of what has averages.
_AVERAGES = ("BatchNorm", "register_buffer", "track_running_stats")
#: Packages whose networks have some, but for these.
_NETWORKS = ("torchvision.models.", "timm.", "transformers.")
_WITHOUT = re.compile(r"torchvision\.models\.(alexnet|squeezenet1_[01]|vgg(11|13|16|19))$")
_PIECE = tuple[Source, cst.CSTNode]


def keeps_averages(project: Project, things: Things, model: Thing) -> bool:
    """Whether a model may have averages that training renews.

    Args:
        project: the program.
        things: what names stand for.
        model: the model.
    """
    made = model.made.func if isinstance(model.made, cst.Call) else model.made
    known = project.class_of(model.source, made) is not None
    if not known and not model.name.startswith("torch.nn."):
        return True
    return _Search(project, things, model).has_averages()


class _Search:
    """Goes through all pieces of a program that a model is made of."""

    def __init__(self, project: Project, things: Things, model: Thing):
        self._project, self._things, self._model = project, things, model
        self._waiting: list[_PIECE] = [(model.source, model.made)]
        self._seen: set[cst.CSTNode] = set()

    def has_averages(self) -> bool:
        self._waiting += self._put_in_later()
        while self._waiting:
            source, piece = self._waiting.pop()
            if piece in self._seen:
                continue
            self._seen.add(piece)
            if _names_averages(source, piece):
                return True
            for node in findall(piece, m.Name() | m.Attribute()):
                self._waiting += self._meant(source, node)
        return False

    def _meant(self, source: Source, node: cst.Name | cst.Attribute) -> Iterator[_PIECE]:
        """What a name in a piece stands for: a class, a function, or what it is given."""
        cls, function = self._project.class_of(source, node), self._project.function(source, node)
        if cls is not None:
            yield from ((self._project.source(each), each) for each in self._project.bases(cls))
        elif function is not None:
            yield self._project.source(function), function
        elif m.matches(node, m.Attribute(value=m.Name("self"))):
            around = source.enclosing(node, cst.ClassDef)
            if around is not None:
                yield source, around
        elif isinstance(node, cst.Name):
            owner = self._things.named(source, node, node.value)
            yield from self._given(source, owner, node.value)

    def _given(self, source: Source, owner: Owner, name: str) -> Iterator[_PIECE]:
        """What a variable is given: by assignments, calls of its methods, and callers."""
        for each in findall(owner, m.Assign() | m.AnnAssign() | m.AugAssign() | m.For()):
            if name in writes(each) and self._things.named(source, each, name) is owner:
                yield source, each.iter if isinstance(each, cst.For) else each
        for call in findall(owner, m.Expr(m.Call(func=m.Attribute(value=m.Name(name))))):
            yield source, call
        inside = isinstance(owner, cst.FunctionDef) and name in parameters(owner)
        if inside and owner in self._model.source.above(self._model.made):
            assert isinstance(owner, cst.FunctionDef)
            for call, caller in self._things.calls(owner).items():
                yield caller, call

    def _put_in_later(self) -> Iterator[_PIECE]:
        """What is assigned to attributes of the model, and what functions do that it is given to.

        Names of such functions are followed no further than their own text: they may be given other
        models, too.
        """
        for source in self._project.sources:
            for each in findall(source.module, m.Assign()):
                if any(self._is_part(source, target.target) for target in each.targets):
                    yield source, each.value
            for call in findall(source.module, m.Call()):
                of_model = isinstance(call.func, cst.Attribute) and self._is(
                    source, call.func.value
                )
                if of_model:
                    yield from ((source, argument.value) for argument in call.args)
                elif any(self._is(source, argument.value) for argument in call.args):
                    yield source, call.func

    def _is_part(self, source: Source, target: cst.BaseExpression) -> bool:
        """Whether an attribute or an element of the model is assigned to."""
        while isinstance(target, cst.Attribute | cst.Subscript):
            target = target.value
            if self._is(source, target):
                return True
        return False

    def _is(self, source: Source, node: cst.BaseExpression) -> bool:
        return self._model in self._things.of(source, node)


def _names_averages(source: Source, piece: cst.CSTNode) -> bool:
    """Whether a piece itself may make what has averages."""
    names = {each.value for each in findall(piece, m.Name())}
    if any(part in name for part in _AVERAGES for name in names):
        return True
    dotted = findall(piece, m.Name() | m.Attribute())
    imported = {source.imported(each) for each in dotted}
    return any(each.startswith(_NETWORKS) and not _WITHOUT.match(each) for each in imported)
