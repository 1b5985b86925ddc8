"""Ports optimizers, gradient clipping, schedulers and changes of learning rates.

A program keeps the hyperparameters of its optimizer until ``setOptimizer`` is called.
"""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.flow import names_in
from abele.port.analysis.kinds import Kind, Thing, models_updated, targets_of
from abele.port.analysis.order import Order
from abele.port.analysis.parts import Statement, StepError, calls_of, statement_of
from abele.port.analysis.steps import Step, Varying
from abele.port.analysis.things import NoRouteError
from abele.port.context import Context
from abele.port.edits import keyword
from abele.port.finding import Verdict
from abele.port.rules import places
from abele.port.source import Source, findall

CODES = {
    "ABP401": "The optimizer is PopTorch's, with the same arguments.",
    "ABP402": "The optimizer is torch's. PopTorch on an IPU does not have it.",
    "ABP409": "The update of this optimizer cannot be compiled.",
}
LIMIT_CODES = {
    "ABP431": "The optimizer limits the norm of all gradients before each update.",
    "ABP432": "The optimizer of the compiled program cannot limit these gradients.",
}
SCHEDULER_CODES = {
    "ABP411": "The training model is given the optimizer again after a scheduler has changed it.",
    "ABP419": "The training model cannot be reached where the scheduler steps.",
}
RATE_CODES = {
    "ABP414": "What changes of an optimizer later has to be its argument; defaults are constants.",
    "ABP412": "The training model is given the optimizer again after its rate has changed.",
}

