"""Batches at the end of an epoch that are too few for an update, and how many a loader has."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.one_value import Path
from abele.port.analysis.order import Order
from abele.port.analysis.parts import block_of, calls_of, is_call
from abele.port.analysis.rows import Epoch, epoch_of
from abele.port.analysis.search import findall
from abele.port.analysis.steps import Step
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.rules import accumulated
from abele.port.source import Source

_REASON = (
    "one call takes as many batches as are added up, makes one update, and returns the loss of each"
)
_NONE = "; {rows} rows are {updates} updates of {every} batches, and nothing is left over"
_OUT = (
    "; batches that are left over at the end of an epoch, or of which the last is shorter, are "
    "left out"
)
_FORGOTTEN = "; gradients of those left over are forgotten before the next epoch here, too"
_KEPT = (
    "{left} left over at the end of an epoch, whose gradients go into the first update of the next "
    "here, and which the program leaves out. If that is not meant, call zero_grad() before the "
    "loop through the batches; else choose rows of a batch so that an epoch is a whole number of "
    "updates"
)
_ALSO_LAST = (
    "{left} left over at the end of an epoch, and the update with them is not made: the program "
    "takes the mean of {every} batches, and these are fewer. Choose rows of a batch so that an "
    "epoch is a whole number of updates, or leave them out here, too: update where "
    "(i + 1) % {every} == 0 alone, and call zero_grad() before the loop through the batches"
)
_LENGTH = "the loader of the program gives {every} batches at once, and counts these calls"
_LENGTH_OF_WHAT = (
    "this may count calls of {every} batches each, or batches, as the loader is; give that one a "
    "name of its own"
)


def say(context: Context, step: Step, loader: Thing, number: int | Path) -> None:
    """Say what becomes of batches at the end of an epoch that are too few for an update.

    Args:
        context: the program.
        step: that adds up gradients.
        loader: of its batches.
        number: how many are added up, or where that is read from.
    """
    gradients = step.gradients
    assert gradients.every is not None
    epoch = epoch_of(context.project, context.things, loader)
    every = step.source.code(gradients.every) if isinstance(number, Path) else number
    if gradients.after is not None:
        context.edits(step.source).remove(gradients.after)
    if epoch is not None and isinstance(every, int) and not epoch.left_over(every):
        whole = _NONE.format(rows=epoch.rows, updates=epoch.batches // every, every=every)
        context.say(step.source, step.backward, "ABP311", Verdict.MODIFIED, _REASON + whole)
        return
    left = _how_many(epoch, every)
    forgotten = _is_forgotten(step)
    also = gradients.after or (step.update if gradients.also_last else None)
    if also is not None:
        text = _ALSO_LAST.format(left=left, every=every)
        context.say(step.source, also, "ABP311", Verdict.MANUAL, text)
    elif not forgotten and _is_repeated(context, step):
        context.say(step.source, step.update, "ABP311", Verdict.MANUAL, _KEPT.format(left=left))
    end = _FORGOTTEN if forgotten and also is None else ""
    context.say(step.source, step.backward, "ABP311", Verdict.MODIFIED, _REASON + _OUT + end)


def _how_many(epoch: Epoch | None, every: int | str) -> str:
    """The batches that are left over, as the beginning of a sentence."""
    if epoch is None or isinstance(every, str):
        return f"where {every} does not divide the number of whole batches, some are"
    left = epoch.left_over(every)
    rows = f"{epoch.rows} rows are {epoch.batches} batches of {epoch.batch}"
    return f"{rows}, of which {left} {'is' if left == 1 else 'are'}"


def _is_forgotten(step: Step) -> bool:
    """Whether gradients are forgotten before the loop through the batches, or behind it."""
    assert step.loop is not None
    block = block_of(step.source, step.loop)
    own = {each for each in block if is_call(each) and calls_of(each, "zero_grad")}
    return bool(own)


def _is_repeated(context: Context, step: Step) -> bool:
    """Whether the loop of a step may run again, also where its function is called."""
    assert step.loop is not None
    order = Order(context.things)
    return order.between(
        (step.source, step.backward), (step.source, step.loop), step.gradients.optimizers
    ) or any(
        source.enclosing(node, cst.For, cst.While) is not None
        for source, node in order.sites(step.source, step.loop)
    )


def count_batches(context: Context, step: Step, loader: Thing, number: int | Path) -> None:
    """Have ``len(loader)`` count batches, as it did.

    Args:
        context: the program.
        step: that adds up gradients.
        loader: of its batches, which gives as many at once as are added up.
        number: how many these are, or where that is read from.

    Raises:
        StepError: the number is needed where it has no name.
    """
    for source in context.project.sources:
        for call in findall(source.module, m.Call(func=m.Name("len"), args=[m.Arg()])):
            loaders = context.things.of(source, call.args[0].value, Kind.LOADER)
            if loader not in loaders or _is_gone(step, source, call):
                continue
            every = str(number)
            if isinstance(number, Path):
                every = accumulated.text_at(context, number, source, call)
            if len(loaders) > 1:
                reason = _LENGTH_OF_WHAT.format(every=every)
                context.say(source, call, "ABP311", Verdict.MANUAL, reason)
                continue
            alone = isinstance(source.parent(call), cst.Arg | cst.Assign | cst.Return)
            context.edits(source).change(
                call,
                lambda node, alone=alone, every=every: cst.BinaryOperation(
                    node,
                    cst.Multiply(),
                    cst.parse_expression(every),
                    lpar=[] if alone else [cst.LeftParen()],
                    rpar=[] if alone else [cst.RightParen()],
                ),
            )
            reason = _LENGTH.format(every=every)
            context.say(source, call, "ABP311", Verdict.MODIFIED, reason)


def _is_gone(step: Step, source: Source, call: cst.Call) -> bool:
    """Whether a call stands in what the program does without, or around the loop's own batches."""
    assert isinstance(step.loop, cst.For)
    gone: set[cst.CSTNode] = {step.loop.iter, *(each.statement for each in step.gradients.removed)}
    if step.gradients.after is not None:
        gone.add(step.gradients.after)
    if isinstance(step.update, cst.If):
        gone.add(step.update.test)
    return source is step.source and bool(gone & {*source.above(call)})
