"""Data loaders: PopTorch's knows the batches that a program takes in one call."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis import batches
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.search import findall
from abele.port.analysis.slow_values import varies
from abele.port.analysis.steps import Loop, Step
from abele.port.context import Context
from abele.port.edits import keyword
from abele.port.finding import Verdict
from abele.port.layout import laid_out
from abele.port.rules import accumulation

CODES = {
    "ABP201": ("The loader is PopTorch's, which takes the same arguments after the options."),
    "ABP202": (
        "The loader of an evaluation stays, so that no row is left out: its last batch may be "
        "shorter."
    ),
    "ABP203": "Rows that training leaves out of a loader count or are missing here, too.",
    "ABP204": "Batches cut by hand: the loop ends before a last, shorter one.",
    "ABP205": "Batches that come from elsewhere have to have one size.",
    "ABP206": "Batches of several sizes do not go through one program.",
    "ABP207": (
        "Training leaves out a last, shorter batch of an epoch, because a program has one shape."
    ),
}

_SAME = "poptorch.DataLoader takes the same arguments"
_SHORTENED = "a last, shorter batch is left out, because a program has one shape"
_SHORT = "no row is left out of an evaluation: torch's loader gives a last, shorter batch, too"
_COUNTED = (
    "rows of a last, shorter batch, which training leaves out, are counted here: an average over "
    "them is smaller than it was, unless drop_last=True was meant before; nothing is left out if "
    "batch_size divides the number of rows"
)
_BATCHES_COUNTED = (
    "this is one batch fewer for each epoch than it was if a last, shorter batch is left out: what "
    "is planned by it, such as a learning rate, reaches its end earlier"
)
_SIZES = (
    "batches of several sizes ({sizes}) come to one program, which has one shape: use one size, "
    "and for each loader a name of its own"
)
_GROWS = "the size of batches changes while a program trains, which has one shape: use one size"
_PADDED = (
    "rows are padded to the longest of their batch here, and a program has one shape: pad all "
    "batches to one length"
)
_PADS = ("pad_sequence", "pack_sequence", "DataCollatorWithPadding")
_BY_HAND = "the loop ends before a last, shorter batch, because a program has one shape"
_ELSEWHERE = (
    "where these batches come from is not known: each has to have as many rows as the first, so "
    "leave a last, shorter one out"
)
_CHOSEN = (
    "the loader of {key!r} leaves out a last, shorter batch, because a program has one shape; the "
    "others stay"
)
_ONE_OF_SEVERAL = (
    "which of these loaders trains is not known: give that one drop_last=True, because a program "
    "has one shape"
)
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
    _say_counted(context, trained)
    for step in context.steps:
        _check_sizes(context, step)
        _shorten_chosen(context, step)


def _shorten_chosen(context: Context, step: Step) -> None:
    """Have the one loader of a comprehension that trains leave out a last, shorter batch."""
    for at, loop, loaders in batches.loaders_around(context.things, step.source, step.backward):
        key = batches.chosen(at, loop, step.backward) if at is step.source else None
        for each in loaders if isinstance(batches.gone_through(at, loop), cst.Subscript) else ():
            around = each.source.enclosing(each.made, cst.DictComp, cst.ListComp)
            if around is None or _drops(each) or not batches.may_be_short(each):
                continue
            name = around.key if isinstance(around, cst.DictComp) else None
            if key is None or not isinstance(name, cst.Name):
                context.say(each.source, each.made, "ABP205", Verdict.MANUAL, _ONE_OF_SEVERAL)
            elif isinstance(each.made, cst.Call) and each not in context.once:
                context.once.add(each)
                short = f'{name.value} == "{key}"'
                context.edits(each.source).give(each.made, keyword("drop_last", short))
                reason = _CHOSEN.format(key=key)
                context.say(each.source, each.made, "ABP207", Verdict.MODIFIED, reason)


def _drops(loader: Thing) -> bool:
    """Whether a loader is told what to do with a last, shorter batch."""
    return isinstance(loader.made, cst.Call) and (
        batches.argument(loader.made, "drop_last") is not None
    )


def _say_counted(context: Context, trained: set[Thing]) -> None:
    """Name where all rows are counted, of which training leaves some out."""
    for source in context.project.sources:
        for call in findall(source.module, _ROWS):
            loader = cst.ensure_type(call, cst.Call).args[0].value
            assert isinstance(loader, cst.Attribute)
            things = context.things.of(source, loader.value, Kind.LOADER)
            if any(each in trained and batches.may_be_short(each) for each in things):
                context.say(source, call, "ABP203", Verdict.MODIFIED, _COUNTED)
        for call in findall(source.module, _BATCHES):
            things = context.things.of(source, call.args[0].value, Kind.LOADER)
            used = source.parent(call)
            planned = isinstance(used, cst.Arg) or (
                isinstance(used, cst.BinaryOperation) and isinstance(used.operator, cst.Multiply)
            )
            if planned and any(each in trained and batches.may_be_short(each) for each in things):
                context.say(source, call, "ABP203", Verdict.MODIFIED, _BATCHES_COUNTED)


_BATCHES = m.Call(func=m.Name("len"), args=[m.Arg(m.Name() | m.Attribute(value=m.Name("self")))])
_ROWS = m.Call(func=m.Name("len"), args=[m.Arg(m.Attribute(attr=m.Name("dataset")))])


def _check_sizes(context: Context, step: Step) -> None:
    """All batches of a step have one size."""
    around = list(batches.loaders_around(context.things, step.source, step.backward))
    loaders = {each for _, _, some in around for each in some}
    sizes = {each: batches.size(each) for each in loaders}
    texts = {"1" if node is None else each.source.code(node) for each, node in sizes.items()}
    chosen = any(
        isinstance(batches.gone_through(at, loop), cst.Subscript) for at, loop, _ in around
    )
    if len(texts) > 1 and not chosen:
        names = ", ".join(sorted(texts))
        verdict = Verdict.BLOCKED if all(map(str.isdigit, texts)) else Verdict.MANUAL
        context.say(step.source, step.backward, "ABP206", verdict, _SIZES.format(sizes=names))
    for loader, node in sizes.items():
        if node is not None and varies(loader.source, node, step.gradients.optimizers):
            context.say(loader.source, loader.made, "ABP206", Verdict.BLOCKED, _GROWS)
        _check_padding(context, loader)
    if not loaders and step.loop is not None:
        _check_by_hand(context, step, step.loop)


def _check_padding(context: Context, loader: Thing) -> None:
    """Name where a loader's collate_fn gives each batch a length of its own."""
    made = loader.made
    collate = batches.argument(made, "collate_fn") if isinstance(made, cst.Call) else None
    if collate is None:
        return
    function = context.project.function(loader.source, collate)
    source = loader.source if function is None else context.project.source(function)
    for call in findall(collate if function is None else function.body, m.Call()):
        assert isinstance(call, cst.Call)
        if source.imported(call.func).rpartition(".")[2] in _PADS:
            context.say(source, call, "ABP206", Verdict.MANUAL, _PADDED)


