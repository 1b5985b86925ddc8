"""Ports training steps: forward pass, gradients and update become one training model call."""

from __future__ import annotations

import builtins
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.flow import reads, writes
from abele.port.analysis.kinds import Kind
from abele.port.analysis.models import may_evaluate, mode_matters
from abele.port.analysis.order import Order
from abele.port.analysis.parts import Statement, StepError, calls_of, receiver
from abele.port.analysis.steps import Step
from abele.port.analysis.things import Home, NoRouteError
from abele.port.analysis.updates import NO_STEP
from abele.port.context import Context, Wrapped
from abele.port.edits import parsed, renamed
from abele.port.finding import Verdict
from abele.port.rules import places
from abele.port.source import findall

CODES = {
    "ABP301": "The training model is made after its optimizer; loss and update are one program.",
    "ABP302": "The call of the training model does what zero_grad(), backward() and step() did.",
    "ABP303": "The statements from the model to the loss become the forward pass of a new module.",
    "ABP304": "A function takes a wrapped model as one more argument, and its callers pass it.",
    "ABP312": "A state is passed from batch to batch; its shape must not change.",
    "ABP314": "A number that changes is passed to the compiled program as a tensor of float32.",
    "ABP313": "The model may be in training or in evaluation mode where it is trained.",
    "ABP315": "One program at a time can have weights that are trained.",
    "ABP316": "Gradients of several batches are added up in one call, which gets all batches.",
    "ABP398": "The training model cannot be reached where the step is.",
    "ABP399": "The training step cannot become one compiled program.",
    "ABP616": "An optimizer of a program updates nothing by itself.",
}

_ALONE = (
    "this updates with gradients that the program has already applied, or keeps: the call of "
    "{name} makes the update; take this one out, or call backward() and step() in one block"
)

_SHARED = (
    "a model of this step is in that of {name} too, and one program at a time can have weights "
    "that are trained: train both losses in one step, or call {name}.destroy() before this step"
)
_ONE_CALL = (
    "one call of {name} after this loop gets all of its batches: the loop draws its random numbers "
    "before the model draws any"
)
_AGAIN = (
    "the optimizer is made in each turn of a loop for a model that is made before it, and one "
    "program at a time can have weights that are trained: make the model in the loop, too, or "
    "call destroy() of the training model at the end of each turn"
)


def apply(context: Context) -> None:
    """Rewrite every training step of a program as a call of a training model."""
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
    """Report further ``step`` calls of ported optimizers, which would have no effect."""
    order = Order(context.things)
    gone = {each.update for each in context.steps}
    for source in context.project.sources:
        for call in calls_of(source.module, "step"):
            things = context.things.of(source, receiver(call), Kind.OPTIMIZER)
            if not things & context.training.keys() or gone & {*source.above(call)}:
                continue
            for step in context.steps:
                made = step.gradients.optimizers
                if things & {*made} and order.follows((step.source, step.backward), (source, call)):
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
    _say_carried(context, step)
    _say_modes(context, step)
    _say_numbers(context, step)
    model = _wrap(context, step)
    name = context.routes.name(model, step.source, step.place)
    _put_call(context, step, name)
    _take_out(context, step)


def _take_out(context: Context, step: Step) -> None:
    """Remove the statements of a training step that compute and apply gradients."""
    for removed in step.gradients.removed:
        context.edits(step.source).remove(removed.statement)
        context.say(step.source, removed.statement, removed.code, Verdict.MODIFIED, removed.reason)
    for statement in (*step.zero, step.backward, step.update):
        if statement is not step.place:
            context.edits(step.source).remove(statement)
            reason = "the call of the training model does this"
            context.say(step.source, statement, "ABP302", Verdict.MODIFIED, reason)


def _say_carried(context: Context, step: Step) -> None:
    """Report variables that are passed from one training step to the next."""
    for statement in step.forward:
        carried = [name for name in writes(statement) if name in step.carried]
        if carried and statement in step.block:
            reason = (
                f"{', '.join(carried)} is passed to each call and returned by it: its shape "
                "must not change"
            )
            context.say(step.source, statement, "ABP312", Verdict.MANUAL, reason)


def _say_numbers(context: Context, step: Step) -> None:
    """Report numbers that become tensors, which rounds them to float32."""
    if step.slow:
        reason = (
            f"{', '.join(step.slow)} changes, and is passed to the compiled program as a tensor: "
            "what is computed from it there is rounded to float32, where Python has float64"
        )
        context.say(step.source, step.place, "ABP314", Verdict.MODIFIED, reason)


def _say_modes(context: Context, step: Step) -> None:
    """Report a training step whose model may be in training or in evaluation mode."""
    for thing in step.models:
        if mode_matters(context.project, thing) and may_evaluate(
            context.project, context.things, thing, step.source, step.place
        ):
            reason = (
                "the model may be in training or in evaluation mode here, and a compiled "
                "program keeps the mode of its first call: call train() before"
            )
            context.say(step.source, step.backward, "ABP313", Verdict.MANUAL, reason)
            return


