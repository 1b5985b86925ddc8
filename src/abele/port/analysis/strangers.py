"""Says where a name may stand for something that is not followed, beside what it is known for.

A function that evaluates models may be given the trained one by one caller and an average of its
weights by another; only the first of them is followed.
"""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.calls import SAME, copies
from abele.port.analysis.scopes import Variable, parameters
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.source import Source


def may_be_another(
    things: Things,
    source: Source,
    node: cst.BaseExpression,
    seen: frozenset[Variable] = frozenset(),
) -> bool:
    """Whether an expression may be something that the program's things do not have.

    Args:
        things: what names stand for.
        source: the file.
        node: the expression.
        seen: variables that were looked at.
    """
    if m.matches(node, m.Name("None")):
        return False
    if isinstance(node, cst.IfExp):
        arms = node.body, node.orelse
        return any(may_be_another(things, source, each, seen) for each in arms)
    if not things.of(source, node):
        return not _of_nobody(things, things.variable(source, node))
    if m.matches(node, m.Call(func=m.Attribute(attr=m.OneOf(*map(m.Name, sorted(SAME)))))):
        assert isinstance(node, cst.Call)
        assert isinstance(node.func, cst.Attribute)
        return may_be_another(things, source, node.func.value, seen)
    variable = things.variable(source, node)
    if variable is None or variable in seen:
        return False
    return any(
        may_be_another(things, at, value, seen | {variable})
        for at, value in _values(things, variable)
    )


def _of_nobody(things: Things, variable: Variable | None) -> bool:
    """Whether a variable is a parameter of a function that nothing in the program calls."""
    if variable is None or not isinstance(variable.owner, cst.FunctionDef):
        return False
    function = variable.owner
    return variable.name in parameters(function) and not things.calls(function)


def _values(things: Things, variable: Variable) -> list[tuple[Source, cst.BaseExpression]]:
    """What a variable is given: by callers of its function, and by assignments."""
    values: list[tuple[Source, cst.BaseExpression]] = []
    if isinstance(variable.owner, cst.FunctionDef):
        for call, caller in things.calls(variable.owner).items():
            value = things.arguments(variable.owner, call).get(variable.name)
            if value is not None:
                values.append((caller, value))
    for at, assign in things.assignments():
        targets = [things.variable(at, each.target) for each in assign.targets]
        if variable in targets and not _goes_through(things, at, assign.value, variable):
            values.append((at, assign.value))
    return values


def _goes_through(
    things: Things, source: Source, value: cst.BaseExpression, variable: Variable
) -> bool:
    """Whether a variable is given what a function makes of it, such as ``prepare(model)``."""
    if not isinstance(value, cst.Call) or copies(source, value):
        return False
    inside = findall(value, m.Name() | m.Attribute(value=m.Name("self")))
    return any(things.variable(source, each) == variable for each in inside)
