"""Optimizers, with what changes in them: limits of gradients, schedulers and rates.

A program keeps the values of its optimizer until setOptimizer passes new ones on.
"""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.calls import models_updated, targets_of
from abele.port.analysis.flow import reads, writes
from abele.port.analysis.groups import sorted_models
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.order import Order
from abele.port.analysis.parts import Statement, StepError, calls_of, statement_of
from abele.port.analysis.scopes import names_in
from abele.port.analysis.search import findall
from abele.port.analysis.steps import Step, changed_outside
from abele.port.analysis.things import Home
from abele.port.context import Context, NoRouteError
from abele.port.edits import keyword
from abele.port.finding import Verdict
from abele.port.rules import places
from abele.port.source import Source

CODES = {
    "ABP401": "The optimizer is PopTorch's, with the same arguments.",
    "ABP402": (
        "The optimizer is torch's. A training model here takes it; PopTorch on an IPU does "
        "not have it."
    ),
    "ABP409": "The update of this optimizer cannot be compiled.",
}
LIMIT_CODES = {
    "ABP431": (
        "The norm of all gradients is limited by the optimizer, which takes the limit as an "
        "argument."
    ),
    "ABP432": "The optimizer of the compiled program cannot limit these gradients.",
}
SCHEDULER_CODES = {
    "ABP411": "The training model is given the optimizer again after a scheduler has changed it.",
    "ABP419": "The training model cannot be reached where the scheduler steps.",
}
RATE_CODES = {
    "ABP413": "What changes of an optimizer later is written as its argument; defaults are "
    "constants.",
    "ABP414": "This value of the optimizer cannot change once its program is compiled.",
    "ABP412": "The training model is given the optimizer again after its rate has changed.",
}

