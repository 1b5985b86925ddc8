"""Evaluation: a model that is called without its loss becomes an inference model."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.order import Order
from abele.port.analysis.own_results import class_returned
from abele.port.analysis.search import findall
from abele.port.analysis.steps import Statement, block_of
from abele.port.analysis.strangers import may_be_another
from abele.port.analysis.things import Home, NoHomeError
from abele.port.analysis.weightless import is_weightless
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.routes import NoRouteError, Wrapped
from abele.port.rules import evaluation_batches, evaluation_mode, shared_functions
from abele.port.rules.shared_functions import Use
from abele.port.source import Source

CODES = {
    "ABP501": (
        "An inference model is made where the model gets its name. It shares the weights of "
        "the training model."
    ),
    "ABP502": (
        "The call runs the inference model; where a last, shorter batch may come, that one is "
        "computed by the plain model."
    ),
    "ABP503": (
        "The model's own forward reads self.training, of which an inference model has a copy: it "
        "has to be wrapped after eval()."
    ),
    "ABP504": "The model may be in training mode here: the plain model runs, on the host.",
    "ABP505": (
        "Inputs of a call may have several shapes, and a program has one: the plain model runs, "
        "on the host."
    ),
    "ABP506": (
        "forward returns an object of a class of its own, and a program returns tensors in tuples, "
        "lists and dictionaries: the plain model runs, on the host."
    ),
    "ABP507": (
        "A function that training calls, too, calls the model itself: the plain model runs, on the "
        "host."
    ),
    "ABP509": "The inference model cannot be reached here; the plain model runs on the host.",
}

_REASON = "the model without its loss runs as a program, too"
_SHORT = "; a last, shorter batch has another shape and is computed by the plain model"
_ANY_SHAPE = (
    "inputs of this call may have several shapes, and a program has one: the plain model runs, on "
    "the host, with the weights of the program; where all have one shape, call "
    "poptorch.inferenceModel(model, options=opts) instead"
)
_OBJECT = (
    "forward returns an object of {returned}, and a program returns tensors in tuples, lists and "
    "dictionaries: the plain model runs, on the host; make {returned} a NamedTuple to run a program"
)
_SEVERAL = (
    "this may be one of several models, and a compiled program has one: the plain model "
    "runs, on the host"
)
_ANOTHER = (
    "this may be another model than the one that is trained, such as a copy of it or an average of "
    "its weights, and a compiled program has one: the plain model runs, on the host"
)
_SHARED = (
    "{function} calls the model itself, and training calls {function}, too: the plain model runs, "
    "on the host, with the weights of the program; an inference model runs where the model is an "
    "argument of {function} that it calls once, and does nothing else with"
)


def apply(context: Context) -> None:
    """Wrap models that are called outside of training steps."""
    wrapped: dict[tuple[Thing, cst.CSTNode, str | cst.Call], Wrapped] = {}
    uses = [*_calls(context), *shared_functions.uses(context)]
    for use in uses:
        source, call, thing = use.source, use.call, use.thing
        owner = context.things.owner(source, call)
        try:
            rows = evaluation_batches.rows(context, use)
            if evaluation_mode.may_train(context, thing, source, call):
                continue
            code, reason = _why_plain(context, use, rows)
            if rows is None or code:
                context.say(source, call, code, Verdict.MATCH, reason)
                continue
            key = thing, owner, rows.size
            model = wrapped.get(key) or _name(context, thing, len(wrapped))
            name = context.routes.name(model, source, call)
            if key not in wrapped:
                wrapped[key] = model
                _make(context, thing, source, call, model.name)
            _replace(context, use, name, rows.condition)
        except NoRouteError as error:
            reason = (
                f"an inference model cannot be reached here ({error}): the plain model runs, on "
                "the host"
            )
            context.say(source, call, "ABP509", Verdict.MANUAL, reason)


def _why_plain(context: Context, use: Use, rows: evaluation_batches.Rows | None) -> tuple[str, str]:
    """The code and reason for which the plain model runs in a call; ``""`` if a program does."""
    if use.model is not None and may_be_another(context.things, use.source, use.model):
        return "ABP509", _ANOTHER
    returned = class_returned(context.project, use.thing)
    if returned:
        return "ABP506", _OBJECT.format(returned=returned)
    own_mode = bool(use.function) and evaluation_mode.asks_for_its_mode(context, use.thing)
    if use.model is None or own_mode:
        return "ABP507", _SHARED.format(function=use.function)
    return ("ABP505", _ANY_SHAPE) if rows is None else ("", "")


def _calls(context: Context) -> Iterator[Use]:
    """Calls of models outside of training steps and of other models."""
    trained = {thing for step in context.steps for thing in step.models}
    inside: set[cst.CSTNode] = {
        each for step in context.steps for each in (*step.forward, step.backward, *step.helpers)
    }
    inside |= context.replaced
    for source in context.project.sources:
        for call in findall(source.module, m.Call()):
            if not isinstance(call, cst.Call) or not isinstance(
                call.func, cst.Name | cst.Attribute
            ):
                continue
            models = context.things.of(source, call.func, Kind.MODEL)
            if not models or inside & set(source.above(call)) or _in_model(context, source, call):
                continue
            if len(models) > 1 and models & trained:
                context.say(source, call, "ABP509", Verdict.MANUAL, _SEVERAL)
            elif len(models) == 1:
                (thing,) = models
                if is_weightless(context.project, thing):
                    continue  # a loss is computed where losses of torch are
                if thing in trained or not thing.name.startswith("torch.nn."):
                    yield Use(
                        source=source, call=call, thing=thing, model=call.func, given=call.args
                    )


def _in_model(
    context: Context, source: Source, node: cst.CSTNode, around: tuple[cst.FunctionDef, ...] = ()
) -> bool:
    """Whether a model has a node in it: in a method, or a function that only models call."""
    cls = source.enclosing(node, cst.ClassDef)
    if cls is not None:
        return context.project.is_module(cls)
    function = source.enclosing(node, cst.FunctionDef)
    if function is None or function in around:
        return False
    calls = context.things.calls(function)
    return bool(calls) and all(
        _in_model(context, caller, call, (*around, function)) for call, caller in calls.items()
    )


def _name(context: Context, thing: Thing, count: int) -> Wrapped:
    """The inference model of a model, which is to be made where that one gets its name."""
    home = _home(context, thing)
    prefix = "self." if home.variable.name.startswith("self.") else ""
    number = f"_{count + 1}" if count else ""
    name = prefix + context.name(home.source, f"inference_model{number}")
    return Wrapped(name, home.source, home.variable.owner)


def _make(context: Context, thing: Thing, at: Source, call: cst.Call, name: str) -> None:
    """Make an inference model for a call of a file, where the model is made."""
    home = _home(context, thing)
    source = home.source
    statement = _last_assignment(context, home, thing, Order(context.things).sites(at, call))
    options = context.options(source)
    model = evaluation_mode.wrapped(context, thing, source, call, home.variable.name)
    context.edits(source).after(
        statement, f"{name} = poptorch.inferenceModel({model}, options={options})"
    )
    context.say(source, statement, "ABP501", Verdict.MODIFIED, f"{name} is made here: {_REASON}")


def _home(context: Context, thing: Thing) -> Home:
    """Where the model gets its name.

    Raises:
        NoRouteError: there is no one place.
    """
    try:
        return context.things.home(thing)
    except NoHomeError as error:
        raise NoRouteError(str(error)) from error


def _last_assignment(
    context: Context, home: Home, thing: Thing, sites: list[tuple[Source, cst.CSTNode]]
) -> Statement:
    """The last statement in the same block that gives the model's variable no other model.

    None of those that run the call, which is at some places of its own and of its callers.
    """
    last: Statement = home.statement
    block = block_of(home.source, home.statement)
    calls = {node for _, node in sites}
    for statement in block[block.index(home.statement) + 1 :]:
        if calls & {statement, *findall(statement, m.Call())}:
            break
        for node in findall(statement, m.Assign()):
            assert isinstance(node, cst.Assign)
            target = node.targets[0].target
            given = context.things.of(home.source, node.value, Kind.MODEL)
            same = not given or thing in given
            if same and context.things.variable(home.source, target) == home.variable:
                last = statement
    return last


def _replace(context: Context, use: Use, name: str, rows: str) -> None:
    """Call the inference model, or the plain one for a shorter batch."""
    assert use.model is not None
    source = use.source
    plain = source.code(use.model)
    reason = _REASON + _SHORT if rows else _REASON
    called = f"{name} if {rows} else {plain}" if rows else name
    if rows and not use.function:
        called = f"({called})"
    context.edits(source).replace(use.model, called)
    for each in () if use.function else use.given:
        keys = evaluation_batches.parts(context, source, each)
        if keys:
            name = source.code(each.value)
            given = ", ".join(f"{key}: {name}[{key}]" for key in keys)
            context.edits(source).replace(each.value, f"{{{given}}}")
    context.say(source, use.call, "ABP502", Verdict.MODIFIED, reason)
