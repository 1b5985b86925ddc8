"""Finds where a training model is made, and what expressions of a step are called there."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.calls import models_updated, targets_of
from abele.port.analysis.flow import reads, writes
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.order import Order
from abele.port.analysis.parts import Statement, StepError, block_of
from abele.port.analysis.search import findall
from abele.port.analysis.steps import Step
from abele.port.analysis.things import Home, NoHomeError
from abele.port.context import Context
from abele.port.edits import renamed
from abele.port.project import Owner
from abele.port.rules import schedulers
from abele.port.source import Source


def home(context: Context, step: Step) -> Home:
    """Where the optimizer of a step gets its name.

    Raises:
        StepError: there is no one place.
    """
    try:
        return context.things.home(step.optimizer)
    except NoHomeError as error:
        raise StepError(step.update, f"the optimizer is not made in one place: {error}") from error


def kept_by_constructor(context: Context, step: Step) -> Home | None:
    """Where the constructor of a step's object keeps its one optimizer, which others have made.

    What a step needs of its object is known there, and not where the optimizer is made.
    """
    cls = step.source.enclosing(step.backward, cst.ClassDef)
    made = None if cls is None else context.project.method(cls, "__init__")
    if cls is None or made is None or context.project.source(made) is not step.source:
        return None
    if len(context.things.calls(made)) != 1 or len(step.gradients.optimizers) != 1:
        return None
    kept = [
        (each, target.target)
        for each in findall(cls, m.Assign())
        for target in each.targets
        if step.optimizer in context.things.of(step.source, target.target)
    ]
    if len(kept) != 1 or len(kept[0][0].targets) != 1:
        return None
    ((assign, target),) = kept
    statement = step.source.enclosing(assign, cst.SimpleStatementLine)
    variable = context.things.variable(step.source, target)
    if statement is None or variable is None or statement not in made.body.body:
        return None
    return Home(step.source, statement, variable)


def homes(context: Context, step: Step, first: Home) -> list[Home]:
    """Where a training model has to be made: where one of its optimizers gets their name.

    Branches that choose one count as one place, at which any of them may be.

    Raises:
        StepError: the optimizers have different names, or one of them has none.
    """
    if first != home(context, step):
        return [first]  # its object keeps it
    every = [first]
    for thing in step.gradients.optimizers:
        try:
            other = context.things.home(thing)
        except NoHomeError as error:
            raise StepError(
                step.update, f"an optimizer of this step is not made in one place: {error}"
            ) from error
        if other.source is not first.source or other.variable != first.variable:
            raise StepError(
                step.update,
                "the optimizers of this step have different names, or are made in different "
                "functions: give each a training loop of its own",
            )
        if not any(_chosen(first.source, each.statement, other.statement) for each in every):
            every.append(other)
    every.sort(key=lambda each: each.source.position(each.statement))
    return [each for each in every if not _is_replaced(context, step, each, every)]


def _is_replaced(context: Context, step: Step, home: Home, every: Iterable[Home]) -> bool:
    """Whether another optimizer takes the place of one before anything has trained."""
    block = block_of(home.source, home.statement)
    later = block[block.index(home.statement) + 1 :]
    trains = {node for _, node in Order(context.things).sites(step.source, step.backward)}
    for each in later:
        inside = {each, *findall(each, m.SimpleStatementLine())}
        made = [
            home.source.position(other.statement)
            for other in every
            if other.statement in inside and not _is_conditional(home.source, other.statement, each)
        ]
        used = [home.source.position(node) for node in trains & {each, *findall(each, m.Call())}]
        if made and (not used or min(made) < min(used)):
            return True
        if used:
            return False
    return False


def _is_conditional(source: Source, statement: cst.CSTNode, outer: cst.CSTNode) -> bool:
    """Whether a condition inside of a statement decides whether another one in it is run."""
    around = source.between(statement, outer)
    return statement is not outer and (
        isinstance(outer, cst.If | cst.Try) or any(isinstance(each, cst.If) for each in around)
    )


def loop_of_one_model(context: Context, step: Step, home: Home) -> cst.For | cst.While | None:
    """The loop each of whose turns makes an optimizer for models that are there before it."""
    order = Order(context.things)
    for each in home.source.above(home.statement):
        if isinstance(each, cst.FunctionDef | cst.If):
            return None
        if isinstance(each, cst.For | cst.While):
            sites = [order.sites(thing.source, thing.made) for thing in step.models]
            inside = all(any(each in at.above(node) for at, node in some) for some in sites)
            return None if inside else each
    return None


def _chosen(source: Source, one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Whether two statements are the same, or are in two branches of one condition."""
    if one is other:
        return True
    inner = {one, *source.above(one)}
    shared = next((each for each in source.above(other) if each in inner), None)
    return isinstance(shared, cst.If | cst.Try)


