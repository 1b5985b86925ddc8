"""Ports evaluation: a model that is called without its loss becomes an inference model.

A program has one shape and keeps the mode of its first call. An inference model replaces the model
only if evaluation mode and batch size are known; otherwise the plain model runs, with the
weights of the program, and the line is reported.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from abele.port.analysis import batches
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.models import (
    asks_for_its_mode,
    class_returned,
    is_weightless,
    mode_at,
    mode_matters,
)
from abele.port.analysis.things import NoRouteError
from abele.port.context import Context, Wrapped
from abele.port.finding import Verdict
from abele.port.source import Source, findall

CODES = {
    "ABP501": "An inference model is made after the model. It shares the weights that are trained.",
    "ABP502": "The call runs the inference model; the plain model computes a last, shorter batch.",
    "ABP503": "forward reads self.training: the inference model has to be made after eval().",
    "ABP504": "The model may be in training mode here: the plain model runs, on the host.",
    "ABP505": "Inputs may have several shapes, and a program has one: the plain model runs.",
    "ABP506": "forward returns an object of its own class, not tensors: the plain model runs.",
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
_UNKNOWN_MODE = (
    "the model may be in training mode here, in which dropout draws and batch norm changes its "
    "averages on the host: the plain model runs, on the host; call eval() in this function before "
    "to run a program"
)
_KEEPS_MODE = (
    "forward reads self.training, and an inference model keeps the mode in which it is made: call "
    "{model}.eval() before it is made"
)


def apply(context: Context) -> None:
    """Wrap models that are called outside of training steps as inference models."""
    wrapped: dict[tuple[Thing, cst.CSTNode, str | cst.Call], Wrapped] = {}
    for source, call, thing in _calls(context):
        try:
            _evaluate(context, source, call, thing, wrapped)
        except NoRouteError as error:
            reason = (
                f"an inference model cannot be reached here ({error}): the plain model runs, on "
                "the host"
            )
            context.say(source, call, "ABP509", Verdict.MANUAL, reason)


def _evaluate(
    context: Context,
    source: Source,
    call: cst.Call,
    thing: Thing,
    wrapped: dict[tuple[Thing, cst.CSTNode, str | cst.Call], Wrapped],
) -> None:
    """Replace a model's call by one of an inference model, or report why that is impossible."""
    rows = _rows(context, source, call)
    if _may_train(context, thing, source, call):
        return
    if context.things.may_be_unknown(source, call.func):
        context.say(source, call, "ABP509", Verdict.MATCH, _ANOTHER)
        return
    returned = class_returned(context.project, thing)
    if returned:
        context.say(source, call, "ABP506", Verdict.MATCH, _OBJECT.format(returned=returned))
        return
    if rows is None:
        context.say(source, call, "ABP505", Verdict.MATCH, _ANY_SHAPE)
        return
    condition, size = rows
    key = thing, context.things.owner(source, call), size
    model = wrapped.get(key) or _name(context, thing, len(wrapped))
    name = context.routes.name(model, source, call)
    if key not in wrapped:
        wrapped[key] = model
        _make(context, thing, source, call, model.name)
    plain = source.code(call.func)
    called = f"({name} if {condition} else {plain})" if condition else name
    context.edits(source).replace(call.func, called)
    reason = _REASON + _SHORT if condition else _REASON
    context.say(source, call, "ABP502", Verdict.MODIFIED, reason)


def _calls(context: Context) -> Iterator[tuple[Source, cst.Call, Thing]]:
    """Yield calls of models for evaluation, outside of training steps and of other models."""
    trained = {thing for step in context.steps for thing in step.models}
    inside: set[cst.CSTNode] = {
        each for step in context.steps for each in (*step.forward, step.backward, *step.helpers)
    }
    for source in context.project.sources:
        for call in findall(source.module, m.Call(func=m.Name() | m.Attribute())):
            models = context.things.of(source, call.func, Kind.MODEL)
            if not models or inside & set(source.above(call)) or _in_model(context, source, call):
                continue
            if len(models) > 1 and models & trained:
                context.say(source, call, "ABP509", Verdict.MANUAL, _SEVERAL)
            elif len(models) == 1:
                (thing,) = models
                is_loss = is_weightless(context.project, thing)
                if not is_loss and (thing in trained or not thing.name.startswith("torch.nn.")):
                    yield source, call, thing


