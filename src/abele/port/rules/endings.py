"""Ends a training model where another one of the same weights begins."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.order import Order
from abele.port.analysis.steps import Step, StepError
from abele.port.analysis.things import Home
from abele.port.context import Context
from abele.port.routes import Wrapped
from abele.port.rules import places

_SHARED = (
    "a model of this step is in that of {name} too, and one program at a time can have weights "
    "that are trained: "
)
_LATER = "make this optimizer after the last step of the other one, in the same function"
_SURELY = "make both optimizers in one function, under no condition"


def endings(context: Context, step: Step, home: Home) -> str:
    """Statements that end the training models of the steps that have trained the same weights.

    Args:
        context: the program.
        step: whose training model is about to be made.
        home: where it is made.

    Raises:
        StepError: one of the others is still in use then, or nobody knows whether it exists.
    """
    names = dict.fromkeys(each.name for each in _in_use(context, step, home))
    return "".join(f"{name}.destroy()\n" for name in names)


def _in_use(context: Context, step: Step, home: Home) -> Iterator[Wrapped]:
    order = Order(context.things)
    for other in context.steps:
        wrapped = context.training.get(other.optimizer)
        if wrapped is None or not _have_one_model(context, order, step, other):
            continue
        owner = wrapped.owner
        if isinstance(owner, cst.FunctionDef) and owner is not home.variable.owner:
            continue  # a variable of a function that has ended
        shared = _SHARED.format(name=wrapped.name)
        once = home.source, home.statement
        if order.follows(once, (other.source, other.backward), other.gradients.optimizers):
            raise StepError(step.backward, shared + _LATER)
        if owner is not home.variable.owner or not _is_surely_made(context, other, home):
            raise StepError(step.backward, shared + _SURELY)
        yield wrapped


def _have_one_model(context: Context, order: Order, step: Step, other: Step) -> bool:
    """Whether two steps have a model that one of them updates."""
    if {*step.gradients.optimizers} & {*other.gradients.optimizers}:
        return False
    optimizers = (*step.gradients.optimizers, *other.gradients.optimizers)
    updated = [context.things.updated(each, Kind.MODEL) for each in optimizers]
    shared = {
        thing
        for thing in step.models.keys() & other.models.keys()
        if _is_made_in_one_place(context, order, thing)
    }
    # Where nobody knows what an optimizer updates, it may be any of them.
    return bool(shared) and any(not each or shared & each for each in updated)


def _is_made_in_one_place(context: Context, order: Order, thing: Thing) -> bool:
    """Whether no function that makes a model is called in several places of another."""
    sites = order.sites(thing.source, thing.made)
    return len({context.things.owner(*each) for each in sites}) == len(sites)


def _is_surely_made(context: Context, other: Step, home: Home) -> bool:
    """Whether another step's training model is made before a place is reached."""
    made = places.home(context, other)
    block = made.source.parent(made.statement)
    around = (*home.source.above(home.statement), home.source.module)
    return made.source is home.source and block in around and not _in_class(home)


def _in_class(home: Home) -> bool:
    return isinstance(home.variable.owner, cst.ClassDef)