def after_all(context: Context, step: Step, home: Home, names: Iterable[str]) -> Statement:
    """The statement after which a training model can be made.

    That of the optimizer, or of the branches that choose one, or what comes later and makes
    something that the loss needs, or a scheduler that sets the first rate.
    """
    place = _around_all(context, step, home)
    block = block_of(home.source, place)
    start = block.index(place)
    known = {name for each in block[: start + 1] for name in _assigned(each)}
    places = [start]
    for name in {*names} - known:
        later = [index for index, each in enumerate(block) if name in _assigned(each)]
        places += later[:1]
    return _after_schedulers(context, step, home, block, max(places))


def is_later(home: Home, text: str) -> bool:
    """Whether an expression needs what gets its value only after the optimizer has its name."""
    block = block_of(home.source, home.statement)
    index = block.index(home.statement)
    before = {name for each in block[:index] for name in _assigned(each)}
    after = {name for each in block[index:] for name in _assigned(each)}
    return bool(needed(text) & (after - before))


def needed(text: str) -> set[str]:
    """Names, and attributes of ``self``, that an expression, given as text, needs."""
    expression = cst.parse_expression(text)
    return {*reads(expression), *_attributes(expression)}


def _assigned(statement: Statement) -> set[str]:
    """Names, and attributes of ``self``, that a statement gives a value."""
    targets = findall(statement, m.AssignTarget() | m.AnnAssign())
    return {*writes(statement)}.union(*(_attributes(each.target) for each in targets))


def _attributes(node: cst.CSTNode) -> set[str]:
    attributes = findall(node, m.Attribute(value=m.Name("self")))
    return {f"self.{each.attr.value}" for each in attributes}


def _after_schedulers(
    context: Context, step: Step, home: Home, block: Sequence[Statement], index: int
) -> Statement:
    """The statement after which the optimizer has its first rate, if nothing trains before."""
    order = Order(context.things)
    trains = {node for _, node in order.sites(step.source, step.backward)}
    for later in range(index + 1, len(block)):
        inside = {block[later], *findall(block[later], m.Call())}
        if inside & trains:
            break
        if any(
            each.made in inside and schedulers.sets_rate(context, each, step.gradients.optimizers)
            for each in context.things.all(Kind.SCHEDULER)
        ) or any(
            thing.kind is Kind.SCHEDULER
            and schedulers.sets_rate(context, thing, step.gradients.optimizers)
            for call in inside
            if isinstance(call, cst.Call)
            for thing in context.things.of(home.source, call)
        ):
            index = later
    return block[index]


def _around_all(context: Context, step: Step, home: Home) -> Statement:
    """The outermost condition of which branches choose an optimizer."""
    place: Statement = home.statement
    for thing in step.gradients.optimizers:
        other = context.things.home(thing).statement
        if other is home.statement or not _chosen(home.source, home.statement, other):
            continue
        around = {other, *home.source.above(other)}
        while place not in around:
            place = next(
                each
                for each in home.source.above(place)
                if isinstance(each, cst.BaseCompoundStatement)
                and not isinstance(home.source.parent(each), cst.If)  # a branch: elif
            )
    return place


