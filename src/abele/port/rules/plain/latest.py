"""Finds which of several things a name is, where it is assigned one after the other."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Thing
from abele.port.context import Context
from abele.port.source import Source


def latest(
    context: Context, source: Source, node: cst.BaseExpression, things: Collection[Thing]
) -> set[Thing]:
    """The thing that was made last before a name is used; all, where a condition or loop decides.

    Args:
        context: the program.
        source: the file.
        node: the name.
        things: what it may be.
    """
    if len(things) < 2 or not isinstance(node, cst.Name):
        return {*things}
    owner = context.things.owner(source, node)
    placed: dict[tuple[int, int], Thing] = {}
    for thing in things:
        same = thing.source is source and context.things.owner(source, thing.made) is owner
        if not same or conditions(source, thing.made):
            return {*things}
        placed[source.position(thing.made)] = thing
    before = [place for place in placed if place < source.position(node)]
    return {placed[max(before)]} if before else {*things}


def conditions(source: Source, node: cst.CSTNode) -> set[cst.CSTNode]:
    """The conditions and loops around a node, without that of a main program."""
    kinds = (cst.If, cst.IfExp, cst.For, cst.While)
    main = m.If(test=m.Comparison(left=m.Name("__name__")))
    return {
        each for each in source.above(node) if isinstance(each, kinds) and not m.matches(each, main)
    }