def _wrap(context: Context, step: Step) -> Wrapped:
    """Construct the training model after the optimizer; return its variable."""
    given, text = _wrapper_of(context, step)
    home = places.home(context, step)
    _say_shared(context, step, home)
    source, kept = home.source, home.variable
    prefix = "self." if kept.name.startswith("self.") else ""
    count = len(set(context.training.values()))
    number = str(count + 1) if count else ""
    name = prefix + context.name(source, f"training_model{number and '_'}{number}")
    cls = context.name(step.source, f"ModelWithLoss{number}")
    values = [places.value(context, step.source, node, home) for node in given.values()]
    parts = ", ".join(values)
    edits = context.edits(step.source)
    edits.define(text.replace("{name}", cls, 1))
    if not step.source.imported_as("torch"):
        edits.need("import torch")
    edits.need("import poptorch")
    if source is not step.source:
        module = step.source.name.removesuffix(".py").replace("/", ".")
        context.edits(source).need(f"from {module} import {cls}")
    options, lines = _options(context, step, home)
    context.edits(source).after(
        places.after_all(context, step, home, places.needed(f"[{parts}]\n{lines}")),
        f"{lines}{name} = poptorch.trainingModel(\n"
        f"    {cls}({parts}), options={options}, optimizer={kept.name}\n)",
    )
    reason = f"{name} is made here: the model, its loss and this optimizer as one program"
    context.say(source, home.statement, "ABP301", Verdict.MODIFIED, reason)
    model = Wrapped(name, source, kept.owner)
    context.training |= dict.fromkeys(step.gradients.optimizers, model)
    return model


def _options(context: Context, step: Step, home: Home) -> tuple[str, str]:
    """Return the name of a training model's options, and lines that define it; empty if none do."""
    if step.repeated is None:
        return context.options(home.source), ""
    if context.distributed:
        raise StepError(step.backward, NO_STEP)
    (count,) = cst.ensure_type(step.repeated.iter, cst.Call).args
    name = context.name(home.source, "training_opts")
    parts = places.value(context, step.source, count.value, home)
    return name, (
        f"{name} = poptorch.Options()\n{name}.Training.gradientAccumulation({parts})\n"
        f"{name}.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)\n"
        f"{name}.outputMode(poptorch.OutputMode.All)\n"
    )


def _say_shared(context: Context, step: Step, home: Home) -> None:
    """Report a training step whose model already belongs to another training model."""
    order = Order(context.things)
    for loop in home.source.between(home.statement, home.variable.owner):
        sites = [order.sites(thing.source, thing.made) for thing in step.models]
        inside = all(any(loop in at.above(node) for at, node in some) for some in sites)
        if isinstance(loop, cst.For | cst.While) and not inside:
            context.say(step.source, step.update, "ABP315", Verdict.MANUAL, _AGAIN)
            return
    for other in context.steps:
        wrapped = context.training.get(other.optimizer)
        if wrapped is not None and step.models.keys() & other.models.keys():
            reason = _SHARED.format(name=wrapped.name)
            context.say(step.source, step.backward, "ABP315", Verdict.MANUAL, reason)
            return


def _put_call(context: Context, step: Step, name: str) -> None:
    """Replace the statements that compute the loss by one call of the training model."""
    edits = context.edits(step.source)
    if step.repeated is not None:
        _put_call_after(context, step, step.repeated, name)
        return
    results = ", ".join((*step.outputs, step.loss))
    (first,) = parsed(f"{results} = {name}({step.arguments})")
    later = _later(step)
    # What stood between comes after the call: what it reads is there then.
    moved = [edits.applied(statement) for statement in later]

    def change(node: Any) -> Any:
        call = first.with_changes(leading_lines=node.leading_lines)
        return cst.FlattenSentinel([call, *moved])

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


def _put_call_after(context: Context, step: Step, loop: cst.For, name: str) -> None:
    """Collect the batches of a loop that adds up gradients, and call the training model after it.

    The call returns the losses of all batches.
    """
    edits, batches = context.edits(step.source), context.name(step.source, "micro_batches")
    (empty,) = parsed(f"{batches} = []")
    comma = "," if len(step.inputs) == 1 else ""
    (collect,) = parsed(f"{batches}.append(({step.arguments}{comma}))")
    later = _losses_read(step, loop)
    moved = "".join(cst.Module([edits.applied(each)]).code for each in later) or "pass\n"
    for statement in (*step.forward, *later):
        if statement is not step.place:
            edits.remove(statement)
    edits.change(step.place, lambda node: collect.with_changes(leading_lines=node.leading_lines))
    call = f"for {step.loss} in {name}(*map(torch.cat, zip(*{batches}))):\n"
    edits.need("import torch")
    edits.change(loop, lambda node: cst.FlattenSentinel([
        empty.with_changes(leading_lines=node.leading_lines), node.with_changes(leading_lines=[])
    ]))  # fmt: skip
    edits.after(loop, call + textwrap.indent(moved, "    "))
    for statement in (*step.forward, step.place, loop, *later):
        if statement in (*step.block, loop):
            reason = _ONE_CALL.format(name=name)
            context.say(step.source, statement, "ABP316", Verdict.MODIFIED, reason)


