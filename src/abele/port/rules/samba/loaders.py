"""Data loaders: a program has one shape, so training leaves out a last, shorter batch."""

from __future__ import annotations

import libcst as cst

from abele.port.analysis.kinds import Kind
from abele.port.analysis.rows import leaves_rows_out
from abele.port.context import Context
from abele.port.edits import keyword
from abele.port.finding import Verdict
from abele.port.layout import laid_out
from abele.port.source import Source

CODES = {
    "ABP2201": "A last, shorter batch is left out in training, because a program has one shape.",
}

_REASON = "a program has one shape: a last, shorter batch of an epoch is left out"


def apply(context: Context) -> None:
    """Have loaders of training steps drop a last, shorter batch."""
    trained = context.trained_loaders()
    for thing in context.things.all(Kind.LOADER):
        if (
            thing in trained
            and isinstance(thing.made, cst.Call)
            and leaves_rows_out(context.project, context.things, thing)
        ):
            _drop(context, thing.source, thing.made)
            context.say(thing.source, thing.made, "ABP2201", Verdict.MODIFIED, _REASON)


def _drop(context: Context, source: Source, call: cst.Call) -> None:
    """Give a loader ``drop_last=True``."""

    def change(node: cst.Call) -> cst.Call:
        kept = [
            each for each in node.args if not (each.keyword and each.keyword.value == "drop_last")
        ]
        plain = [each for each in kept if not each.star]
        stars = [each for each in kept if each.star]
        return laid_out(source, call, node, [*plain, keyword("drop_last", "True"), *stars])

    context.edits(source).change(call, change)
