"""Data loaders: PopTorch's knows the batches that a program takes in one call."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis import batches
from abele.port.analysis.kinds import Kind, Thing
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.rules import accumulation

CODES = {
    "ABP201": (
        "The loader is PopTorch's, which takes the same arguments after the options. In "
        "training it leaves out a last, shorter batch of an epoch, because a program has one "
        "shape."
    ),
    "ABP202": (
        "The loader of an evaluation stays, so that no row is left out: its last batch may be "
        "shorter."
    ),
}

_TRAINING = (
    "poptorch.DataLoader takes the same arguments; it leaves out a last, shorter batch, "
    "because a program has one shape"
)
_EVALUATION = "poptorch.DataLoader takes the same arguments, and all batches have one size"
_SHORT = "no row is left out of an evaluation: torch's loader gives a last, shorter batch, too"
_HOST_MEMORY = ("pin_memory", "pin_memory_device")


def apply(context: Context) -> None:
    """Take data loaders from PopTorch."""
    trained = context.trained_loaders()
    for thing in context.things.all(Kind.LOADER):
        if thing.name.startswith("torch.") and isinstance(thing.made, cst.Call):
            if thing in trained | context.sampled or not batches.may_be_short(thing):
                _replace(context, thing, thing.made, training=thing in trained)
            else:
                context.say(thing.source, thing.made, "ABP202", Verdict.MATCH, _SHORT)


def _replace(context: Context, thing: Thing, call: cst.Call, training: bool) -> None:
    edits = context.edits(thing.source)
    options = accumulation.options(context, thing) or context.options(thing.source)
    edits.replace(call.func, "poptorch.DataLoader")

    def change(node: cst.Call) -> cst.Call:
        kept = [each for each in node.args if not _has_no_effect(each, training)]
        first = cst.Arg(cst.parse_expression(options), comma=_comma(node))
        return node.with_changes(args=[first, *kept])

    edits.change(call, change)
    reason = _TRAINING if training else _EVALUATION
    context.say(thing.source, call, "ABP201", Verdict.MODIFIED, reason)


def _comma(call: cst.Call) -> cst.Comma:
    """A comma, and a new line where the call has one for each argument."""
    if len(call.args) > 1 and isinstance(call.args[0].comma, cst.Comma):
        comma = call.args[0].comma
        if isinstance(comma.whitespace_after, cst.ParenthesizedWhitespace):
            return comma
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def _has_no_effect(argument: cst.Arg, training: bool) -> bool:
    """Whether a program's loader has no use for an argument."""
    if argument.keyword is None:
        return False
    if argument.keyword.value == "drop_last":
        return training and m.matches(argument.value, m.Name("False"))
    return argument.keyword.value in _HOST_MEMORY
