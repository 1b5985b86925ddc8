"""Which loader a loop goes through, and whether its batches all have one size."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.things import Things
from abele.port.source import Source


def loader_of(things: Things, source: Source, loop: cst.CSTNode | None) -> Thing | None:
    """The loader that a loop goes through; None if it is none, or not known."""
    if not isinstance(loop, cst.For):
        return None
    loaders = things.of(source, loop.iter, Kind.LOADER)
    return next(iter(loaders)) if len(loaders) == 1 else None


def loader_around(things: Things, source: Source, node: cst.CSTNode) -> Thing | None:
    """The loader of the innermost loop around a node, in the same function."""
    for each in source.above(node):
        if isinstance(each, cst.FunctionDef):
            return None
        loader = loader_of(things, source, each)
        if loader is not None:
            return loader
    return None


def argument(call: cst.Call, name: str, index: int | None = None) -> cst.BaseExpression | None:
    """An argument of a call, by name or else by place; None if it is not given."""
    for each in call.args:
        if each.keyword is not None and each.keyword.value == name:
            return each.value
    if index is not None and index < len(call.args) and call.args[index].keyword is None:
        return call.args[index].value
    return None


def may_be_short(loader: Thing) -> bool:
    """Whether the last batch of a loader may have fewer rows than the others."""
    if not isinstance(loader.made, cst.Call):
        return True
    drop = argument(loader.made, "drop_last")
    if drop is not None and m.matches(drop, m.Name("True")):
        return False
    size = argument(loader.made, "batch_size", 1)
    if size is None:
        return any(each.star == "**" for each in loader.made.args)
    return not m.matches(size, m.Integer("1"))
