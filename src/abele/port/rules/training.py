"""Training steps: model, loss, gradients and update become one call of a training model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.flow import reads, writes
from abele.port.analysis.kinds import Kind
from abele.port.analysis.order import Order
from abele.port.analysis.own_results import class_returned
from abele.port.analysis.search import findall
from abele.port.analysis.steps import Statement, Step, StepError, calls_of
from abele.port.analysis.things import Home
from abele.port.analysis.training_mode import EITHER, TrainingMode, mode_matters
from abele.port.context import Context
from abele.port.edits import parsed
from abele.port.finding import Verdict
from abele.port.routes import NoRouteError, Wrapped
from abele.port.rules import accumulation, hand_written, places
from abele.port.rules.endings import endings
from abele.port.rules.wrapper import Wrapper, wrapper_of
from abele.port.source import Source

CODES = {
    "ABP301": (
        "The training model is made where its optimizer gets its name: model, loss, gradients "
        "and update are one program. Others that trained the same weights before are ended there."
    ),
    "ABP302": "The call of the training model does what zero_grad(), backward() and step() did.",
    "ABP303": (
        "The statements from the model to the loss are the forward pass of a new module. What "
        "others read of them is returned beside the loss."
    ),
    "ABP304": "A function takes a wrapped model as one more argument, and its callers pass it.",
    "ABP403": "An update written by hand becomes poptorch.optim.SGD with the same rate.",
    "ABP311": (
        "Gradients of several batches are added up by one call, which makes one update and "
        "returns the loss of each batch."
    ),
    "ABP312": "A state is passed from batch to batch; its shape must not change.",
    "ABP314": "A number that changes is passed to the compiled program as a tensor of float32.",
    "ABP313": "The model may be in training or in evaluation mode where it is trained.",
    "ABP398": "The training model cannot be reached where the step is.",
    "ABP399": "The training step cannot become one compiled program.",
    "ABP616": "An optimizer of a program updates nothing by itself.",
}

_ALONE = (
    "this updates with gradients that the program has already applied, or keeps: the call of "
    "{name} makes the update; take this one out, or call backward() and step() in one block"
)


def apply(context: Context) -> None:
    """Rewrite every training step that was found."""
    for source, error in context.refused:
        context.refuse(source, error, "ABP399")
    for step in context.steps:
        try:
            _rewrite(context, step)
        except StepError as error:
            context.refuse(step.source, error, "ABP399")
        except NoRouteError as error:
            reason = f"the training model cannot be reached here: {error}"
            context.say(step.source, step.backward, "ABP398", Verdict.BLOCKED, reason)
    _refuse_other_updates(context)


def _refuse_other_updates(context: Context) -> None:
    """Name updates of an optimizer beside that of its step, which would change nothing."""
    order = Order(context.things)
    gone = {each.update for each in context.steps}
    for source in context.project.sources:
        for call in calls_of(source.module, "step"):
            assert isinstance(call.func, cst.Attribute)
            things = context.things.of(source, call.func.value, Kind.OPTIMIZER)
            if not things & context.training.keys() or gone & {*source.above(call)}:
                continue
            for step in context.steps:
                made = step.gradients.optimizers
                if things & {*made} and order.follows(
                    (step.source, step.backward), (source, call), made
                ):
                    reason = _ALONE.format(name=context.training[step.optimizer].name)
                    context.say(source, call, "ABP616", Verdict.BLOCKED, reason)
                    break


def _rewrite(context: Context, step: Step) -> None:
    if any(each in context.training for each in step.gradients.optimizers):
        raise StepError(
            step.backward,
            "this optimizer updates in another step, too: make an optimizer for each, or one "
            "step of both",
        )
    _check_results(context, step)
    say_carried(context, step)
    _say_modes(context, step)
    _say_numbers(context, step)
    step, divided = accumulation.undivided(step)
    wrapper = wrapper_of(context, step)
    model = _wrap(context, step, wrapper)
    name = context.routes.name(model, step.source, step.backward)
    if step.gradients.every is None:
        put_call(context, step, name)
    else:
        accumulation.call(context, step, name, divided)
    take_out(context, step, "ABP302", "the call of the training model does this")


def _check_results(context: Context, step: Step) -> None:
    """What is read of the step's results beside the loss is no object of the program's own.

    Raises:
        StepError: it is one.
    """
    for statement in step.forward:
        results = [name for name in writes(statement) if name in step.outputs]
        for call in findall(statement, m.Call()) if results else ():
            for thing in context.things.of(step.source, call.func, Kind.MODEL):
                returned = class_returned(context.project, thing)
                assigned = findall(statement, m.Assign(targets=[m.AssignTarget(m.Name())]))
                if returned and any(each.value is call for each in assigned):
                    raise StepError(
                        call,
                        f"{results[0]} is an object of {returned}, and a program returns tensors "
                        "in tuples, lists and dictionaries: give the tensors that are read later "
                        f"names before backward(), or make {returned} a NamedTuple",
                    )


def take_out(context: Context, step: Step, code: str, reason: str) -> None:
    """Take out the statements that compute and apply gradients.

    Args:
        context: the program.
        step: whose statements they are.
        code: of what is said of them.
        reason: that is said.
    """
    for removed in step.gradients.removed:
        context.edits(step.source).remove(removed.statement)
        context.say(step.source, removed.statement, removed.code, Verdict.MODIFIED, removed.reason)
    for statement in (*step.zero, step.backward, step.update):
        if statement is not step.place:
            context.edits(step.source).remove(statement)
            context.say(step.source, statement, code, Verdict.MODIFIED, reason)


def say_carried(context: Context, step: Step) -> None:
    """What goes from one step to the next is an argument and a result of the program."""
    for statement in step.forward:
        carried = [name for name in writes(statement) if name in step.carried]
        if carried and statement in step.block:
            reason = (
                f"{', '.join(carried)} is passed to each call and returned by it: its shape "
                "must not change"
            )
            context.say(step.source, statement, "ABP312", Verdict.MANUAL, reason)


def _say_numbers(context: Context, step: Step) -> None:
    """What is a number in the original and a tensor in the port rounds as tensors do."""
    if step.slow:
        reason = (
            f"{', '.join(step.slow)} changes, and is passed to the compiled program as a tensor: "
            "what is computed from it there is rounded to float32, where Python has float64"
        )
        context.say(step.source, step.place, "ABP314", Verdict.MODIFIED, reason)


def _say_modes(context: Context, step: Step) -> None:
    """A step in either mode is one in the mode of the first call."""
    for thing in step.models:
        if not mode_matters(context.project, thing):
            continue
        mode = TrainingMode(context.project, context.things, thing)
        if mode.at(step.source, step.place) == EITHER:
            reason = (
                "the model may be in training or in evaluation mode here, and a compiled "
                "program keeps the mode of its first call: call train() before"
            )
            context.say(step.source, step.backward, "ABP313", Verdict.MANUAL, reason)
            return


def _wrap(context: Context, step: Step, wrapper: Wrapper) -> Wrapped:
    """Make the training model, where its optimizer is made."""
    home = _home(context, step, wrapper)
    source, kept = home.source, home.variable
    prefix = "self." if kept.name.startswith("self.") else ""
    count = len(set(context.training.values()))
    number = str(count + 1) if count else ""
    name = prefix + context.name(source, f"training_model{number and '_'}{number}")
    cls = context.name(step.source, f"ModelWithLoss{number}")
    options = _options(context, step, home)
    made, optimizer, rate = hand_written.optimizer(context, step, home)
    parts = _parts(context, step, home, wrapper)
    define_module(context, step, source, cls, wrapper)
    for number, each in enumerate(places.homes(context, step, home)):
        _say_end(context, step, each, name, first=number == 0)
        parts = _parts(context, step, each, wrapper)
        names = places.needed(f"[{parts}, {rate}]")
        ended = endings(context, step, each) if number == 0 else ""
        context.edits(source).after(
            places.after_all(context, step, each, names),
            f"{made}{ended}{name} = poptorch.trainingModel(\n"
            f"    {cls}({parts}), options={options}, optimizer={optimizer}\n)",
        )
        _say_made(context, step, each, name)
    model = Wrapped(name, source, kept.owner)
    hand_written.follow(context, step, model, optimizer)
    context.training |= dict.fromkeys(step.gradients.optimizers, model)
    return model


def _options(context: Context, step: Step, home: Home) -> str:
    """The name of the options of a step, where its training model is made."""
    return accumulation.options_of(context, step, home.source) or context.options(home.source)


def _home(context: Context, step: Step, wrapper: Wrapper) -> Home:
    """Where the optimizer is made, or where the object that trains keeps it, if only that will do.

    Raises:
        StepError: the module of the step needs what is known in neither place.
    """
    home = places.home(context, step)
    try:
        _parts(context, step, home, wrapper)
    except StepError:
        kept = places.kept_by_constructor(context, step)
        if kept is None or step.gradients.by_hand is not None:
            raise
        return kept
    return home


def _say_end(context: Context, step: Step, home: Home, name: str, *, first: bool) -> None:
    """Have an earlier training model of the same weights give them back."""
    edits = context.edits(home.source)
    if not first:
        edits.before(home.statement, f"{name}.destroy()")
    loop = places.loop_of_one_model(context, step, home)
    if loop is not None:
        edits.after(loop.body.body[-1], f"{name}.destroy()")


def _parts(context: Context, step: Step, home: Home, wrapper: Wrapper) -> str:
    """What the module of a step is made with, where an optimizer gets its name."""
    return ", ".join(places.value(context, step.source, part.value, home) for part in wrapper.parts)


def _say_made(context: Context, step: Step, home: Home, name: str) -> None:
    reason = f"{name} is made here: the model, its loss and this optimizer as one program"
    context.say(home.source, home.statement, "ABP301", Verdict.MODIFIED, reason)


def define_module(context: Context, step: Step, source: Source, cls: str, wrapper: Wrapper) -> None:
    """Have the module in the file of its step, and its name where it is used."""
    edits = context.edits(step.source)
    edits.define(wrapper.text.replace("{name}", cls, 1))
    if not step.source.imported_as("torch"):
        edits.need("import torch")
    if wrapper.marked:
        edits.need("import poptorch")
    if source is not step.source:
        module = step.source.name.removesuffix(".py").replace("/", ".")
        context.edits(source).need(f"from {module} import {cls}")


def put_call(context: Context, step: Step, name: str, text: str = "") -> None:
    """Put one call in the place of the statements that compute the loss.

    Args:
        context: the program.
        step: whose statements they are.
        name: of the model.
        text: of the call, if it is another than that of the model.
    """
    edits = context.edits(step.source)
    results = ", ".join((*step.outputs, step.loss))
    first, *others = parsed(text or f"{results} = {name}({step.arguments})")
    later = _later(step)
    # What stood between comes after the call: what it reads is there then.
    moved = [edits.applied(statement) for statement in later]

    def change(node: Any) -> Any:
        call = first.with_changes(leading_lines=node.leading_lines)
        return cst.FlattenSentinel([call, *others, *moved])

    for statement in (*step.forward, *later):
        if statement is not step.place:
            edits.remove(statement)
    edits.change(step.place, change)
    for statement in (*(each for each in step.forward if each in step.block), step.place):
        context.say(
            step.source,
            statement,
            "ABP303",
            Verdict.MODIFIED,
            f"moved into the module that {name} runs"
            if statement is not step.place
            else f"one call of {name} runs forward, backward and the update",
        )


def _later(step: Step) -> Sequence[Statement]:
    """Statements between those that compute the loss that read what these write."""
    real = [each for each in step.forward if each in step.block]
    first = step.block.index(real[0]) if real else 0
    end = step.block.index(step.place)
    written = {name for statement in step.forward for name in writes(statement)}
    return [
        statement
        for statement in step.block[first:end]
        if statement not in step.forward and written & set(reads(statement))
    ]
