"""Finds the statement that gives a thing its name."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import libcst as cst

from abele.port.analysis.kinds import Thing
from abele.port.analysis.scopes import Variable
from abele.port.source import Source

if TYPE_CHECKING:
    from abele.port.analysis.things import Things


class NoHomeError(Exception):
    """There is no one place where a thing gets its name."""


@dataclasses.dataclass(frozen=True)
class Home:
    """Where a thing gets the name by which the program goes on.

    Attributes:
        source: the file.
        statement: that assigns it.
        variable: that it is assigned to.
    """

    source: Source
    statement: cst.SimpleStatementLine
    variable: Variable


def home_of(things: Things, thing: Thing) -> Home:
    """Where a thing is first given the name by which the program goes on.

    Raises:
        NoHomeError: it is assigned to no name, or in several places.
    """
    home = _assigned(things, thing.source, thing.made, 0)
    function = thing.source.enclosing(thing.made, cst.FunctionDef)
    source = thing.source
    while function is not None:
        results = enumerate(things.results(function))
        places = [index for index, values in results if thing in values]
        calls = things.calls(function)
        if not places or not calls:
            break
        if len(calls) > 1:
            raise NoHomeError(f"{function.name.value}() makes a new one in each of its calls")
        ((call, source),) = calls.items()
        home = _assigned(things, source, call, places[0]) or home
        function = source.enclosing(call, cst.FunctionDef)
    if home is None:
        home = _kept_by_callee(things, thing)
    if home is None:
        raise NoHomeError("it is not assigned to a variable")
    return home


def _assigned(things: Things, source: Source, node: cst.BaseExpression, index: int) -> Home | None:
    """The assignment around an expression, to the variable that an element of it goes to."""
    assign = next((each for each in source.above(node) if isinstance(each, cst.Assign)), None)
    if assign is None or _is_given(things, source, node, assign):
        return None
    target: cst.BaseExpression = assign.targets[0].target
    if isinstance(target, cst.Tuple):
        place = index
        if isinstance(assign.value, cst.Tuple):
            values = [element.value for element in assign.value.elements]
            inside = {node, *source.above(node)}
            place = next(number for number, each in enumerate(values) if each in inside)
        target = target.elements[place].value
    variable = things.variable(source, target)
    statement = source.enclosing(assign, cst.SimpleStatementLine)
    if variable is None or statement is None:
        return None
    return Home(source, statement, variable)


def _is_given(things: Things, source: Source, node: cst.CSTNode, assign: cst.Assign) -> bool:
    """Whether an expression is an argument of a call whose result is assigned instead."""
    here = things.of(source, node) if isinstance(node, cst.BaseExpression) else set[Thing]()
    for each in source.above(node):
        if each is assign:
            return False
        if isinstance(each, cst.Arg):
            call = source.parent(each)
            assert isinstance(call, cst.Call)
            if not things.of(source, call) & here:
                return True
    return False


def _kept_by_callee(things: Things, thing: Thing) -> Home | None:
    """Where a function that is given a new thing assigns it to a name."""
    for at, event in things.assignments():
        if thing in things.of(at, event.value):
            variable = things.variable(at, event.targets[0].target)
            statement = at.enclosing(event, cst.SimpleStatementLine)
            if variable is not None and statement is not None and len(event.targets) == 1:
                return Home(at, statement, variable)
    return None
