"""Limits of gradients: the norm of all of them is an argument of PopTorch's optimizers."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.calls import models_updated, targets_of
from abele.port.analysis.flow import reads, writes
from abele.port.analysis.groups import sorted_models
from abele.port.analysis.homes import Home
from abele.port.analysis.kinds import Thing
from abele.port.analysis.search import findall
from abele.port.analysis.slow_values import changed_outside, is_changed
from abele.port.analysis.steps import Step, StepError
from abele.port.context import Context
from abele.port.edits import keyword
from abele.port.finding import Verdict
from abele.port.rules import places
from abele.port.source import Source

CODES = {
    "ABP431": (
        "The norm of all gradients is limited by the optimizer, which takes the limit as an "
        "argument."
    ),
    "ABP432": "The optimizer of the compiled program cannot limit these gradients.",
}

#: Those of PopTorch that limit gradients.
_LIMIT = frozenset(("SGD", "Adam", "AdamW"))

_OF_ALL = (
    "these are not the parameters of the optimizer, which limits the norm over all of its own: "
    "give clip_grad_norm_ the parameters that the optimizer has"
)
_SOME = (
    "the groups of the optimizer leave out some parameters of the model by a condition, and the "
    "optimizer limits the norm over its own: give clip_grad_norm_ the parameters that the "
    "optimizer has, or the optimizer a group for the others"
)
_NOT_KNOWN = (
    "whether the optimizer has all of these parameters cannot be read from the text, and it limits "
    "the norm over its own: check that its groups have all that have gradients"
)
_NO_LIMIT = "this call does not name its limit: write it as max_norm=..."
_CHANGES = (
    "{limit} changes during training, and the optimizer of a compiled program keeps the first "
    "limit: use one number"
)
_LATER = (
    "{limit} gets its value after the optimizer is made, which takes it as max_grad_norm: move "
    "that line before the optimizer"
)


def apply(context: Context) -> None:
    """Give limits to optimizers."""
    for step in context.steps:
        clip = step.gradients.clip
        if clip is None or step.gradients.by_hand is not None:
            continue
        for optimizer in step.gradients.optimizers:
            try:
                _limit(context, step, optimizer, clip)
            except StepError as error:
                context.say(step.source, clip, "ABP432", Verdict.BLOCKED, error.reason)


def _limit(context: Context, step: Step, optimizer: Thing, clip: cst.Call) -> None:
    name = optimizer.name.rpartition(".")[2]
    if name not in _LIMIT:
        raise StepError(
            clip, f"PopTorch's {name} cannot limit the norm of gradients: use SGD, Adam or AdamW"
        )
    made = optimizer.made
    assert isinstance(made, cst.Call)
    updated = context.things.updated(optimizer) or sorted_models(context.things, optimizer)
    if not updated:
        updated = limited_models(context, step, clip) & {*step.models}
        context.say(step.source, clip, "ABP432", Verdict.MANUAL, _NOT_KNOWN)
    if _leaves_out(optimizer.source, context.things.given(optimizer.source, made)):
        raise StepError(clip, _SOME)
    limit = limit_of(context, step, places.home(context, step), updated)
    context.edits(optimizer.source).give(made, keyword("max_grad_norm", limit))
    reason = f"max_grad_norm={limit} limits the norm of all gradients before each update"
    context.say(optimizer.source, made, "ABP431", Verdict.MODIFIED, reason)


def _leaves_out(source: Source, given: cst.Call) -> bool:
    """Whether parameters are taken by a condition, and by its opposite nowhere."""
    conditions = {
        source.code(each.test)
        for comprehension in findall(given, m.ListComp() | m.GeneratorExp())
        if models_updated(cst.Call(cst.Name("of"), [cst.Arg(comprehension)]))
        for each in comprehension.for_in.ifs
        if not m.matches(each.test, m.Attribute(attr=m.Name("requires_grad")))
    }
    return any(
        f"not {each}" not in conditions and each.removeprefix("not ") not in conditions - {each}
        for each in conditions
    )


def limit_of(context: Context, step: Step, home: Home, updated: set[Thing]) -> str:
    """The limit of a step's gradients, as text where its optimizer is made.

    Args:
        context: the program.
        step: that limits them.
        home: where the optimizer gets its name.
        updated: the models whose parameters it updates.

    Raises:
        StepError: it is not there, changes later, or is of other parameters.
    """
    clip = step.gradients.clip
    assert clip is not None
    largest = argument(clip, "max_norm", 1)
    if largest is None:
        raise StepError(clip, _NO_LIMIT)
    if limited_models(context, step, clip) != updated:
        raise StepError(clip, _OF_ALL)
    code = step.source.code(largest)
    if _changes(context, step, largest):
        raise StepError(clip, _CHANGES.format(limit=code))
    limit = places.value(context, step.source, largest, home)
    if places.is_later(home, limit):
        raise StepError(clip, _LATER.format(limit=limit))
    return limit


def _changes(context: Context, step: Step, limit: cst.BaseExpression) -> bool:
    """Whether a limit, or a part of it, gets other values once there is an optimizer."""
    names = {*reads(limit)} - {"self"}
    slow = changed_outside(
        step.source, context.things, step.backward, step.gradients.optimizers
    ) | {*(writes(step.loop) if step.loop else ())}
    parts = {step.source.code(each) for each in findall(limit, m.Attribute() | m.Subscript())}
    changed = {
        source.code(target)
        for source in context.project.sources
        for node in findall(source.module, m.Assign() | m.AugAssign())
        for target in targets_of(node)
        if isinstance(node, cst.AugAssign) or source.enclosing(node, cst.For, cst.While)
    }
    attributes = findall(limit, m.Attribute(value=m.Name("self")))
    return bool(names & slow or parts & changed) or any(
        is_changed(step.source, each) for each in attributes
    )


def limited_models(context: Context, step: Step, clip: cst.Call) -> set[Thing]:
    """The models of which a call limits the gradients."""
    parameters = argument(clip, "parameters", 0)
    if not isinstance(parameters, cst.Call):
        return set()
    return {
        thing
        for model in models_updated(cst.Call(cst.Name("limit"), [cst.Arg(parameters)]))
        for thing in context.things.of(step.source, model)
    }
