"""Finds the loaders that batches come from, and whether all batches have one size."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from abele.port.analysis import assumed
from abele.port.analysis.calls import goes_through
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.source import Source

__all__ = [
    "CUT",
    "argument",
    "chosen",
    "gone_through",
    "is_even",
    "keys_of",
    "loader_in_function",
    "loader_of",
    "loaders_around",
    "loaders_of",
    "may_be_short",
    "size",
]


def loaders_of(
    things: Things, source: Source, loop: cst.CSTNode | None, node: cst.CSTNode | None = None
) -> set[Thing]:
    """The loaders that a loop may go through; where a node in it is given, when that is run."""
    if not isinstance(loop, cst.For | cst.CompFor):
        return set()
    loaders = things.of(source, loop.iter, Kind.LOADER)
    key = None if node is None else chosen(source, loop, node)
    if key is not None:
        keys = {each: keys_of(things, each) for each in loaders}
        return {each for each in loaders if key in keys[each] or not keys[each]}
    return loaders


def keys_of(things: Things, loader: Thing) -> set[str]:
    """Return the keys under which dictionaries of its file have a loader, as they are written."""
    elements = findall(loader.source.module, m.DictElement(key=m.SimpleString()))
    return {
        str(each.key.evaluated_value)
        for each in elements
        if loader in things.of(loader.source, each.value, Kind.LOADER)
    }


def chosen(source: Source, loop: cst.CSTNode | None, node: cst.CSTNode) -> str | None:
    """The key by which a loop chooses a loader when a node in it is run; None if not known."""
    if not isinstance(loop, cst.For | cst.CompFor):
        return None
    through = gone_through(source, loop)
    if not m.matches(through, m.Subscript(slice=[m.SubscriptElement(m.Index(m.Name()))])):
        return None
    index = cst.ensure_type(cst.ensure_type(through, cst.Subscript).slice[0].slice, cst.Index)
    key = assumed.constants(assumed.facts(source, node)).get(
        cst.ensure_type(index.value, cst.Name).value
    )
    return key if isinstance(key, str) else None


def loader_of(things: Things, source: Source, loop: cst.CSTNode | None) -> Thing | None:
    """The loader that a loop goes through; None if it is none, or not known."""
    loaders = loaders_of(things, source, loop)
    return next(iter(loaders)) if len(loaders) == 1 else None


def loader_in_function(things: Things, source: Source, node: cst.CSTNode) -> Thing | None:
    """The loader of the innermost loop around a node, in the same function."""
    for each in source.above(node):
        if isinstance(each, cst.FunctionDef):
            return None
        loader = loader_of(things, source, each)
        if loader is not None:
            return loader
    return None


def gone_through(source: Source, loop: cst.For | cst.CompFor) -> cst.BaseExpression:
    """What a loop goes through, without ``enumerate`` and bars around it."""
    value = loop.iter
    while (
        isinstance(value, cst.Call)
        and value.args
        and goes_through(source.imported(value.func), value)
    ):
        value = value.args[0].value
    return value


def loaders_around(
    things: Things, source: Source, node: cst.CSTNode
) -> Iterator[tuple[Source, cst.For | cst.CompFor, set[Thing]]]:
    """The innermost loops through loaders around a node: in its function, or where it is called.

    Yields:
        Each with its file and the loaders that it may go through.
    """
    seen: set[cst.CSTNode] = set()
    rest: list[tuple[Source, cst.CSTNode]] = [(source, node)]
    while rest:
        at, inner = rest.pop()
        for each in _above(at, inner):
            if isinstance(each, cst.FunctionDef):
                calls = assumed.callers(things, at, inner)
                rest += [(caller, call) for call, caller in calls.items() if call not in seen]
                seen |= {*calls}
                break
            loaders = loaders_of(things, at, each, inner)
            if loaders:
                assert isinstance(each, cst.For | cst.CompFor)
                yield at, each, loaders
                break


def _above(source: Source, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """What is around a node, with the loops of comprehensions."""
    for each in source.above(node):
        if isinstance(each, cst.ListComp | cst.SetComp | cst.DictComp | cst.GeneratorExp):
            levels: list[cst.CompFor] = []
            level: cst.CompFor | None = each.for_in
            while level is not None:
                levels.insert(0, level)
                level = level.inner_for_in
            yield from levels
        yield each


def argument(call: cst.Call, name: str, index: int | None = None) -> cst.BaseExpression | None:
    """An argument of a call, by name or else by place; None if it is not given."""
    for each in call.args:
        if each.keyword is not None and each.keyword.value == name:
            return each.value
    if index is not None and index < len(call.args) and call.args[index].keyword is None:
        return call.args[index].value
    return None


def size(loader: Thing) -> cst.BaseExpression | None:
    """How many rows a loader is to give a batch; None if it is not known where."""
    return argument(loader.made, "batch_size", 1) if isinstance(loader.made, cst.Call) else None


def may_be_short(loader: Thing) -> bool:
    """Whether the last batch of a loader may have fewer rows than the others."""
    if not isinstance(loader.made, cst.Call):
        return True
    drop = argument(loader.made, "drop_last")
    if drop is not None and m.matches(drop, m.Name("True")):
        return False
    rows = size(loader)
    if rows is None:
        return any(each.star == "**" for each in loader.made.args)
    return not m.matches(rows, m.Integer("1"))


def is_even(call: cst.Call) -> bool:
    """Whether a range of numbers ends with a whole batch."""
    numbers = [each.value for each in call.args]
    if not all(isinstance(each, cst.Integer) for each in numbers):
        return False
    start, stop, by = (cst.ensure_type(each, cst.Integer).evaluated_value for each in numbers)
    return by > 0 and (stop - start) % by == 0


_PLAIN = m.Name() | m.Attribute() | m.Integer()
#: Calls of range that say where batches are cut out of tensors.
CUT = m.Call(func=m.Name("range"), args=[m.Arg(), m.Arg(_PLAIN | m.Call()), m.Arg(_PLAIN)])
