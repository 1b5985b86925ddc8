"""Replaces data loaders by PopTorch's, which combine the batches that one call consumes."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis import batches
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.steps import Step
from abele.port.context import Context
from abele.port.edits import is_named, laid_out
from abele.port.finding import Verdict

CODES = {
    "ABP201": ("The loader is PopTorch's, which takes the same arguments after the options."),
    "ABP202": "The loader of an evaluation stays, so that no row is left out.",
    "ABP204": "Batches cut by hand: the loop ends before a last, shorter one.",
    "ABP205": "Batches that come from elsewhere have to have one size.",
    "ABP207": (
        "Training leaves out a last, shorter batch of an epoch, because a program has one shape. "
        "Averages over all rows, evaluations and plans that use this loader change with it."
    ),
}

_SAME = "poptorch.DataLoader takes the same arguments"
_SHORTENED = (
    "a last, shorter batch is left out, because a program has one shape: averages over "
    "len(loader.dataset) count rows that are missing, and plans by len(loader) end earlier, unless "
    "batch_size divides the number of rows; an evaluation of all rows needs a loader of its own"
)
_SHORT = "no row is left out of an evaluation: torch's loader gives a last, shorter batch, too"
_BY_HAND = "the loop ends before a last, shorter batch, because a program has one shape"
_ELSEWHERE = (
    "where these batches come from is not known: each has to have as many rows as the first, so "
    "leave a last, shorter one out"
)
_HOST_MEMORY = ("pin_memory", "pin_memory_device")


def apply(context: Context) -> None:
    """Replace torch's data loaders by ``poptorch.DataLoader``."""
    trained = context.trained_loaders()
    for thing in context.things.all(Kind.LOADER):
        if thing.name.startswith("torch.") and isinstance(thing.made, cst.Call):
            if thing in trained | context.sampled or not batches.may_be_short(thing):
                _replace(context, thing, thing.made, training=thing in trained)
            else:
                context.say(thing.source, thing.made, "ABP202", Verdict.MATCH, _SHORT)
    for step in context.steps:
        around = batches.loaders_around(context.things, step.source, step.backward)
        if not any(True for _ in around) and isinstance(step.loop, cst.For):
            _check_by_hand(context, step, step.loop)


#: Calls of range that say where batches are cut out of tensors.
_PLAIN = m.Name() | m.Attribute() | m.Integer()
_CUT = m.Call(func=m.Name("range"), args=[m.Arg(), m.Arg(_PLAIN | m.Call()), m.Arg(_PLAIN)])


def _check_by_hand(context: Context, step: Step, loop: cst.For) -> None:
    """Change a loop that slices batches out of tensors to skip a shorter last batch."""
    place = loop.iter
    if m.matches(place, m.Call(func=m.Name("enumerate"))):
        place = cst.ensure_type(place, cst.Call).args[0].value
    call = cst.ensure_type(place, cst.Call) if m.matches(place, _CUT) else None
    if call is not None and not _is_even(call):
        stop, by = (step.source.code(each.value) for each in call.args[1:])
        new = cst.parse_expression(f"{stop} - {by} + 1")
        context.edits(step.source).change(call.args[1].value, lambda _: new)
        context.say(step.source, loop, "ABP204", Verdict.MODIFIED, _BY_HAND)
    elif call is None and not m.matches(place, m.Call(func=m.Name("range"))):
        context.say(step.source, loop, "ABP205", Verdict.MATCH, _ELSEWHERE)


def _is_even(call: cst.Call) -> bool:
    """Return whether a ``range`` of integer literals divides into full batches."""
    numbers = [
        each.value.evaluated_value for each in call.args if isinstance(each.value, cst.Integer)
    ]
    if len(numbers) < len(call.args):
        return False
    start, stop, by = numbers
    return by > 0 and (stop - start) % by == 0


def _replace(context: Context, thing: Thing, call: cst.Call, training: bool) -> None:
    edits = context.edits(thing.source)
    options = context.options(thing.source)
    edits.replace(call.func, "poptorch.DataLoader")

    def change(node: cst.Call) -> cst.Call:
        kept = [each for each in node.args if not _has_no_effect(each, training)]
        first = cst.Arg(cst.parse_expression(options))
        return laid_out(node, [first, *kept])

    edits.change(call, change)
    context.say(thing.source, call, "ABP201", Verdict.MODIFIED, _SAME)
    left, every = batches.left_out(context.things, thing) or (None, 0)
    if training and batches.may_be_short(thing) and left != 0:
        counted = f"{left} of {every:,} rows of every epoch: " if left else ""
        context.say(thing.source, call, "ABP207", Verdict.MODIFIED, counted + _SHORTENED)


def _has_no_effect(argument: cst.Arg, training: bool) -> bool:
    """Return whether ``poptorch.DataLoader`` ignores an argument."""
    if is_named(argument, "drop_last"):
        return training and m.matches(argument.value, m.Name("False"))
    return is_named(argument, *_HOST_MEMORY)
