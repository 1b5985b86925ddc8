"""Turns updates that a program writes by hand into an optimizer."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.calls import targets_of
from abele.port.analysis.kinds import Thing
from abele.port.analysis.parts import StepError, statement_of
from abele.port.analysis.scopes import Variable
from abele.port.analysis.search import findall
from abele.port.analysis.steps import Step
from abele.port.analysis.things import Home, NoHomeError
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.routes import Wrapped
from abele.port.rules import clipping, places
from abele.port.source import Source

_REASON = "this update is stochastic gradient descent: poptorch.optim.SGD makes it in the program"

#: Multiplies gradients by the rate and rounds, before parameters change: as it was written.
_ROUNDED = ", velocity_scaling={}, use_combined_accum=True"


def optimizer(context: Context, step: Step, home: Home) -> tuple[str, str, str]:
    """The optimizer of a step.

    Returns:
        The statement that makes it, ``""`` if the program has one; its name; and an expression of
        what the statement needs.

    Raises:
        StepError: its rate, or the limit of its gradients, is not known where it is made.
    """
    kept = home.variable.name
    written = step.gradients.by_hand
    if written is None:
        return "", kept, "None"
    if any(_variable(context, step, each) != home.variable for each in step.gradients.optimizers):
        raise StepError(
            step.update,
            "models with different names are updated here: write a training loop for each",
        )
    rate = places.value(context, step.source, written.rate, home)
    name = ("self." if kept.startswith("self.") else "") + context.name(
        home.source, f"optimizer{_number(context)}"
    )
    more, needs = _ROUNDED.format(rate) if written.rounded else "", rate
    if step.gradients.clip is not None:
        limit = clipping.limit_of(context, step, home, set(step.gradients.optimizers))
        more, needs = f"{more}, max_grad_norm={limit}", f"{rate}, {limit}"
    context.edits(home.source).need("import poptorch")
    context.say(step.source, step.update, "ABP403", Verdict.MODIFIED, _REASON)
    made = f"{name} = poptorch.optim.SGD({kept}.parameters(), lr={rate}{more})\n"
    return made, name, needs


def _variable(context: Context, step: Step, model: Thing) -> Variable:
    try:
        return context.things.home(model).variable
    except NoHomeError as error:
        raise StepError(
            step.update, f"a model that this updates is not made in one place: {error}"
        ) from error


def _number(context: Context) -> str:
    """A suffix for the optimizer's name: there is one for each training model."""
    count = len(set(context.training.values()))
    return f"_{count + 1}" if count else ""


def follow(context: Context, step: Step, model: Wrapped, name: str) -> None:
    """Have the optimizer follow a rate that the program changes.

    Raises:
        NoRouteError: the optimizer is not known where it does.
    """
    written = step.gradients.by_hand
    if written is None:
        return
    variable = context.things.variable(step.source, written.rate)
    kept = Wrapped(name, model.source, model.owner)
    for source, node in _later(context, step.source, variable):
        optimizer = context.routes.name(kept, source, node)
        called = context.routes.name(model, source, node)
        rate = source.code(written.rate)
        group = f"{optimizer}.param_groups[0]"
        also = f'{group}["velocity_scaling"] = ' if written.rounded else ""
        context.edits(source).after(
            statement_of(source, node),
            f'{also}{group}["lr"] = {rate}\n{called}.setOptimizer({optimizer})',
        )
        reason = (
            "the optimizer gets the new rate, and setOptimizer passes it to the compiled program"
        )
        context.say(source, node, "ABP412", Verdict.MODIFIED, reason)


def _later(
    context: Context, source: Source, variable: Variable | None
) -> Iterator[tuple[Source, cst.CSTNode]]:
    """Statements that change a variable: all that write it, but the first."""
    if variable is None:
        return
    writes = [
        node
        for node in findall(source.module, m.Assign() | m.AugAssign())
        if variable in [context.things.variable(source, each) for each in targets_of(node)]
    ]
    first = min(writes, key=source.position, default=None)
    for node in writes:
        if node is not first or isinstance(node, cst.AugAssign):
            yield source, node
