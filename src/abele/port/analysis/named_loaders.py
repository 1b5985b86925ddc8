"""Finds the loaders that a name may stand for where a statement runs."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis import assumed
from abele.port.analysis.flow import writes
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.scopes import names_in, parameters
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.analysis.turns import Turn, items, turns
from abele.port.source import Source


def at(
    things: Things, source: Source, name: str, loop: cst.For | cst.CompFor, node: cst.CSTNode
) -> set[Thing] | None:
    """The loaders that a name may be for a loop when a node in the loop is run.

    Returns:
        None if the program does not say it.
    """
    turned = _turns(things, source, loop, name)
    if turned:
        known = assumed.facts(source, node)
        here = [turn for turn in turned if assumed.allows(known, turn, things.owner(source, node))]
        return _loaders(things, source, name, here)
    loaders = _of_parameter(things, source, name, node)
    return _bound(things, source, name, loop) if loaders is None else loaders


def keys_of(things: Things, loader: Thing) -> set[str]:
    """The keys under which dictionaries of its file have a loader, as far as they are written."""
    elements = findall(loader.source.module, m.DictElement(key=m.SimpleString()))
    return {
        str(each.key.evaluated_value)
        for each in elements
        if loader in things.of(loader.source, each.value, Kind.LOADER)
    }


def _loaders(things: Things, source: Source, name: str, turned: list[Turn]) -> set[Thing]:
    """What a name is in some turns of a loop."""
    return {thing for turn in turned for thing in things.of(source, turn[name], Kind.LOADER)}


def _turns(things: Things, source: Source, node: cst.CSTNode, name: str) -> list[Turn]:
    """The turns of the loop around a node that gives a name its values, if they are known."""
    for each in source.above(node):
        if isinstance(each, cst.FunctionDef):
            break
        if isinstance(each, cst.For) and name in names_in(each.target):
            known = [turn for turn in turns(source, each) if name in turn]
            return known or _turns_of_items(things, source, each)
    return []


def _turns_of_items(things: Things, source: Source, loop: cst.For) -> list[Turn]:
    """The turns of a loop over the items of a dictionary that the program makes elsewhere."""
    pair = items(loop)
    if pair is None:
        return []
    known: list[Turn] = []
    for loader in things.of(source, pair.value, Kind.LOADER):
        turn: Turn = {pair.value.value: loader.made}
        keys = sorted(keys_of(things, loader))
        known += [turn | {pair.key.value: cst.SimpleString(repr(key))} for key in keys] or [turn]
    return known


def _of_parameter(
    things: Things, source: Source, name: str, node: cst.CSTNode
) -> set[Thing] | None:
    """What a parameter is in the calls that get to a node; None if it is no parameter alone."""
    function = source.enclosing(node, cst.FunctionDef)
    if function is None or name not in parameters(function) or name in writes(function.body):
        return None
    loaders: set[Thing] = set()
    for call, caller in assumed.callers(things, source, node).items():
        value = things.arguments(function, call).get(name)
        if value is None:
            return None
        turned = isinstance(value, cst.Name) and _turns(things, caller, call, value.value)
        if not isinstance(value, cst.Name) or not turned:
            loaders |= things.of(caller, value, Kind.LOADER)
            continue
        here, there = assumed.facts(source, node), assumed.facts(caller, call)
        left = [
            turn
            for turn in turned
            if assumed.allows(there, turn, things.owner(caller, call))
            and assumed.allows_call(things, function, call, caller, here, turn)
        ]
        loaders |= _loaders(things, caller, value.value, left)
    return loaders


def _bound(
    things: Things, source: Source, name: str, loop: cst.For | cst.CompFor
) -> set[Thing] | None:
    """What a name that is given several values may be at a loop; None if that is not known."""
    owner = things.owner(source, loop)
    above = [*source.above(loop)]
    assigns = [
        each
        for each in findall(owner, m.Assign())
        if name in writes(each) and things.owner(source, each) is owner
    ]
    if things.named(source, loop, name) is not owner or any(
        set(source.above(each))
        & {outer for outer in above if isinstance(outer, cst.For | cst.While)}
        for each in assigns
    ):
        return None
    loaders: set[Thing] | None = None
    for each in assigns:
        if source.position(each) > source.position(loop):
            break
        line = source.parent(each)
        sure = line is not None and source.parent(line) in above
        now = things.of(source, each.value, Kind.LOADER)
        if not now:
            return None
        loaders = now if sure or loaders is None else loaders | now
    return loaders
