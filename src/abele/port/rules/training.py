"""Training steps: model, loss, gradients and update become one call of a training model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst

from abele.port.analysis.flow import reads, writes
from abele.port.analysis.kinds import Thing
from abele.port.analysis.steps import Statement, Step, StepError
from abele.port.analysis.things import Home, NoHomeError
from abele.port.context import Context
from abele.port.edits import parsed
from abele.port.finding import Verdict
from abele.port.routes import NoRouteError, Wrapped
from abele.port.rules.wrapper import Part, Wrapper, wrapper_of
from abele.port.source import Source

CODES = {
    "ABP301": (
        "The training model is made where its optimizer gets its name: model, loss, gradients "
        "and update are one program."
    ),
    "ABP302": "Gradients are forgotten, computed and applied in the call of the training model.",
    "ABP303": (
        "The statements from the model to the loss are the forward pass of a new module. What "
        "others read of them is returned beside the loss."
    ),
    "ABP304": "A function takes a wrapped model as one more argument, and its callers give it.",
    "ABP398": "The training model cannot be passed to where the step is.",
    "ABP399": "The training step has no counterpart as one program.",
}


def apply(context: Context) -> None:
    """Rewrite every training step that was found."""
    for source, error in context.refused:
        context.say(source, error.node, "ABP399", Verdict.BLOCKED, error.reason)
    for step in context.steps:
        try:
            _rewrite(context, step)
        except StepError as error:
            context.say(step.source, error.node, "ABP399", Verdict.BLOCKED, error.reason)
        except NoRouteError as error:
            reason = f"the training model cannot be had here: {error}"
            context.say(step.source, step.backward, "ABP398", Verdict.BLOCKED, reason)


def _rewrite(context: Context, step: Step) -> None:
    if step.optimizer in context.training:
        raise StepError(step.backward, "its optimizer updates in another step, too")
    wrapper = wrapper_of(context, step)
    model = _wrap(context, step, wrapper)
    name = context.routes.name(model, step.source, step.backward)
    _call(context, step, name)
    for statement in (*step.zero, step.backward, step.update):
        context.edits(step.source).remove(statement)
        context.say(
            step.source,
            statement,
            "ABP302",
            Verdict.MODIFIED,
            "the call of the model does this, too",
        )


def _wrap(context: Context, step: Step, wrapper: Wrapper) -> Wrapped:
    """Make the training model, where its optimizer is made."""
    optimizer = step.optimizer
    home = _home(context, step)
    source, kept = home.source, home.variable
    prefix = "self." if kept.name.startswith("self.") else ""
    name = prefix + context.name(source, "training_model")
    cls = context.name(step.source, "ModelWithLoss")
    options = context.options(source)
    given = ", ".join(_value(context, step, part, home) for part in wrapper.parts)
    _define(context, step, source, cls, wrapper)
    context.edits(source).after(
        home.statement,
        f"{name} = poptorch.trainingModel(\n"
        f"    {cls}({given}), options={options}, optimizer={kept.name}\n)",
    )
    model = Wrapped(name, source, kept.owner)
    context.training[optimizer] = model
    reason = f"{name} is made here: the model, its loss and this optimizer as one program"
    context.say(source, home.statement, "ABP301", Verdict.MODIFIED, reason)
    return model


def _define(context: Context, step: Step, source: Source, cls: str, wrapper: Wrapper) -> None:
    edits = context.edits(step.source)
    edits.define(wrapper.text.replace("{name}", cls, 1))
    if not step.source.imported_as("torch"):
        edits.need("import torch")
    if wrapper.marked:
        edits.need("import poptorch")
    if source is not step.source:
        module = step.source.name.removesuffix(".py").replace("/", ".")
        context.edits(source).need(f"from {module} import {cls}")


def _home(context: Context, step: Step) -> Home:
    """Where the optimizer gets its name."""
    try:
        return context.things.home(step.optimizer)
    except NoHomeError as error:
        raise StepError(step.update, f"its optimizer has no one place: {error}") from error


def _value(context: Context, step: Step, part: Part, home: Home) -> str:
    """What the wrapper is given for a part, where the optimizer is made.

    Raises:
        StepError: that is not known there.
    """
    things = context.things
    code = step.source.code(part.value)
    source = home.source
    there = things.owner(source, home.statement)
    variable = things.variable(step.source, part.value)
    if variable is None:
        raise StepError(part.value, f"{code} is not known where the optimizer is made")
    visible = (there, source.module, *source.above(home.statement))
    if step.source is source and variable.owner in visible:
        return code
    for thing in things.of(step.source, part.value):
        for owner in visible:
            if isinstance(owner, cst.FunctionDef | cst.Module):
                names = things.names(owner, thing)
                if names:
                    return names[0]
    for thing in things.of(step.source, part.value):
        if _is_closed(context, thing):
            return step.source.code(thing.made)
    if isinstance(variable.owner, cst.FunctionDef):
        value = _from_caller(context, variable.owner, variable.name, there)
        if value is not None:
            return value
    raise StepError(
        part.value,
        f"the loss needs {code}, which is not known where the optimizer is made; "
        "make it there, or in the module",
    )


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
    given = context.things.arguments(function, call).get(name)
    if given is None or context.things.owner(source, call) is not there:
        return None
    return source.code(given) if isinstance(given, cst.Name) else None


def _call(context: Context, step: Step, name: str) -> None:
    """Put one call in the place of the statements that compute the loss."""
    edits = context.edits(step.source)
    *others, last = step.forward
    results = ", ".join((*step.outputs, step.loss))
    (call,) = parsed(f"{results} = {name}({', '.join(step.inputs)})")
    later = _later(step)
    # What stood between comes after the call: what it reads is there then.
    moved = [edits.applied(statement) for statement in later]

    def change(node: Any) -> Any:
        return cst.FlattenSentinel([call.with_changes(leading_lines=node.leading_lines), *moved])

    for statement in (*others, *later):
        edits.remove(statement)
    edits.change(last, change)
    for statement in step.forward:
        context.say(
            step.source,
            statement,
            "ABP303",
            Verdict.MODIFIED,
            f"moved into the module that {name} runs"
            if statement is not last
            else f"one call of {name} computes, differentiates and updates",
        )


def _later(step: Step) -> Sequence[Statement]:
    """Statements between those that compute the loss that read what these write."""
    first = step.block.index(step.forward[0])
    end = step.block.index(step.forward[-1])
    written = {name for statement in step.forward for name in writes(statement)}
    return [
        statement
        for statement in step.block[first:end]
        if statement not in step.forward and written & set(reads(statement))
    ]
