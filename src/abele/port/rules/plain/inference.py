"""Inference models: the model itself, without gradients."""

from __future__ import annotations

from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.assumed import callers
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import StepError, statement_of
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.rules.plain import modes
from abele.port.rules.plain.gradients import is_without
from abele.port.rules.plain.latest import latest
from abele.port.rules.plain.settings import batches_of
from abele.port.rules.plain.trainers import bases, take_place
from abele.port.rules.plain.updates import trained
from abele.port.source import Source

CODES = {
    "ABP1201": "An inference model is the model itself.",
    "ABP1202": "The model is called without gradients, as the program computed.",
    "ABP1203": "The call stands where no gradients can be switched off around it.",
    "ABP1204": "A function is given inference models and others: its caller has to evaluate.",
    "ABP1208": "A call takes several batches; results without rows are now one value for all.",
    "ABP1209": "The program returned some of its results.",
}

_REASON = "the model itself, with its one set of weights"


def apply(context: Context) -> None:
    """Call models in the place of inference models."""
    for thing in context.things.all(Kind.INFERENCE):
        made = thing.made
        assert isinstance(made, cst.Call)
        _say_batches(context, thing, made)
        take_place(context, thing.source, made, "ABP1201", _REASON)
    for source in context.project.sources:
        for call in findall(source.module, m.Call()):
            assert isinstance(call, cst.Call)
            things = latest(context, source, call.func, context.things.of(source, call.func))
            kinds = {each.kind for each in things}
            if Kind.INFERENCE not in kinds or trained(context, source, call):
                continue
            if len(kinds) > 1 and isinstance(call.func, cst.Name):
                _look_at_callers(context, source, call)
            else:
                _call(context, source, call)


def _say_batches(context: Context, thing: Thing, made: cst.Call) -> None:
    """Several batches in one call are one larger batch, whose scalars are one value."""
    try:
        batches = batches_of(context, thing.source, made, 1, training=False)
    except StepError as error:
        context.refuse(thing.source, error, "ABP1209")
        return
    if batches.mode not in ("", "All", "Default") and not batches.one:
        reason = (
            f"output mode {batches.mode} returns some results of a call, and the plain model "
            "returns all: select them by hand, or use OutputMode.All"
        )
        context.say(thing.source, made, "ABP1209", Verdict.BLOCKED, reason)
    elif not batches.one:
        reason = (
            f"a call takes {' x '.join(batches.factors)} batches at once; a result without rows, "
            "such as a loss, is now one value for all, where the program returned one for each"
        )
        context.say(thing.source, made, "ABP1208", Verdict.MANUAL, reason)


def _call(context: Context, source: Source, call: cst.Call) -> None:
    func, follows = call.func, False
    if isinstance(func, cst.IfExp) and context.things.of(source, func.body, Kind.INFERENCE):
        context.edits(source).change(func, lambda node: node.body)
        follows = ".training" in source.code(func.test)  # it was called in the mode of the model
    statement = statement_of(source, call)
    if not follows:
        modes.set_before(context, source, call, statement, "eval")
    if is_without(source, call) or statement in context.once:
        context.say(source, call, "ABP1202", Verdict.MODIFIED, "the model itself is called")
    elif isinstance(statement, cst.SimpleStatementLine):
        context.once.add(statement)
        context.edits(source).need("import torch")
        context.edits(source).change(statement, _without_gradients)
        reason = "a program for inference computes no gradients"
        context.say(source, statement, "ABP1202", Verdict.MODIFIED, reason)
    else:
        reason = (
            "the results have gradients here: compute them in a statement of their own, under "
            "torch.no_grad()"
        )
        context.say(source, call, "ABP1203", Verdict.MANUAL, reason)


def _look_at_callers(context: Context, source: Source, call: cst.Call) -> None:
    """Says whether the model is evaluated where a function that training calls, too, gets it.

    Gradients cannot be switched off inside of such a function.
    """
    for caller, where in callers(context.things, source, call).items():
        passed = [
            each for each in caller.args if context.things.of(where, each.value, Kind.INFERENCE)
        ]
        if not passed:
            continue
        models = set[Thing]().union(*(bases(context, where, each.value) for each in passed))
        if is_without(where, caller) and modes.is_evaluated(context, where, caller, models):
            context.say(where, caller, "ABP1202", Verdict.MODIFIED, "the model itself is called")
            continue
        reason = (
            f"{where.code(caller.func)} also gets the model that trains, so that it computes "
            "gradients: call it under torch.no_grad() here, after eval() of the model"
        )
        context.say(where, caller, "ABP1204", Verdict.MANUAL, reason)


def _without_gradients(statement: Any) -> Any:
    """A statement under ``with torch.no_grad()``."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return statement
    (around,) = cst.parse_module("with torch.no_grad():\n    pass\n").body
    inner = cst.ensure_type(around, cst.With).body
    return around.with_changes(
        leading_lines=statement.leading_lines,
        body=inner.with_changes(body=[statement.with_changes(leading_lines=[])]),
    )
