"""Automatic mixed precision: a program computes in the types that its tensors have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import is_autocast, is_autocast_call
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.edits import parsed
from abele.port.finding import Verdict
from abele.port.source import Source

CODES = {
    "ABP421": (
        "A program casts nothing by itself. What stood under autocast computes in float32, which "
        "is never less precise."
    ),
    "ABP422": "A program in float32 scales no gradients; the scaler is taken out.",
}

_CAST = (
    "nothing is cast by itself in a program: this computes in float32, which is never less "
    "precise; for half, write model.half()"
)
_SCALER = "gradients in float32 need no scale; an optimizer's loss_scaling is there for half"


def apply(context: Context) -> None:
    """Take autocast out, and scalers that nothing uses any longer."""
    for source in context.project.sources:
        for node in findall(source.module, m.With()):
            assert isinstance(node, cst.With)
            _without_autocast(context, source, node)
        for node in findall(source.module, m.Decorator()):
            assert isinstance(node, cst.Decorator)
            if isinstance(node.decorator, cst.Call) and is_autocast_call(source, node.decorator):
                context.say(source, node, "ABP421", Verdict.MODIFIED, _CAST)
                context.edits(source).remove(node)
    for scaler in context.things.all(Kind.SCALER):
        _without_scaler(context, scaler)


def _without_autocast(context: Context, source: Source, node: cst.With) -> None:
    casts = [
        each
        for each in node.items
        if isinstance(each.item, cst.Call) and is_autocast_call(source, each.item)
    ]
    if not casts:
        return
    context.say(source, node, "ABP421", Verdict.MODIFIED, _CAST)
    if is_autocast(source, node):
        context.edits(source).change(node, _opened)
        return
    for index, item in enumerate(node.items):
        if item in casts:
            context.edits(source).remove(item)
        elif all(each in casts for each in node.items[index + 1 :]):
            context.edits(source).change(
                item, lambda each: each.with_changes(comma=cst.MaybeSentinel.DEFAULT)
            )


def _opened(node: cst.With) -> Any:
    """The statements of a block without it."""
    body = list(node.body.body)
    if len(body) == 1 and body[0].deep_equals(parsed("pass")[0]):
        return cst.RemoveFromParent()
    first: Any = body[0]
    lines = [*node.leading_lines, *first.leading_lines]
    return cst.FlattenSentinel([first.with_changes(leading_lines=lines), *body[1:]])


def _without_scaler(context: Context, scaler: Thing) -> None:
    """Take the statement out that makes a scaler, where all its uses are in training steps."""
    source = scaler.source
    context.say(source, scaler.made, "ABP422", Verdict.MODIFIED, _SCALER)
    statement = source.enclosing(scaler.made, cst.SimpleStatementLine)
    if statement is None or not m.matches(statement, m.SimpleStatementLine(body=[m.Assign()])):
        return
    gone = {statement, *_gone(context)}
    for other in context.project.sources:
        for node in findall(other.module, m.Name() | m.Attribute(value=m.Name("self"))):
            assert isinstance(node, cst.Name | cst.Attribute)
            if scaler in context.things.of(other, node) and not gone & set(other.above(node)):
                return
    context.edits(source).remove(statement)


def _gone(context: Context) -> Iterator[cst.CSTNode]:
    """Statements that are taken out with training steps."""
    for step in context.steps:
        if step.optimizer in context.training:
            yield from (step.backward, step.update, *step.forward)
            yield from (each.statement for each in step.gradients.removed)
