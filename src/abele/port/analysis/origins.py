"""Where models come from that no class says to be one: copies, files, other packages.

What has its parameters updated is a model. An expression may be one that is known or one that is
not, as in ``copy.deepcopy(model) if apart else model``: these are two models.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.calls import copies, innermost
from abele.port.analysis.kinds import Kind
from abele.port.analysis.scopes import Variable
from abele.port.analysis.search import findall
from abele.port.source import Source

if TYPE_CHECKING:
    from abele.port.analysis.things import Things

Origin: TypeAlias = tuple[Source, cst.BaseExpression]


def origins(things: Things, source: Source, node: cst.BaseExpression) -> list[Origin]:
    """The calls of which nothing is known that make what an expression may be.

    Args:
        things: what is known so far.
        source: the file of the expression.
        node: the expression; where no call makes it and nothing is known of it, the result is it.
    """
    made = list(_Origins(things).of(source, node))
    return made if made or things.of(source, node) else [(source, node)]


class _Origins:
    def __init__(self, things: Things):
        self._things = things
        self._seen: set[Variable | cst.FunctionDef] = set()

    def of(self, source: Source, node: cst.BaseExpression) -> Iterator[Origin]:
        variable = self._things.variable(source, node)
        if isinstance(node, cst.IfExp):
            yield from self.of(source, node.body)
            yield from self.of(source, node.orelse)
        elif isinstance(node, cst.BooleanOperation):
            yield from self.of(source, node.left)
            yield from self.of(source, node.right)
        elif isinstance(node, cst.Call):
            yield from self._of_call(source, node)
        elif variable is not None and variable not in self._seen:
            self._seen.add(variable)
            yield from self._of_variable(variable)

    def _of_call(self, source: Source, node: cst.Call) -> Iterator[Origin]:
        made = innermost(node)
        if not self._things.of(source, made):
            if not self._is_given_a_model(source, made):
                yield source, made
            return
        function = self._things.function(source, made) if isinstance(made, cst.Call) else None
        if function is None or function in self._seen:
            return
        self._seen.add(function)
        at = self._things.file(function)
        for each in findall(function.body, m.Return()):
            if each.value is not None and at.enclosing(each, cst.FunctionDef) is function:
                yield from self.of(at, each.value)

    def _of_variable(self, variable: Variable) -> Iterator[Origin]:
        if isinstance(variable.owner, cst.FunctionDef):
            for call, caller in self._things.calls(variable.owner).items():
                value = self._things.arguments(variable.owner, call).get(variable.name)
                if value is not None:
                    yield from self.of(caller, value)
        for at, assign in self._things.assignments():
            if variable in [self._things.variable(at, each.target) for each in assign.targets]:
                yield from self.of(at, assign.value)

    def _is_given_a_model(self, source: Source, made: cst.BaseExpression) -> bool:
        """Whether a call changes or wraps a model: what it gives is that one."""
        if not isinstance(made, cst.Call) or copies(source, made):
            return False
        return any(self._things.of(source, each.value, Kind.MODEL) for each in made.args)