def _losses_read(step: Step, loop: cst.For) -> Sequence[Statement]:
    """Return the statements of a loop that read its losses, directly or through others.

    Raises:
        StepError: they read something else that the loop gives a value in each turn.
    """
    own, later = {step.loss}, list[Statement]()
    for each in step.block[step.block.index(step.place) + 1 :]:
        if each is not step.backward and own & {*reads(each)}:
            own |= {*writes(each)}
            later.append(each)
    if ({*writes(loop)} - own) & {name for each in later for name in reads(each)}:
        raise StepError(step.backward, NO_STEP)
    return later


def _later(step: Step) -> Sequence[Statement]:
    """Return the statements between forward statements that read their results."""
    real = [each for each in step.forward if each in step.block]
    first = step.block.index(real[0]) if real else 0
    end = step.block.index(step.place)
    written = {name for statement in step.forward for name in writes(statement)}
    return [
        statement
        for statement in step.block[first:end]
        if statement not in step.forward and written & set(reads(statement))
    ]


# -- the module that computes a model together with its loss ---------------------------------------

_TOGETHER = "Computes the loss together with the model: a program contains both."


def _wrapper_of(context: Context, step: Step) -> tuple[dict[str, cst.BaseExpression], str]:
    """Return the constructor arguments of a step's loss module, and its source text.

    The text contains ``{name}`` for the module's name; models are the first arguments.

    Raises:
        StepError: the loss needs variables that are unknown where the model is wrapped.
    """
    parts = _parts(context, step)
    body = [_line(context, step, statement, parts) for statement in step.forward]
    loss = f'poptorch.identity_loss({step.loss}, reduction="none")'
    init = "".join(f"        self.{name} = {name}\n" for name in parts)
    returned = ", ".join((*step.outputs, loss))
    text = (
        "class {name}(torch.nn.Module):\n"
        f'    """{_TOGETHER}"""\n\n'
        f"    def __init__(self, {', '.join(parts)}):\n"
        f"        super().__init__()\n{init}\n"
        f"    def forward({', '.join(('self', *step.inputs))}):\n"
        f"{textwrap.indent(''.join(body), ' ' * 8)}"
        f"        return {returned}\n"
    )
    return parts, text


def _parts(context: Context, step: Step) -> dict[str, cst.BaseExpression]:
    """Return the models and constants that become attributes of a step's loss module."""
    # A name may stand for several models, of which a branch has chosen one.
    nodes = {step.source.code(node): node for node in step.models.values()}
    parts = {_attribute(node): node for node in nodes.values()}
    if len(parts) < len(nodes):
        reason = "two models of this step are attributes of the same name: rename one of them"
        raise StepError([*nodes.values()][-1], reason)
    for node in _constants(context, step):
        parts.setdefault(_attribute(node), node)
    return parts


def _constants(context: Context, step: Step) -> Sequence[cst.BaseExpression]:
    """Return the variables and attributes of ``self`` that the loss needs besides the batch."""
    needed: dict[str, cst.BaseExpression] = {}
    for node in _read_nodes(step):
        code = step.source.code(node)
        things = context.things.of(step.source, node)
        if any(each.kind is Kind.MODEL for each in things) or code in needed:
            continue
        if isinstance(node, cst.Name):
            variable = context.things.variable(step.source, node)
            everywhere = variable is not None and variable.owner is step.source.module
            if everywhere or hasattr(builtins, node.value):
                continue
        needed[code] = node
    return list(needed.values())


def _read_nodes(step: Step) -> Iterator[cst.BaseExpression]:
    """Yield the syntax nodes at which a training step reads constants or attributes of ``self``.

    Raises:
        StepError: a statement uses ``self`` other than by its attributes.
    """
    own = m.Attribute(value=m.Name("self"))
    for node in (each for piece in step.forward for each in findall(piece, m.Name() | own)):
        around: Any = step.source.parent(node)
        is_part = isinstance(around, cst.Attribute) and around.attr is node
        if is_part or (isinstance(around, cst.Arg) and around.keyword is node):
            continue
        if m.matches(node, m.Name("self")) and not m.matches(around, own):
            raise StepError(node, _WHOLE)
        if m.matches(node, own) or (node.value in step.constants and node.value != "self"):
            yield node


_WHOLE = (
    "the loss uses self as a whole: use attributes of self there, which become arguments of the "
    "module around the model"
)


def _attribute(node: cst.BaseExpression) -> str:
    name = node.attr.value if isinstance(node, cst.Attribute) else getattr(node, "value", "")
    assert isinstance(name, str)
    return name


def _line(
    context: Context, step: Step, statement: Statement, parts: Mapping[str, cst.BaseExpression]
) -> str:
    """Return the source text of a step's statement inside the loss module."""
    node: Any = context.edits(step.source).applied(statement)
    names = [name for name, node in parts.items() if isinstance(node, cst.Name)]
    node = renamed(node, {name: f"self.{name}" for name in names})
    node = node.with_changes(leading_lines=[])
    return cst.Module([node]).code
