"""Evaluations by a function that training calls, too, and that calls the model itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.helpers import Helpers
from abele.port.analysis.kinds import Thing
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.source import Source


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Use:
    """A call by which a model is evaluated.

    Attributes:
        source: its file.
        call: of the model, or of a function that is given the model.
        thing: the model.
        model: what stands for the model in the call; None where the function has it from elsewhere,
            or does more with it than to call it once.
        given: the arguments that are, or have, the batch.
        part: an index, as text, of the first of these that has a row for each of the batch; ``""``
            for the whole.
        function: the name of the function; ``""`` where the model is called.
    """

    source: Source
    call: cst.Call
    thing: Thing
    model: cst.BaseExpression | None
    given: Sequence[cst.Arg]
    part: str = ""
    function: str = ""


def uses(context: Context) -> list[Use]:
    """Calls of functions that steps call, too, at other places; in the order of the program."""
    files = {source: index for index, source in enumerate(context.project.sources)}
    return sorted(
        _uses(context), key=lambda use: (files[use.source], use.source.position(use.call))
    )


def _uses(context: Context) -> Iterator[Use]:
    helpers = {each for step in context.steps for each in step.helpers}
    inside: set[cst.CSTNode] = {*helpers, *context.replaced}
    inside |= {each for step in context.steps for each in (*step.forward, step.backward)}
    trained = {thing for step in context.steps for thing in step.models}
    for function in helpers:
        for call, source in context.things.calls(function).items():
            if inside & {*source.above(call)}:
                continue
            known = dict(Helpers(context.project, context.things).models(source, call))
            for thing, model in known.items():
                if thing in trained:
                    yield _use(context, source, call, thing, function, model, len(known) == 1)


def _use(
    context: Context,
    source: Source,
    call: cst.Call,
    thing: Thing,
    function: cst.FunctionDef,
    model: cst.BaseExpression,
    alone: bool,
) -> Use:
    """What is known of a call of a function."""
    given = [each for each in call.args if each.value is not model]
    names = context.things.arguments(function, call)
    own = next((name for name, value in names.items() if value is model), None)
    first = next((name for name, value in names.items() if given and value is given[0].value), None)
    taken = alone and own is not None and len(given) < len(call.args) and _calls_once(function, own)
    return Use(
        source=source,
        call=call,
        thing=thing,
        model=model if taken else None,
        given=given,
        part="" if first is None else _part(source, function, first),
        function=function.name.value,
    )


def _calls_once(function: cst.FunctionDef, name: str) -> bool:
    """Whether a function calls one of its parameters once, and does nothing else with it."""
    nodes = findall(function.body, m.Name(name))
    called = findall(function.body, m.Call(func=m.Name(name)))
    return len(nodes) == len(called) == 1


def _part(source: Source, function: cst.FunctionDef, name: str) -> str:
    """The index of a part that a function takes of a parameter; ``""`` if it takes none."""
    apart = m.Assign(targets=[m.AssignTarget(m.Tuple() | m.List())], value=m.Name(name))
    if findall(function.body, apart):
        return "[0]"
    index = m.SubscriptElement(m.Index(m.SimpleString() | m.Integer()))
    read: list[cst.Subscript] = findall(
        function.body, m.Subscript(value=m.Name(name), slice=[index])
    )
    return f"[{source.code(read[0].slice[0].slice)}]" if read else ""
