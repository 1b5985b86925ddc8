"""Batches of an evaluation: a program has one shape, and the last batch may have another."""

from __future__ import annotations

import dataclasses

import libcst as cst
from libcst import matchers as m

from abele.port.analysis import batches
from abele.port.analysis.flow import reads, writes
from abele.port.analysis.keys import read_by_key
from abele.port.analysis.kinds import Thing
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.routes import NoRouteError
from abele.port.rules.shared_functions import Use
from abele.port.source import Source

_LEFT_OUT = (
    "rows of a last, shorter batch, which training leaves out of this loader, are left out here, "
    "too, and an average over the others may be another: make a loader of its own for the "
    "evaluation, or choose a batch_size that divides the number of rows"
)


@dataclasses.dataclass(frozen=True)
class Rows:
    """How many rows the batches of a call have.

    Attributes:
        condition: that a batch has as many as all but the last; ``""`` if all have.
        size: the same for calls that may share a program.
    """

    condition: str
    size: str | cst.Call


def rows(context: Context, use: Use) -> Rows | None:
    """How many rows the batches of a call have; None if they may have any number.

    Raises:
        NoRouteError: what tells is not known where the model is called.
    """
    source, call = use.source, use.call
    around = list(batches.loaders_around(context.things, source, call))
    loaders = {each for _, _, some in around for each in some}
    _say_left_out(context, around)
    if not around:
        return _by_hand(context, use)
    uneven = any(batches.may_be_short(each) for each in loaders)
    short = uneven or len(_sizes(loaders)) > 1
    size = min(_sizes(loaders))
    if not use.given or not short:
        return Rows("", size)
    text = _size(context, source, call, around)
    return Rows(f"len({_first(context, use)}) == {text}", size)


def _by_hand(context: Context, use: Use) -> Rows | None:
    """The same for a call whose batches no loader gives.

    A loop may cut them out of a tensor: its last one may be shorter. Another call has a program of
    its own if it runs once: inputs of others may have several shapes.
    """
    source, call = use.source, use.call
    names = {name for each in use.given for name in reads(each.value)}
    for each in source.above(call):
        if isinstance(each, cst.FunctionDef):
            break
        if isinstance(each, cst.For) and m.matches(each.iter, batches.CUT):
            if not names & {*writes(each)}:
                continue
            cut = cst.ensure_type(each.iter, cst.Call)
            by = source.code(cut.args[2].value)
            even = batches.is_even(cut)
            return Rows("" if even else f"len({_first(context, use)}) == {by}", by)
    repeated = (cst.FunctionDef, cst.Lambda, cst.For, cst.While, cst.BaseComp)
    once = not any(isinstance(each, repeated) for each in source.above(call))
    return Rows("", call) if once else None


def _say_left_out(
    context: Context, around: list[tuple[Source, cst.For | cst.CompFor, set[Thing]]]
) -> None:
    trained = context.trained_loaders()
    for source, loop, loaders in around:
        if any(each in trained and batches.may_be_short(each) for each in loaders):
            context.say(source, loop.iter, "ABP203", Verdict.MODIFIED, _LEFT_OUT)


def _first(context: Context, use: Use) -> str:
    """What has a row for each of a batch."""
    source, first = use.source, use.given[0]
    text = source.code(context.edits(source).applied(first.value))
    if use.part or first.star == "*":
        return f"{text}{use.part or '[0]'}"
    if first.star == "**":
        return f"next(iter({text}.values()))"
    keys = parts(context, source, first) or _keys_around(context, source, first.value)
    return f"{text}[{keys[0]}]" if keys else text


def parts(context: Context, source: Source, argument: cst.Arg) -> tuple[str, ...]:
    """The keys that a model of the program reads of an argument, if it is a dictionary."""
    if argument.star or not isinstance(argument.value, cst.Name):
        return ()
    name = argument.value.value
    return read_by_key(context.project, context.things, source, name, [argument])


def _keys_around(context: Context, source: Source, node: cst.BaseExpression) -> list[str]:
    """The keys by which the function around a name reads it."""
    if not isinstance(node, cst.Name):
        return []
    index = m.SubscriptElement(m.Index(m.SimpleString()))
    read = m.Subscript(value=m.Name(node.value), slice=[index])
    every: list[cst.Subscript] = findall(context.things.owner(source, node), read)
    return [source.code(cst.ensure_type(each.slice[0].slice, cst.Index).value) for each in every]


def _sizes(loaders: set[Thing]) -> set[str]:
    """The texts that say how many rows batches have."""
    sizes = {each: batches.size(each) for each in loaders}
    return {"1" if node is None else each.source.code(node) for each, node in sizes.items()}


def _size(
    context: Context,
    source: Source,
    call: cst.Call,
    around: list[tuple[Source, cst.For | cst.CompFor, set[Thing]]],
) -> str:
    """The number of rows, as an expression where the model is called.

    Raises:
        NoRouteError: there is none.
    """
    loaders = sorted(
        {each for _, _, some in around for each in some},
        key=lambda each: (each.source.name, each.source.position(each.made)),
    )
    owner = context.things.owner(source, call)
    at, loop, _ = around[0]
    here = len(around) == 1 and at is source and context.things.owner(at, loop.iter) is owner
    if len(_sizes({*loaders})) == 1:
        through = batches.gone_through(at, loop)
        if here and isinstance(through, cst.Name | cst.Attribute | cst.Subscript):
            return f"{source.code(through)}.batch_size"
        if len(loaders) == 1 and not isinstance(through, cst.Call):
            return f"{context.routes.name_of(loaders[0], source, call)}.batch_size"
    node = batches.size(loaders[0])
    if node is None or not _is_known(context, loaders[0].source, node, source, call):
        raise NoRouteError("the batch size is not known here")
    return loaders[0].source.code(node)


def _is_known(
    context: Context, made: Source, size: cst.BaseExpression, source: Source, call: cst.Call
) -> bool:
    """Whether an expression means the same where a model is called."""
    if findall(size, m.Call()):
        return False
    for name in reads(size):
        there = context.things.named(made, size, name)
        if made is not source or context.things.named(source, call, name) is not there:
            return False
    return True
