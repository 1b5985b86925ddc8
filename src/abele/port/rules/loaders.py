"""Data loaders: PopTorch's knows the batches that a program takes in one call."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis import batches
from abele.port.analysis.kinds import Kind, Thing
from abele.port.context import Context
from abele.port.finding import Verdict

_TRAINING = (
    "poptorch.DataLoader takes the same arguments; it leaves out a last, shorter batch, "
    "because a program has one shape"
)
_EVALUATION = "poptorch.DataLoader takes the same arguments; no row is left out of an evaluation"
_HOST_MEMORY = ("pin_memory", "pin_memory_device")


def apply(context: Context) -> None:
    """Take data loaders from PopTorch."""
    trained = {
        batches.loader_of(context.things, step.source, each)
        for step in context.steps
        for each in step.source.above(step.backward)
    }
    for thing in context.things.all(Kind.LOADER):
        if thing.name.startswith("torch.") and isinstance(thing.made, cst.Call):
            _replace(context, thing, thing.made, training=thing in trained)


def _replace(context: Context, thing: Thing, call: cst.Call, training: bool) -> None:
    edits = context.edits(thing.source)
    options = context.options(thing.source)
    edits.replace(call.func, "poptorch.DataLoader")
    short = batches.may_be_short(thing)

    def change(node: cst.Call) -> cst.Call:
        kept = [each for each in node.args if not _has_no_effect(each, training)]
        first = cst.Arg(cst.Name(options), comma=_comma(node))
        if short and not training and batches.argument(call, "drop_last") is None:
            kept = [*_separated(kept), _keyword("drop_last", "False")]
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


def _separated(arguments: list[cst.Arg]) -> list[cst.Arg]:
    """Arguments each of which has a comma of the same kind after it."""
    *rest, last = arguments
    comma = rest[-1].comma if rest else cst.MaybeSentinel.DEFAULT
    return [
        *rest,
        last if isinstance(last.comma, cst.Comma) and not rest else last.with_changes(comma=comma),
    ]


def _keyword(name: str, value: str) -> cst.Arg:
    tight = cst.SimpleWhitespace("")
    return cst.Arg(
        cst.parse_expression(value), keyword=cst.Name(name), equal=cst.AssignEqual(tight, tight)
    )


def _has_no_effect(argument: cst.Arg, training: bool) -> bool:
    """Whether a program's loader has no use for an argument."""
    if argument.keyword is None:
        return False
    if argument.keyword.value == "drop_last":
        return training and m.matches(argument.value, m.Name("False"))
    return argument.keyword.value in _HOST_MEMORY
