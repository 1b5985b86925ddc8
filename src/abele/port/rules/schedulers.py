"""Schedulers: after each change, the training model gets the optimizer again."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from abele.port.analysis.batches import argument
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.order import Order
from abele.port.analysis.steps import calls_of, statement_of
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.routes import NoRouteError
from abele.port.source import Source

CODES = {
    "ABP411": "The training model is given the optimizer again after a scheduler has changed it.",
    "ABP419": "The training model cannot be reached where the scheduler steps.",
}

_REASON = "setOptimizer passes the new learning rate to the compiled program"


#: They leave the rate as it is when they are made; the others may set the first one.
_LEAVE = frozenset(
    (
        "StepLR",
        "MultiStepLR",
        "ExponentialLR",
        "CosineAnnealingLR",
        "CosineAnnealingWarmRestarts",
        "PolynomialLR",
        "ReduceLROnPlateau",
    )
)


def sets_rate(context: Context, scheduler: Thing, optimizers: Iterable[Thing]) -> bool:
    """Whether making a scheduler may change the rate of one of some optimizers."""
    if not of_scheduler(context, scheduler) & {*optimizers}:
        return False
    made = scheduler.made
    begins = isinstance(made, cst.Call) and argument(made, "last_epoch") is not None
    return begins or scheduler.name.rpartition(".")[2] not in _LEAVE


def apply(context: Context) -> None:
    """Give the optimizer to the training model after each step of a scheduler."""
    _say_first_rates(context)
    for source in context.project.sources:
        for call in calls_of(source.module, "step"):
            assert isinstance(call.func, cst.Attribute)
            for thing in context.things.of(source, call.func.value, Kind.SCHEDULER):
                by_model = {
                    context.training[optimizer]: optimizer
                    for optimizer in of_scheduler(context, thing)
                    if optimizer in context.training
                }
                for optimizer in by_model.values():
                    tell(context, source, call, optimizer)


def _say_first_rates(context: Context) -> None:
    """Give the optimizer again where making a scheduler sets a rate, once the model is made."""
    order = Order(context.things)
    for scheduler in context.things.all(Kind.SCHEDULER):
        for step in context.steps:
            optimizers = step.gradients.optimizers
            if step.optimizer not in context.training or not sets_rate(
                context, scheduler, optimizers
            ):
                continue
            site = scheduler.source, scheduler.made
            if order.follows((step.source, step.backward), site, optimizers):
                tell(context, scheduler.source, scheduler.made, step.optimizer)


def of_scheduler(context: Context, scheduler: Thing) -> set[Thing]:
    """The optimizers that a scheduler was made for."""
    assert isinstance(scheduler.made, cst.Call)
    arguments = [
        each.value
        for each in scheduler.made.args
        if each.keyword is None or each.keyword.value == "optimizer"
    ]
    if not arguments:
        return set()
    return context.things.of(scheduler.source, arguments[0], Kind.OPTIMIZER)


def tell(
    context: Context, source: Source, node: cst.CSTNode, optimizer: Thing, code: str = "ABP411"
) -> None:
    """Give an optimizer to its training model, after the statement of a node.

    Args:
        context: the program.
        source: the file.
        node: that changes the optimizer.
        optimizer: that is changed.
        code: of what is said.
    """
    try:
        model = context.routes.name(context.training[optimizer], source, node)
        name = context.routes.name_of(optimizer, source, node)
    except NoRouteError as error:
        context.say(
            source,
            node,
            "ABP419",
            Verdict.BLOCKED,
            f"the training model needs setOptimizer here, and cannot be reached: {error}",
        )
        return
    context.edits(source).after(statement_of(source, node), f"{model}.setOptimizer({name})")
    context.say(source, node, code, Verdict.MODIFIED, _REASON)
