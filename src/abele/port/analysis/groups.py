"""Finds groups of an optimizer's parameters that a loop has sorted into lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.calls import elements_of
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.project import Owner
from abele.port.source import Source


def sorted_models(things: Things, optimizer: Thing) -> set[Thing]:
    """Return the models whose parameters a loop sorts into an optimizer's groups.

    Args:
        things: what names stand for.
        optimizer: that is given lists which ``append`` has filled, by name or by a function.
    """
    made = optimizer.made
    if not isinstance(made, cst.Call) or not made.args:
        return set()
    source, given = optimizer.source, made.args[0].value
    owner: Owner = things.owner(source, made)
    if isinstance(given, cst.Call):
        function = things.function(source, given)
        returned = [] if function is None else findall(function.body, m.Return())
        if function is None or len(returned) != 1 or returned[0].value is None:
            return set()
        source, given, owner = things.file(function), returned[0].value, function
    lists = set(_lists(things, source, owner, given))
    loops = findall(owner, m.For(iter=_PARAMETERS))
    return {
        thing
        for loop in loops
        if lists and _puts_all(loop.body.body, _parameter(loop), lists)
        for thing in things.of(source, loop.iter.func.value, Kind.MODEL)
    }


def _lists(
    things: Things, source: Source, owner: Owner, given: cst.BaseExpression
) -> Iterator[str]:
    """Names of the lists of parameters that groups have."""
    if isinstance(given, cst.Name):
        yield given.value
        for each in findall(owner, m.Assign(targets=[m.AssignTarget(m.Name(given.value))])):
            if things.owner(source, each) is owner and isinstance(each.value, cst.List):
                yield from _lists(things, source, owner, each.value)
    for group in elements_of(given) if isinstance(given, cst.List | cst.Tuple) else ():
        for entry in group.elements if isinstance(group, cst.Dict) else ():
            if m.matches(entry, m.DictElement(key=_PARAMS, value=m.Name())):
                yield cst.ensure_type(entry.value, cst.Name).value


def _parameter(loop: cst.For) -> str:
    """Return the loop variable that names a parameter."""
    target = loop.target
    if isinstance(target, cst.Tuple):
        target = target.elements[-1].value
    return target.value if isinstance(target, cst.Name) else ""


def _puts_all(body: Sequence[cst.CSTNode], parameter: str, lists: set[str]) -> bool:
    """Return whether statements append a parameter to a list on every path."""
    appended = m.Call(
        func=m.Attribute(value=m.SaveMatchedNode(m.Name(), "list"), attr=m.Name("append")),
        args=[m.Arg(m.Name(parameter))],
    )
    for each in body:
        match = m.extract(each, m.SimpleStatementLine(body=[m.Expr(appended)]))
        if match is not None and getattr(match["list"], "value", "") in lists:
            return True
        if not isinstance(each, cst.If):
            if findall(each, _LEAVES):
                return False
            continue
        other = each.orelse
        rest = other.body.body if isinstance(other, cst.Else) else [other] if other else []
        if _puts_all(each.body.body, parameter, lists):
            if rest and _puts_all(rest, parameter, lists):
                return True
        elif findall(each, _LEAVES) and not m.matches(each, _frozen(parameter)):
            return False
    return False


def _frozen(parameter: str) -> m.If:
    """Parameters that are not trained are left out."""
    trained = m.Attribute(value=m.Name(parameter), attr=m.Name("requires_grad"))
    left_out = m.SimpleStatementLine(body=[m.Continue()])
    return m.If(
        test=m.UnaryOperation(operator=m.Not(), expression=trained),
        body=m.IndentedBlock(body=[left_out]),
        orelse=None,
    )


_LEAVES = m.Continue() | m.Break() | m.Return() | m.Raise()
_PARAMETERS = m.Call(
    func=m.Attribute(attr=m.Name("parameters") | m.Name("named_parameters")), args=[]
)
_PARAMS = m.SimpleString('"params"') | m.SimpleString("'params'")