_POPTORCH = frozenset(("SGD", "Adam", "AdamW", "RMSprop"))
#: Optimizers that a training model accepts here as they are, and PopTorch does not.
_TORCH = frozenset(("Adadelta", "Adagrad", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop"))


def apply(context: Context) -> None:
    """Take optimizers from ``poptorch.optim``."""
    for thing, made in context.optimizers():
        name = thing.name.rpartition(".")[2]
        if thing.name.startswith("torch.optim.") and name in _POPTORCH:
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

#: Optimizers of PopTorch that limit gradients.
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
_CHANGES = (
    "{limit} changes during training, and the optimizer of a compiled program keeps the first "
    "limit: use one number"
)
_LATER = (
    "{limit} gets its value after the optimizer is made, which takes it as max_grad_norm: move "
    "that line before the optimizer"
)


def apply_limits(context: Context) -> None:
    """Give limits of gradients to optimizers."""
    for step in context.steps:
        clip = step.gradients.clip
        for optimizer in step.gradients.optimizers:
            if clip is None:
                continue
            try:
                _limit(context, step, optimizer, clip)
            except StepError as error:
                context.say(step.source, clip, "ABP432", Verdict.BLOCKED, error.reason)


def _limit(context: Context, step: Step, optimizer: Thing, clip: cst.Call) -> None:
    name = optimizer.name.rpartition(".")[2]
    if name not in _LIMIT:
        reason = f"PopTorch's {name} cannot limit the norm of gradients: use SGD, Adam or AdamW"
        raise StepError(clip, reason)
    made = cst.ensure_type(optimizer.made, cst.Call)
    updated = context.things.updated(optimizer) or sorted_models(context.things, optimizer)
    if not updated:
        updated = _limited_models(context, step, clip) & {*step.models}
        context.say(step.source, clip, "ABP432", Verdict.MANUAL, _NOT_KNOWN)
    given = context.things.given(optimizer.source, made)
    conditions = findall(given, m.CompIf())
    trained = m.CompIf(test=m.Attribute(attr=m.Name("requires_grad")))
    texts = {
        optimizer.source.code(each.test) for each in conditions if not m.matches(each, trained)
    }
    if any(
        f"not {each}" not in texts and each.removeprefix("not ") not in texts - {each}
        for each in texts
    ):
        raise StepError(clip, _SOME)
    limit = _limit_of(context, step, places.home(context, step), updated)
    context.edits(optimizer.source).give(made, keyword("max_grad_norm", limit))
    reason = f"max_grad_norm={limit} limits the norm of all gradients before each update"
    context.say(optimizer.source, made, "ABP431", Verdict.MODIFIED, reason)


def _limit_of(context: Context, step: Step, home: Home, updated: set[Thing]) -> str:
    """Return the limit of a step's gradients, as text where its optimizer is made.

    Raises:
        StepError: it is not there, changes later, or is of other parameters.
    """
    clip = step.gradients.clip
    assert clip is not None
    largest = argument(clip, "max_norm", 1)
    if largest is None:
        raise StepError(clip, "this call does not name its limit: write it as max_norm=...")
    if _limited_models(context, step, clip) != updated:
        raise StepError(clip, _OF_ALL)
    if _may_change(context, step, largest):
        raise StepError(clip, _CHANGES.format(limit=step.source.code(largest)))
    limit = places.value(context, step.source, largest, home)
    if places.is_later(home, limit):
        raise StepError(clip, _LATER.format(limit=limit))
    return limit


def _may_change(context: Context, step: Step, limit: cst.BaseExpression) -> bool:
    """Return whether a limit, or a part of it, gets other values once there is an optimizer."""
    slow = changed_outside(step.source, context.things, step.backward, step.gradients.optimizers)
    slow |= {*(writes(step.loop) if step.loop else ())}
    parts = {step.source.code(each) for each in findall(limit, m.Attribute() | m.Subscript())}
    changed: set[str] = set()
    for source in context.project.sources:
        for node in findall(source.module, m.Assign() | m.AugAssign()):
            function = source.enclosing(node, cst.FunctionDef)
            later = function is not None and function.name.value != "__init__"
            again = isinstance(node, cst.AugAssign) or source.enclosing(node, cst.For, cst.While)
            for code in map(source.code, targets_of(node)):
                if again or (later and code.startswith("self.")):
                    changed.add(code)
    return bool(({*reads(limit)} - {"self"}) & slow or parts & changed)


def _limited_models(context: Context, step: Step, clip: cst.Call) -> set[Thing]:
    """Return the models of which a call limits the gradients."""
    parameters = argument(clip, "parameters", 0)
    if not isinstance(parameters, cst.Call):
        return set()
    models = models_updated(cst.Call(cst.Name("limit"), [cst.Arg(parameters)]))
    return {thing for each in models for thing in context.things.of(step.source, each)}


# -- schedulers ----------------------------------------------------------------------------------

_PASSED = "setOptimizer passes the new learning rate to the compiled program"


def apply_schedulers(context: Context) -> None:
    """Give the optimizer to the training model after each step of a scheduler."""
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
    """Give the optimizer again where making a scheduler sets a rate, once the model is made."""
    order = Order(context.things)
    for scheduler in context.things.all(Kind.SCHEDULER):
        for step in context.steps:
            optimizers = step.gradients.optimizers
            site = scheduler.source, scheduler.made
            if (
                step.optimizer in context.training
                and places.sets_rate(context, scheduler, optimizers)
                and order.follows((step.source, step.backward), site)
            ):
                _pass_on(context, scheduler.source, scheduler.made, step.optimizer)


def _pass_on(
    context: Context, source: Source, node: cst.CSTNode, optimizer: Thing, code: str = "ABP411"
) -> None:
    """Give an optimizer to its training model, after the statement of a node that changes it."""
    try:
        model = context.routes.name(context.training[optimizer], source, node)
        name = context.routes.name_of(optimizer, source, node)
    except NoRouteError as error:
        reason = f"the training model needs setOptimizer here, and cannot be reached: {error}"
        context.say(source, node, "ABP419", Verdict.BLOCKED, reason)
        return
    context.edits(source).after(statement_of(source, node), f"{model}.setOptimizer({name})")
    context.say(source, node, code, Verdict.MODIFIED, _PASSED)


# -- rates and other values that the program changes by hand -------------------------------------

#: Schedulers that change a momentum, or the first of betas, unless they are told not to.
_CYCLES = ("OneCycleLR", "CyclicLR")
#: Values that programs have as constants unless they are given; the rate always may change.
_CONSTANT = frozenset(
    ("momentum", "dampening", "weight_decay", "betas", "eps", "alpha", "nesterov", "amsgrad")
)
#: Arguments of PopTorch's optimizers after the parameters and the rate, in order.
_DEFAULTS = {
    "SGD": {"momentum": "0", "dampening": "0", "weight_decay": "0"},
    "Adam": {"betas": "(0.9, 0.999)", "eps": "1e-08", "weight_decay": "0"},
    "AdamW": {"betas": "(0.9, 0.999)", "eps": "1e-08", "weight_decay": "0.01"},
    "RMSprop": {"alpha": "0.99", "eps": "1e-08", "weight_decay": "0", "momentum": "0"},
}
_KEPT = (
    "{key} of {name} changes here, and a compiled program keeps what it was at its first call: "
    "make a new optimizer here, which gets a program of its own; a momentum may change if it is "
    "not 0 at first"
)
_WRITTEN = (
    "{key} changes later, so it is written as an argument: a compiled program takes arguments "
    "as variables and defaults as constants"
)


def apply_rates(context: Context) -> None:
    """Give the optimizer to the training model after its groups were changed."""
    for scheduler in context.things.all(Kind.SCHEDULER):
        _follow_momentum(context, scheduler)
    for source in context.project.sources:
        changed: dict[Statement, None] = {}
        for node in findall(source.module, m.Attribute(attr=m.Name("param_groups"))):
            optimizers = context.things.of(source, node.value, Kind.OPTIMIZER)
            statement = statement_of(source, node)
            trained = [each for each in optimizers if each in context.training]
            if trained and statement not in changed and _writes(source, statement, node):
                changed[statement] = None
                for key in sorted(_keys(statement) & _CONSTANT):
                    for optimizer in trained:
                        _make_variable(context, source, statement, optimizer, key)
                _pass_on(context, source, statement, trained[0], "ABP412")


def _follow_momentum(context: Context, scheduler: Thing) -> None:
    """Have the program take the momentum that a scheduler changes beside the rate."""
    call, last = scheduler.made, scheduler.name.rpartition(".")[2]
    if last not in _CYCLES or not isinstance(call, cst.Call):
        return
    cycles = argument(call, "cycle_momentum")
    if cycles is not None and m.matches(cycles, m.Name("False")):
        return
    for optimizer in places.of_scheduler(context, scheduler) & context.training.keys():
        adam = optimizer.name.rpartition(".")[2] in ("Adam", "AdamW")
        key = "betas" if adam else "momentum"
        _make_variable(context, scheduler.source, call, optimizer, key)


def _keys(statement: Statement) -> set[str]:
    """Return the keys of an optimizer's groups that a statement writes."""
    return {
        str(each.evaluated_value)
        for node in findall(statement, m.Assign() | m.AugAssign())
        for target in targets_of(node)
        if isinstance(target, cst.Subscript)
        for each in findall(target.slice[-1], m.SimpleString())
    }


def _make_variable(
    context: Context, source: Source, node: cst.CSTNode, optimizer: Thing, key: str
) -> None:
    """Have the program take one value of an optimizer, which a node changes, as a variable."""
    name, made = optimizer.name.rpartition(".")[2], optimizer.made
    defaults = _DEFAULTS.get(name, {})
    place = [*defaults].index(key) + 2 if key in defaults else None
    value = argument(made, key, place) if isinstance(made, cst.Call) else None
    zero = value is None or m.matches(value, m.Integer("0") | m.Float("0.0"))
    if key not in defaults or (key == "momentum" and zero):
        reason = _KEPT.format(key=key, name=name)
        context.say(source, node, "ABP414", Verdict.BLOCKED, reason)
    elif value is None and isinstance(made, cst.Call) and (optimizer, key) not in context.once:
        context.once.add((optimizer, key))
        context.edits(optimizer.source).give(made, keyword(key, defaults[key]))
        reason = _WRITTEN.format(key=key)
        context.say(optimizer.source, made, "ABP413", Verdict.MODIFIED, reason)


def _writes(source: Source, statement: Statement, groups: cst.Attribute) -> bool:
    """Return whether a statement changes an element of an optimizer's groups."""
    targets = [
        target
        for node in findall(statement, m.Assign() | m.AugAssign())
        for target in targets_of(node)
        if isinstance(target, cst.Subscript)
    ]
    names = {*names_in(statement.target)} if isinstance(statement, cst.For) else set[str]()
    return any(each in source.above(groups) or _root(each) in names for each in targets)


def _root(node: cst.BaseExpression) -> str:
    while isinstance(node, cst.Subscript | cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""