def _check_by_hand(context: Context, step: Step, loop: Loop) -> None:
    """Batches that are cut out of tensors: the last one may be shorter."""
    if not isinstance(loop, cst.For):
        return
    place = loop.iter
    if m.matches(place, m.Call(func=m.Name("enumerate"))):
        place = cst.ensure_type(place, cst.Call).args[0].value
    call = cst.ensure_type(place, cst.Call) if m.matches(place, batches.CUT) else None
    if call is not None and not batches.is_even(call):
        stop, by = (step.source.code(each.value) for each in call.args[1:])
        new = cst.parse_expression(f"{stop} - {by} + 1")
        context.edits(step.source).change(call.args[1].value, lambda _: new)
        context.say(step.source, loop, "ABP204", Verdict.MODIFIED, _BY_HAND)
    elif call is None and not m.matches(place, m.Call(func=m.Name("range"))):
        context.say(step.source, loop, "ABP205", Verdict.MATCH, _ELSEWHERE)


def _replace(context: Context, thing: Thing, call: cst.Call, training: bool) -> None:
    edits = context.edits(thing.source)
    options = accumulation.options(context, thing) or context.options(thing.source)
    edits.replace(call.func, "poptorch.DataLoader")

    def change(node: cst.Call) -> cst.Call:
        kept = [each for each in node.args if not _has_no_effect(each, training)]
        first = cst.Arg(cst.parse_expression(options))
        return laid_out(thing.source, call, node, [first, *kept])

    edits.change(call, change)
    short = training and batches.may_be_short(thing)
    context.say(thing.source, call, "ABP201", Verdict.MODIFIED, _SAME)
    if short:
        context.say(thing.source, call, "ABP207", Verdict.MODIFIED, _SHORTENED)


def _has_no_effect(argument: cst.Arg, training: bool) -> bool:
    """Whether a program's loader has no use for an argument."""
    if argument.keyword is None:
        return False
    if argument.keyword.value == "drop_last":
        return training and m.matches(argument.value, m.Name("False"))
    return argument.keyword.value in _HOST_MEMORY
