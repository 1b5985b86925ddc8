"""Data loaders: a program has one shape, so training leaves out a last, shorter batch."""

from __future__ import annotations

from typing import Any

import libcst as cst

from abele.port.analysis import batches
from abele.port.analysis.kinds import Kind
from abele.port.context import Context
from abele.port.edits import keyword
from abele.port.finding import Verdict

CODES = {
    "ABP2201": "A last, shorter batch is left out in training, because a program has one shape.",
}

_REASON = "a program has one shape: a last, shorter batch of an epoch is left out"


def apply(context: Context) -> None:
    """Have loaders of training steps drop a last, shorter batch."""
    trained = context.trained_loaders()
    for thing in context.things.all(Kind.LOADER):
        if thing in trained and isinstance(thing.made, cst.Call) and batches.may_be_short(thing):
            context.edits(thing.source).change(thing.made, _dropping)
            context.say(thing.source, thing.made, "ABP2201", Verdict.MODIFIED, _REASON)


def _dropping(node: cst.Call) -> Any:
    """A loader with ``drop_last=True``."""
    tight, new = cst.SimpleWhitespace(""), keyword("drop_last", "True")
    kept = [each for each in node.args if not (each.keyword and each.keyword.value == "drop_last")]
    plain, stars = [each for each in kept if not each.star], [each for each in kept if each.star]
    last = node.args[-1]
    between = next((each.comma for each in kept if isinstance(each.comma, cst.Comma)), None)
    between = between or cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    *first, end = [*plain, new, *stars]
    end = end.with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
    spaced = [each.with_changes(comma=between, whitespace_after_arg=tight) for each in first]
    return node.with_changes(args=[*spaced, end])
