"""Finds out whether ``zero_grad`` is called between two updates; if not, gradients add up."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.by_hand import forgets
from abele.port.analysis.kinds import Thing
from abele.port.analysis.parts import calls_of
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.source import Source

_ONCE = cst.For | cst.While | cst.If | cst.FunctionDef | cst.ClassDef | cst.Lambda


def is_forgotten(source: Source, things: Things, node: cst.CSTNode, trained: set[Thing]) -> bool:
    """Whether each turn of the loop around a node forgets gradients, there or in a function.

    Args:
        source: the file.
        things: what its names stand for.
        node: what computes gradients.
        trained: the models and optimizers whose gradients these are.
    """
    return _Forgetting(things, trained).around(source, node, frozenset())


class _Forgetting:
    def __init__(self, things: Things, trained: set[Thing]):
        self._things, self._trained = things, trained

    def around(self, source: Source, node: cst.CSTNode, seen: frozenset[cst.CSTNode]) -> bool:
        """Whether this is done around a node, up to the loop, or by whoever calls its function."""
        for each in source.above(node):
            if isinstance(each, cst.IndentedBlock | cst.Module) and any(
                self._does(source, statement, seen) for statement in each.body
            ):
                return True
            if isinstance(each, cst.For | cst.While | cst.CompFor | cst.BaseComp):
                return False
            if isinstance(each, cst.FunctionDef):
                calls = {} if each in seen else self._things.calls(each)
                every = [self.around(at, call, seen | {each}) for call, at in calls.items()]
                return bool(every) and all(every)
        return False

    def _does(self, source: Source, statement: cst.CSTNode, seen: frozenset[cst.CSTNode]) -> bool:
        """Whether a statement forgets gradients whenever it is run."""
        for call in calls_of(statement, "zero_grad"):
            if _is_sure(source, call, statement) and self._is_of(source, call):
                return True
        for each in findall(statement, m.SimpleStatementLine()):
            if forgets(each):
                return True
        for call in findall(statement, m.Call()):
            function = self._things.function(source, call)
            if function is None or function in seen or not _is_sure(source, call, statement):
                continue
            at = self._things.file(function)
            if any(self._does(at, each, seen | {function}) for each in function.body.body):
                return True
        return False

    def _is_of(self, source: Source, call: cst.Call) -> bool:
        assert isinstance(call.func, cst.Attribute)
        known = self._things.of(source, call.func.value)
        return not known or bool(known & self._trained)


def _is_sure(source: Source, node: cst.CSTNode, statement: cst.CSTNode) -> bool:
    """Whether a node is run whenever a statement is, once."""
    around = (statement, *source.between(node, statement))
    return not any(isinstance(each, _ONCE) for each in around)