_POPTORCH = frozenset(("SGD", "Adam", "AdamW", "RMSprop"))
#: Optimizers that a training model accepts here as they are, and PopTorch does not.
_TORCH = frozenset(("Adadelta", "Adagrad", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop"))


def becomes_poptorchs(optimizer: Thing) -> bool:
    """Return whether PopTorch has an optimizer of the same name."""
    return optimizer.name.rpartition(".")[2] in _POPTORCH


def apply(context: Context) -> None:
    """Replace torch's optimizers by those of ``poptorch.optim``."""
    for thing, made in context.optimizers():
        name = thing.name.rpartition(".")[2]
        if thing.name.startswith("torch.optim.") and becomes_poptorchs(thing):
            context.edits(thing.source).need("import poptorch")
            context.edits(thing.source).replace(made.func, f"poptorch.optim.{name}")
            reason = f"poptorch.optim.{name} takes the same arguments, and more"
            context.say(thing.source, made, "ABP401", Verdict.MODIFIED, reason)
        elif name in _TORCH:
            reason = f"torch's {name} is taken as it is; PopTorch on an IPU does not have it"
            context.say(thing.source, made, "ABP402", Verdict.MATCH, reason)
        elif not thing.name.startswith("poptorch.") and not m.matches(
            made, m.Call(func=m.Attribute(value=m.Attribute()))
        ):
            reason = f"the update of {name} cannot be compiled: use another optimizer, such as Adam"
            context.say(thing.source, made, "ABP409", Verdict.BLOCKED, reason)


# -- limits of gradients -------------------------------------------------------------------------

#: Optimizers of PopTorch that take a limit as an argument; others have it as an attribute here.
_LIMIT = frozenset(("SGD", "Adam", "AdamW"))
_HERE = "; a training model here reads it, PopTorch on an IPU does not limit {}"
_OF_ALL = (
    "these are not the parameters of the optimizer, which limits the norm over all of its own: "
    "give clip_grad_norm_ the parameters that the optimizer has"
)
_NOT_KNOWN = (
    "whether the optimizer has all of these parameters cannot be read from the text, and it limits "
    "the norm over its own: check that its groups have all that have gradients"
)
_CHANGES = (
    "the limit has to be one number that is known where the optimizer is made, which takes it as "
    "max_grad_norm: write it as max_norm=..., and give it its value before that line, once"
)


def apply_limits(context: Context) -> None:
    """Move gradient clipping into optimizers as ``max_grad_norm``."""
    for step in context.steps:
        clip = step.gradients.clip
        if clip is None:
            continue
        for optimizer in step.gradients.optimizers:
            try:
                _limit(context, step, optimizer, clip)
            except StepError as error:
                context.say(step.source, clip, "ABP432", Verdict.BLOCKED, error.reason)


def _limit(context: Context, step: Step, optimizer: Thing, clip: cst.Call) -> None:
    """Add the norm limit of a gradient clipping call to an optimizer as ``max_grad_norm``.

    Raises:
        StepError: the optimizer cannot clip these gradients, or not by this limit.
    """
    name = optimizer.name.rpartition(".")[2]
    made = cst.ensure_type(optimizer.made, cst.Call)
    parameters = argument(clip, "parameters", 0)
    models = (
        models_updated(cst.Call(cst.Name("limit"), [cst.Arg(parameters)])) if parameters else ()
    )
    limited = {thing for each in models for thing in context.things.of(step.source, each)}
    updated = context.things.updated(optimizer)
    conditions = findall(context.things.given(optimizer.source, made), m.CompIf())
    if not updated or any(not m.matches(each.test, _TRAINED) for each in conditions):
        context.say(step.source, clip, "ABP432", Verdict.MANUAL, _NOT_KNOWN)
    elif limited != updated:
        raise StepError(clip, _OF_ALL)
    largest, home = argument(clip, "max_norm", 1), places.home(context, step)
    varying = Varying(context.project, context.things, step.gradients.optimizers)
    guard = step.source.enclosing(clip, cst.If)
    removed = [each.statement for each in step.gradients.removed]
    tests = [guard.test] if guard is not None and guard in removed else []
    if largest is None or any(varying.at(step.source, each) for each in (largest, *tests)):
        raise StepError(clip, _CHANGES)
    limit, *given = (places.value(context, step.source, each, home) for each in (largest, *tests))
    limit += "".join(f" if {test} else float('inf')" for test in given)
    if places.is_later(home, limit):
        raise StepError(clip, _CHANGES)
    edits, reason = context.edits(optimizer.source), f"max_grad_norm={limit} limits all gradients"
    if name in _LIMIT:
        edits.give(made, keyword("max_grad_norm", limit))
    else:
        edits.after(home.statement, f"{home.variable.name}.max_grad_norm = {limit}")
        reason += _HERE.format(name)
    context.say(optimizer.source, made, "ABP431", Verdict.MODIFIED, reason)


_TRAINED = m.Attribute(attr=m.Name("requires_grad"))


# -- schedulers ----------------------------------------------------------------------------------

_PASSED = "setOptimizer passes the new learning rate to the compiled program"


def apply_schedulers(context: Context) -> None:
    """Call ``setOptimizer`` of the training model after each step of a scheduler."""
    _pass_first_rates(context)
    for source in context.project.sources:
        for call in calls_of(source.module, "step"):
            receiver = cst.ensure_type(call.func, cst.Attribute).value
            for thing in context.things.of(source, receiver, Kind.SCHEDULER):
                by_model = {
                    context.training[optimizer]: optimizer
                    for optimizer in places.of_scheduler(context, thing)
                    if optimizer in context.training
                }
                for optimizer in by_model.values():
                    _pass_on(context, source, call, optimizer)


def _pass_first_rates(context: Context) -> None:
    """Call ``setOptimizer`` after constructing a scheduler, which may set a learning rate."""
    order = Order(context.things)
    for scheduler in context.things.all(Kind.SCHEDULER):
        for step in context.steps:
            site = scheduler.source, scheduler.made
            if step.optimizer in places.of_scheduler(
                context, scheduler
            ) & context.training.keys() and order.follows((step.source, step.backward), site):
                _pass_on(context, scheduler.source, scheduler.made, step.optimizer)


def _pass_on(
    context: Context, source: Source, node: cst.CSTNode, optimizer: Thing, code: str = "ABP411"
) -> None:
    """Insert a call of ``setOptimizer`` after a statement that changes an optimizer."""
    try:
        model = context.routes.name(context.training[optimizer], source, node)
        name = context.routes.name_of(optimizer, source, node)
    except NoRouteError as error:
        reason = f"the training model needs setOptimizer here, and cannot be reached: {error}"
        context.say(source, node, "ABP419", Verdict.BLOCKED, reason)
        return
    context.edits(source).after(statement_of(source, node), f"{model}.setOptimizer({name})")
    context.say(source, node, code, Verdict.MODIFIED, _PASSED)


# -- rates that the program changes by hand ------------------------------------------------------


_KEPT = (
    "{0} changes here, and a compiled program has defaults of its optimizer as constants: give "
    "{0}=... where the optimizer is made; a momentum may change if it is not 0 at first"
)


def apply_rates(context: Context) -> None:
    """Call ``setOptimizer`` of the training model after changes of parameter groups."""
    for scheduler in context.things.all(Kind.SCHEDULER):
        told = argument(cst.ensure_type(scheduler.made, cst.Call), "cycle_momentum")
        if scheduler.name.endswith((".OneCycleLR", ".CyclicLR")) and not m.matches(
            told or cst.Name("True"), m.Name("False")
        ):
            for each in places.of_scheduler(context, scheduler) & context.training.keys():
                key = "betas" if "Adam" in each.name else "momentum"
                _check_given(context, scheduler.source, scheduler.made, each, key)
    for source in context.project.sources:
        changed: dict[Statement, None] = {}
        for node in findall(source.module, m.Attribute(attr=m.Name("param_groups"))):
            optimizers = context.things.of(source, node.value, Kind.OPTIMIZER)
            statement = statement_of(source, node)
            trained = [each for each in optimizers if each in context.training]
            written = _written(source, statement, node)
            if trained and statement not in changed and written:
                changed[statement] = None
                names = [n for each in written for n in findall(each.slice[-1], m.SimpleString())]
                for key in {str(each.evaluated_value) for each in names} - {"lr", "initial_lr"}:
                    _check_given(context, source, statement, trained[0], key)
                _pass_on(context, source, statement, trained[0], "ABP412")


def _check_given(
    context: Context, source: Source, node: cst.CSTNode, optimizer: Thing, key: str
) -> None:
    """Report a change of an optimizer hyperparameter that the program compiles in."""
    value = argument(cst.ensure_type(optimizer.made, cst.Call), key)
    is_zero = m.matches(value or cst.Integer("0"), m.Integer("0") | m.Float("0.0"))
    if value is None or (key == "momentum" and is_zero):
        context.say(source, node, "ABP414", Verdict.MANUAL, _KEPT.format(key))


def _written(source: Source, statement: Statement, groups: cst.Attribute) -> list[cst.Subscript]:
    """Return the elements of an optimizer's parameter groups that a statement assigns."""
    targets = [
        target
        for node in findall(statement, m.Assign() | m.AugAssign())
        for target in targets_of(node)
        if isinstance(target, cst.Subscript)
    ]
    names = {*names_in(statement.target)} if isinstance(statement, cst.For) else set[str]()
    return [each for each in targets if each in source.above(groups) or _root(each) in names]


def _root(node: cst.BaseExpression) -> str:
    while isinstance(node, cst.Subscript | cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""