def value(context: Context, at: Source, node: cst.BaseExpression, home: Home) -> str:
    """The text of a step's expression, as it is where the optimizer is made.

    Args:
        context: the program.
        at: the file of the expression.
        node: the expression.
        home: where the optimizer gets its name.

    Raises:
        StepError: some name in it is not known there.
    """
    if context.things.variable(at, node) is not None:
        return _of_variable(context, at, node, home)
    known = set(reads(node))
    names = {
        each.value: _of_variable(context, at, each, home)
        for each in findall(node, m.Name())
        if isinstance(each, cst.Name) and each.value in known
    }
    return at.code(renamed(node, names))


def _of_variable(context: Context, at: Source, node: cst.BaseExpression, home: Home) -> str:
    """What a name, or attribute of ``self``, is called where the optimizer is made."""
    things = context.things
    code = at.code(node)
    variable = things.variable(at, node)
    assert variable is not None
    there = things.owner(home.source, home.statement)
    visible = (there, home.source.module, *home.source.above(home.statement))
    if at is home.source and (variable.owner in visible or _is_kin(context, home, variable.owner)):
        return code
    if hasattr(builtins, code):
        return code
    for thing in things.of(at, node):
        for owner in visible:
            if isinstance(owner, cst.FunctionDef | cst.Module):
                names = things.names(owner, thing)
                if names:
                    return names[0]
    for thing in things.of(at, node):
        if thing not in _updated(context, home) and _is_closed(context, thing):
            return at.code(thing.made)
    if isinstance(variable.owner, cst.FunctionDef):
        value = _from_caller(context, variable.owner, variable.name, there)
        if value is not None:
            return value
    raise StepError(
        node,
        f"the training model needs {code}, which is not known where the optimizer is made: "
        "compute it before that line, or in the module",
    )


def _updated(context: Context, home: Home) -> set[Thing]:
    """The models that the optimizer updates: there is one of each."""
    (assign,) = findall(home.statement, m.Assign()) or (None,)
    call = assign.value if isinstance(assign, cst.Assign) else None
    models = models_updated(call) if isinstance(call, cst.Call) else []
    return {thing for each in models for thing in context.things.of(home.source, each)}


def _is_kin(context: Context, home: Home, owner: Owner) -> bool:
    """Whether an attribute's class is that of the optimizer, or one that it is derived from."""
    cls = home.source.enclosing(home.statement, cst.ClassDef)
    return cls is not None and owner in context.project.bases(cls)


def _is_closed(context: Context, thing: Thing) -> bool:
    """Whether the expression that makes something is the same everywhere in its file."""
    for name in reads(thing.made):
        owner = context.things.named(thing.source, thing.made, name)
        if owner is not thing.source.module:
            return False
    return True


def _from_caller(context: Context, function: cst.FunctionDef, name: str, there: Any) -> str | None:
    """What the one caller of a function, which makes the optimizer, gives for a parameter."""
    calls = context.things.calls(function)
    if len(calls) != 1:
        return None
    ((call, source),) = calls.items()
    value = context.things.arguments(function, call).get(name)
    if value is None or context.things.owner(source, call) is not there:
        return None
    return source.code(value) if _is_kept(context, source, value) else None


def _is_kept(context: Context, source: Source, value: cst.BaseExpression) -> bool:
    """Whether an argument is a name, or a part of one that nothing changes, or a number."""
    if isinstance(value, cst.Name | cst.Integer | cst.Float):
        return True
    root, texts = value, [source.code(value)]
    while isinstance(root, cst.Attribute | cst.Subscript):
        keys = [each.slice for each in root.slice] if isinstance(root, cst.Subscript) else []
        if not all(m.matches(each, m.Index(m.SimpleString() | m.Integer())) for each in keys):
            return False
        root = root.value
        texts.append(source.code(root))
    return isinstance(root, cst.Name) and not any(
        at.code(target) in texts[:-1] and at.enclosing(node, cst.FunctionDef, cst.For, cst.While)
        for at in context.project.sources
        for node in findall(at.module, m.Assign() | m.AugAssign())
        for target in targets_of(node)
    )
