"""Learning rates, and whatever else is changed in an optimizer by hand."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind
from abele.port.analysis.parts import Statement, statement_of
from abele.port.analysis.scopes import names_in
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.rules.schedulers import tell
from abele.port.source import Source

CODES = {
    "ABP412": "The training model is given the optimizer again after its rate has changed.",
}


def apply(context: Context) -> None:
    """Give the optimizer to the training model after its groups were changed."""
    for source in context.project.sources:
        changed: dict[Statement, None] = {}
        for node in findall(source.module, m.Attribute(attr=m.Name("param_groups"))):
            assert isinstance(node, cst.Attribute)
            optimizers = context.things.of(source, node.value, Kind.OPTIMIZER)
            statement = statement_of(source, node)
            trained = [each for each in optimizers if each in context.training]
            if trained and statement not in changed and _writes(source, statement, node):
                changed[statement] = None
                tell(context, source, statement, trained[0], "ABP412")


def _writes(source: Source, statement: Statement, groups: cst.Attribute) -> bool:
    """Whether a statement changes an element of an optimizer's groups."""
    if isinstance(statement, cst.For):
        names = set(names_in(statement.target))
        targets = [
            target
            for node in findall(statement.body, m.Assign() | m.AugAssign())
            for target in _targets(node)
        ]
        roots = {_root(each) for each in targets if isinstance(each, cst.Subscript)}
        inside = any(_is_around(source, each, groups) for each in targets)
        return bool(names & roots) or inside
    return any(
        _is_around(source, target, groups)
        for node in findall(statement, m.Assign() | m.AugAssign())
        for target in _targets(node)
    )


def _targets(node: cst.CSTNode) -> list[cst.BaseExpression]:
    if isinstance(node, cst.Assign):
        return [each.target for each in node.targets]
    return [node.target] if isinstance(node, cst.AugAssign) else []


def _root(node: cst.BaseExpression) -> str:
    while isinstance(node, cst.Subscript | cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""


def _is_around(source: Source, target: cst.BaseExpression, node: cst.CSTNode) -> bool:
    return isinstance(target, cst.Subscript) and target in source.above(node)