def _in_model(
    context: Context, source: Source, node: cst.CSTNode, around: tuple[cst.FunctionDef, ...] = ()
) -> bool:
    """Return whether a node is in a method of a module, or in a function that only modules call."""
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


def _may_train(context: Context, thing: Thing, source: Source, call: cst.Call) -> bool:
    """Return whether a model's call may need training mode, and report its line."""
    if not mode_matters(context.project, thing):
        return False
    if mode_at(context.project, context.things, thing, source, call) is False:
        return False
    # A step that is refused has said why already.
    loop = source.enclosing(call, cst.For, cst.While, cst.FunctionDef)
    inside = [each.node for at, each in context.refused if at is source]
    if not any(loop is around for each in inside for around in source.above(each)):
        context.say(source, call, "ABP504", Verdict.MANUAL, _UNKNOWN_MODE)
    return True


# -- where the inference model is made -----------------------------------------------------------


def _name(context: Context, thing: Thing, count: int) -> Wrapped:
    """Return the variable that will hold the inference model of a model."""
    home = context.things.home(thing)
    prefix = "self." if home.variable.name.startswith("self.") else ""
    number = f"_{count + 1}" if count else ""
    name = prefix + context.name(home.source, f"inference_model{number}")
    return Wrapped(name, home.source, home.variable.owner)


def _make(context: Context, thing: Thing, at: Source, call: cst.Call, name: str) -> None:
    """Construct an inference model after the assignment that creates the model."""
    home = context.things.home(thing)
    source = home.source
    statement = home.statement
    options = context.options(source)
    model = home.variable.name
    if asks_for_its_mode(context.project, thing):
        plain = len(call.args) == 1 and call.args[0].keyword is None and not call.args[0].star
        if plain:  # inside of another module it is a layer, which eval() reaches
            if not source.imported_as("torch"):
                context.edits(source).need("import torch")
            model = f"torch.nn.Sequential({model})"
        else:
            reason = _KEEPS_MODE.format(model=model)
            context.say(at, call, "ABP503", Verdict.MANUAL, reason)
    made = f"{name} = poptorch.inferenceModel({model}, options={options})"
    context.edits(source).after(statement, made)
    context.say(source, statement, "ABP501", Verdict.MODIFIED, f"{name} is made here: {_REASON}")


# -- rows of a batch -----------------------------------------------------------------------------


def _rows(context: Context, source: Source, call: cst.Call) -> tuple[str, str | cst.Call] | None:
    """Return a test of the batch size of a model's call; None if the size may vary freely.

    Returns:
        The source of a test that a batch is not a shorter last one, empty if none is shorter; and a
        key that is equal for calls that may share a program.
    """
    around = list(batches.loaders_around(context.things, source, call))
    loaders = {each for _, _, some in around for each in some}
    if not around:
        repeated = (cst.FunctionDef, cst.Lambda, cst.For, cst.While, cst.BaseComp)
        once = not any(isinstance(each, repeated) for each in source.above(call))
        return ("", call) if once else None
    given = [(each.source, batches.size(each)) for each in loaders]
    sizes = {"1" if node is None else at.code(node) for at, node in given}
    if not call.args or (len(sizes) == 1 and not any(map(batches.may_be_short, loaders))):
        return "", min(sizes)
    at, loop, _ = around[0]
    through = batches.gone_through(at, loop)
    owners = {context.things.owner(source, call), context.things.owner(at, loop.iter)}
    if len(around) > 1 or len(owners) > 1 or not isinstance(through, cst.Name | cst.Attribute):
        return None
    test = f"len({_first(context, source, call)}) == {source.code(through)}.batch_size"
    return test, min(sizes)


def _first(context: Context, source: Source, call: cst.Call) -> str:
    """Return the source text of the argument, or its element, whose length is the batch size."""
    first = call.args[0]
    text = source.code(context.edits(source).applied(first.value))
    if first.star:
        return f"{text}[0]" if first.star == "*" else f"next(iter({text}.values()))"
    if not isinstance(first.value, cst.Name):
        return text
    index = m.SubscriptElement(m.Index(m.SimpleString()))
    read = m.Subscript(value=m.Name(first.value.value), slice=[index])
    every = findall(context.things.owner(source, call), read)
    keys = [source.code(cst.ensure_type(each.slice[0].slice, cst.Index).value) for each in every]
    return f"{text}[{keys[0]}]" if keys else text
