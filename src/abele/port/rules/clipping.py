"""Limits of gradients: the norm of all of them is an argument of PopTorch's optimizers."""

from __future__ import annotations

import libcst as cst

from abele.port.analysis.batches import argument
from abele.port.analysis.calls import models_updated
from abele.port.analysis.kinds import Thing
from abele.port.analysis.steps import Step, StepError
from abele.port.context import Context
from abele.port.edits import keyword
from abele.port.finding import Verdict
from abele.port.rules import places

CODES = {
    "ABP431": (
        "The norm of all gradients is limited by the optimizer, which takes the limit as an "
        "argument."
    ),
    "ABP432": "The optimizer of the program cannot limit these gradients.",
}

#: Those of PopTorch that limit gradients.
_LIMIT = frozenset(("SGD", "Adam", "AdamW"))

OF_ALL = "an optimizer limits the norm over all of its parameters, not of some"


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
        raise StepError(clip, f"there is no {name} that limits the norm of gradients")
    made = optimizer.made
    assert isinstance(made, cst.Call)
    largest = argument(clip, "max_norm", 1)
    limited = limited_models(context, step, clip)
    if largest is None or not limited or limited != _updated(context, optimizer):
        raise StepError(clip, OF_ALL)
    limit = places.value(context, step.source, largest, places.home(context, step))
    context.edits(optimizer.source).change(
        made,
        lambda node: node.with_changes(args=[*node.args, keyword("max_grad_norm", limit)]),
    )
    reason = f"max_grad_norm={limit} limits the norm of all gradients before each update"
    context.say(optimizer.source, made, "ABP431", Verdict.MODIFIED, reason)


def limited_models(context: Context, step: Step, clip: cst.Call) -> set[Thing]:
    """The models of which a call limits the gradients."""
    given = argument(clip, "parameters", 0)
    if not isinstance(given, cst.Call):
        return set()
    return {
        thing
        for model in models_updated(cst.Call(cst.Name("limit"), [cst.Arg(given)]))
        for thing in context.things.of(step.source, model)
    }


def _updated(context: Context, optimizer: Thing) -> set[Thing]:
    assert isinstance(optimizer.made, cst.Call)
    return {
        thing
        for model in models_updated(optimizer.made)
        for thing in context.things.of(optimizer.source, model)
    }
