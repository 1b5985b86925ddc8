"""Finds where a training model is constructed, and which variables are visible there."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.flow import reads, writes
from abele.port.analysis.kinds import Kind, Thing, models_updated, targets_of
from abele.port.analysis.order import Order
from abele.port.analysis.parts import Statement, StepError, block_of
from abele.port.analysis.steps import Step
from abele.port.analysis.things import Home, NoRouteError
from abele.port.context import Context
from abele.port.edits import renamed
from abele.port.source import Source, findall

_SEVERAL = (
    "the optimizer is made in several places, and the training model is made with it: choose the "
    "class or the arguments under a condition, and make the optimizer once"
)


def home(context: Context, step: Step) -> Home:
    """Return the assignment that creates the optimizer of a training step.

    Raises:
        StepError: it is created in several places, or none.
    """
    try:
        (first, *others) = [context.things.home(each) for each in step.gradients.optimizers]
    except NoRouteError as error:
        raise StepError(step.update, f"the optimizer is not made in one place: {error}") from error
    if any(each.statement is not first.statement for each in others):
        raise StepError(step.update, _SEVERAL)
    return first


def after_all(context: Context, step: Step, place: Home, names: Iterable[str]) -> Statement:
    """Return the statement after which the training model can be constructed.

    It creates the optimizer, something that the loss needs, or a scheduler, which may set the first
    learning rate.
    """
    block = block_of(place.source, place.statement)
    start = block.index(place.statement)
    known = {name for each in block[: start + 1] for name in _assigned(each)}
    places = [start]
    for name in {*names} - known:
        places += [index for index, each in enumerate(block) if name in _assigned(each)][:1]
    trains = {node for _, node in Order(context.things).sites(step.source, step.backward)}
    schedulers = {
        each
        for each in context.things.all(Kind.SCHEDULER)
        if of_scheduler(context, each) & {*step.gradients.optimizers}
    }
    for index, statement in enumerate(block[max(places) + 1 :], max(places) + 1):
        calls = findall(statement, m.Call())
        if {statement, *calls} & trains:
            break
        made = {each for call in calls for each in context.things.of(place.source, call)}
        if made & schedulers or any(each.made in calls for each in schedulers):
            places.append(index)
    return block[max(places)]


def of_scheduler(context: Context, scheduler: Thing) -> set[Thing]:
    """Return the optimizers that a learning rate scheduler receives."""
    made = scheduler.made
    first = argument(made, "optimizer", 0) if isinstance(made, cst.Call) else None
    if first is None:
        return set()
    return context.things.of(scheduler.source, first, Kind.OPTIMIZER)


def is_later(place: Home, text: str) -> bool:
    """Return whether an expression needs variables that are assigned after the optimizer."""
    block = block_of(place.source, place.statement)
    index = block.index(place.statement)
    before = {name for each in block[:index] for name in _assigned(each)}
    after = {name for each in block[index:] for name in _assigned(each)}
    return bool(needed(text) & (after - before))


def needed(text: str) -> set[str]:
    """Return the names, and attributes of ``self``, that statements, given as text, read."""
    module = cst.parse_module(text)
    return {*reads(module), *_attributes(module)}


def _assigned(statement: Statement) -> set[str]:
    """Return the names, and attributes of ``self``, that a statement assigns."""
    targets = findall(statement, m.AssignTarget() | m.AnnAssign())
    return {*writes(statement)}.union(*(_attributes(each.target) for each in targets))


def _attributes(node: cst.CSTNode) -> set[str]:
    attributes = findall(node, m.Attribute(value=m.Name("self")))
    return {f"self.{each.attr.value}" for each in attributes}


def value(context: Context, at: Source, node: cst.BaseExpression, place: Home) -> str:
    """Return the source text of a step's expression, valid where the optimizer is created.

    Args:
        context: the program.
        at: the file of the expression.
        node: the expression.
        place: the assignment of the optimizer.

    Raises:
        StepError: a name in the expression is not known there.
    """
    if context.things.variable(at, node) is not None:
        return _of_variable(context, at, node, place)
    known = set(reads(node))
    names = {
        each.value: _of_variable(context, at, each, place)
        for each in findall(node, m.Name())
        if each.value in known
    }
    return at.code(renamed(node, names))


def _of_variable(context: Context, at: Source, node: cst.BaseExpression, place: Home) -> str:
    """Return the source text of a variable's value, valid where the optimizer is created."""
    things, code = context.things, at.code(node)
    variable = things.variable(at, node)
    assert variable is not None
    there = things.owner(place.source, place.statement)
    visible = (there, place.source.module, *place.source.above(place.statement))
    cls = place.source.enclosing(place.statement, cst.ClassDef)
    kin = cls is not None and variable.owner in context.project.bases(cls)
    if (at is place.source and (variable.owner in visible or kin)) or hasattr(builtins, code):
        return code
    for thing in things.of(at, node):
        for owner in visible:
            if isinstance(owner, cst.FunctionDef | cst.Module):
                names = things.names(owner, thing)
                if names:
                    return names[0]
    for thing in things.of(at, node):
        if thing not in _updated(context, place) and _is_closed(context, thing):
            return at.code(thing.made)
    if isinstance(variable.owner, cst.FunctionDef):
        text = _from_caller(context, variable.owner, variable.name, there)
        if text is not None:
            return text
    raise StepError(
        node,
        f"the training model needs {code}, which is not known where the optimizer is made: "
        "compute it before that line, or in the module",
    )


def _updated(context: Context, place: Home) -> set[Thing]:
    """Return the models whose parameters the assigned optimizer updates."""
    (assign,) = findall(place.statement, m.Assign()) or (None,)
    call = assign.value if isinstance(assign, cst.Assign) else None
    models = models_updated(call) if isinstance(call, cst.Call) else []
    return {thing for each in models for thing in context.things.of(place.source, each)}


def _is_closed(context: Context, thing: Thing) -> bool:
    """Return whether an object's constructor call reads only module-level names."""
    return all(
        context.things.named(thing.source, thing.made, name) is thing.source.module
        for name in reads(thing.made)
    )


def _from_caller(context: Context, function: cst.FunctionDef, name: str, there: Any) -> str | None:
    """Return the source text that a function's only caller passes for a parameter, or None.

    The argument has to be a name, a number, or a part of an object that is never assigned; a
    default has to be a number.
    """
    calls = context.things.calls(function)
    if len(calls) != 1:
        return None
    ((call, source),) = calls.items()
    defaults = {each.name.value: each.default for each in function.params.params if each.default}
    given = context.things.arguments(function, call).get(name)
    if given is None and m.matches(defaults.get(name, cst.Name("None")), _NUMBER):
        given = defaults[name]
    if given is None or context.things.owner(source, call) is not there:
        return None
    written = {
        at.code(target)
        for at in context.project.sources
        for node in findall(at.module, m.Assign() | m.AugAssign())
        for target in targets_of(node)
    }
    code = source.code(given)
    kept = m.matches(given, _PART) and code not in written
    return code if kept or m.matches(given, m.Name() | _NUMBER) else None


_NUMBER = m.Integer() | m.Float()
_PART = m.Attribute() | m.Subscript(slice=[m.SubscriptElement(m.Index(m.SimpleString()))])
