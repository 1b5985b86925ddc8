"""Weights: they are on the device, and are fetched before the host uses them."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind
from abele.port.analysis.parts import Loop, statement_of
from abele.port.analysis.search import findall
from abele.port.analysis.steps import Step
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.routes import NoRouteError
from abele.port.source import Source

CODES = {
    "ABP2501": "Weights are fetched from the device where the host may use them next.",
    "ABP2502": "The model is evaluated on the host, with the weights that were fetched.",
    "ABP2504": "A whole model is pickled. Its state_dict() is what a checkpoint should have.",
    "ABP2503": "Weights that are loaded after the first run have to be sent to the device.",
}

_LOADS = frozenset(("load_state_dict", "copy_"))


def apply(context: Context) -> None:
    """Fetch weights after training, and name what uses them."""
    for step in context.steps:
        if any(each in context.training for each in step.gradients.optimizers):
            _fetch(context, step)
            _say_uses(context, step)


def _fetch(context: Context, step: Step) -> None:
    source = step.source
    model = context.training[step.optimizer]
    loop = step.loop
    outside = loop is not None and not _used_inside(context, step, loop)
    node: cst.CSTNode = loop if outside and loop is not None else step.place
    try:
        name = context.routes.name(model, source, step.backward)
        more = ""
        if _is_saved(context, step):
            more = f", {context.routes.name_of(step.optimizer, source, step.backward)}"
    except NoRouteError as error:
        reason = f"the model cannot be reached here, so its weights cannot be fetched: {error}"
        context.say(source, step.backward, "ABP2501", Verdict.BLOCKED, reason)
        return
    context.edits(source).after(node, f"samba.session.to_cpu({name}{more})")
    when = "after the loop" if outside else "after each run, because the loop may use them"
    reason = f"the weights are fetched from the device {when}"
    context.say(source, node, "ABP2501", Verdict.MODIFIED, reason)


def _used_inside(context: Context, step: Step, loop: Loop) -> bool:
    """Whether the statements of a loop beside the step may use the model, or leave the function."""
    of_step: set[cst.CSTNode] = {*step.forward, *step.zero, step.backward, step.update, step.place}
    for node in findall(loop.body, m.Return() | m.Name() | m.Attribute() | m.Call()):
        if of_step & {node, *step.source.above(node)}:
            continue
        if isinstance(node, cst.Return):
            return True
        assert isinstance(node, cst.Name | cst.Attribute | cst.Call)
        if context.things.of(step.source, node, Kind.MODEL):
            return True
        if isinstance(node, cst.Call) and context.things.function(step.source, node) is not None:
            return True
    return False


def _is_saved(context: Context, step: Step) -> bool:
    """Whether the state of the optimizer is read."""
    return any(
        context.things.of(source, call.func.value, Kind.OPTIMIZER) & {*step.gradients.optimizers}
        for source in context.project.sources
        for call in findall(source.module, m.Call(m.Attribute(attr=m.Name("state_dict"))))
        if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute)
    )


def _say_uses(context: Context, step: Step) -> None:
    inside: set[cst.CSTNode] = {*step.forward, step.backward, *step.helpers}
    for source in context.project.sources:
        for call in findall(source.module, m.Call()):
            assert isinstance(call, cst.Call)
            if inside & {*source.above(call)}:
                continue
            if context.things.of(source, call.func, Kind.MODEL) & {*step.models}:
                cls = source.enclosing(call, cst.ClassDef)
                if cls is None or not context.project.is_module(cls):
                    reason = "the host computes it, with the weights of the device"
                    context.say(source, call, "ABP2502", Verdict.MATCH, reason)
            elif source.imported(call.func) in ("torch.save", "pickle.dump") and call.args:
                if context.things.of(source, call.args[0].value, Kind.MODEL) & {*step.models}:
                    reason = (
                        "a pickled model lacks the parameters on the device: save its state_dict()"
                    )
                    context.say(source, call, "ABP2504", Verdict.MANUAL, reason)
            elif isinstance(call.func, cst.Attribute) and call.func.attr.value in _LOADS:
                _say_loaded(context, step, source, call, call.func)


def _say_loaded(
    context: Context, step: Step, source: Source, call: cst.Call, func: cst.Attribute
) -> None:
    """Weights that are loaded before the first run are those that the program begins with."""
    things = context.things.of(source, func.value)
    if not things & {*step.models, *step.gradients.optimizers}:
        return
    statement = statement_of(source, call)
    around = source.enclosing(statement, cst.For, cst.While)
    first = around is None and _is_before(context, step, source, statement)
    verdict = Verdict.MATCH if first else Verdict.MANUAL
    reason = (
        "the program begins with these weights"
        if first
        else "if a batch has run before, call samba.session.to_device() after this"
    )
    context.say(source, call, "ABP2503", verdict, reason)


def _is_before(context: Context, step: Step, source: Source, statement: cst.CSTNode) -> bool:
    """Whether a statement comes before every call of the function that trains, or its loop."""
    owner = context.things.owner(source, statement)
    nodes: list[cst.CSTNode] = [step.backward] if source is step.source else []
    if isinstance(step.owner, cst.FunctionDef):
        nodes += [each for each, where in context.things.calls(step.owner).items()
                  if where is source]  # fmt: skip
    same = [each for each in nodes if context.things.owner(source, each) is owner]
    line = source.position(statement)
    return bool(same) and all(line < source.position(each) for each in same)
