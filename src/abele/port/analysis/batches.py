"""Finds the data loaders that batches come from, and whether all batches have equal size."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind, Thing, goes_through
from abele.port.analysis.order import callers
from abele.port.analysis.things import Things
from abele.port.source import Source


def gone_through(source: Source, loop: cst.For | cst.CompFor) -> cst.BaseExpression:
    """Return the iterable of a loop, without surrounding ``enumerate`` and progress bars."""
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
    """Find the innermost loops over data loaders around a syntax node or its function's calls.

    Yields:
        Each loop with its file and the loaders that it may go through.
    """
    seen: set[cst.CSTNode] = set()
    rest: list[tuple[Source, cst.CSTNode]] = [(source, node)]
    while rest:
        at, inner = rest.pop()
        for each in _above(at, inner):
            if isinstance(each, cst.FunctionDef):
                calls = callers(things, at, inner)
                rest += [(caller, call) for call, caller in calls.items() if call not in seen]
                seen |= {*calls}
                break
            if isinstance(each, cst.For | cst.CompFor):
                loaders = things.of(at, each.iter, Kind.LOADER)
                if loaders:
                    yield at, each, loaders
                    break


def _above(source: Source, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the ancestors of a syntax node, with the ``for`` clauses of comprehensions."""
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
    """Return an argument of a call, by name or else by position; None if it is not passed."""
    for each in call.args:
        if each.keyword is not None and each.keyword.value == name:
            return each.value
    if index is not None and index < len(call.args) and call.args[index].keyword is None:
        return call.args[index].value
    return None


def size(loader: Thing) -> cst.BaseExpression | None:
    """Return the ``batch_size`` argument of a data loader's constructor; None if there is none."""
    return argument(loader.made, "batch_size", 1) if isinstance(loader.made, cst.Call) else None


def rows(things: Things, source: Source, node: cst.BaseExpression | None) -> int | None:
    """Return a number, or the rows of a tensor or data set made with it; None if unknown."""
    if isinstance(node, cst.Integer):
        return node.evaluated_value
    variable = None if node is None else things.variable(source, node)
    origins = [] if variable is None else [*things.given_to(variable)]
    made = source.imported(node.func) if isinstance(node, cst.Call) and node.args else ""
    if isinstance(node, cst.Call) and made.startswith("torch.") and made[6:] in _SIZED:
        first = node.args[0].value
        origins = [(source, first.elements[0].value if isinstance(first, cst.Tuple) else first)]
    return rows(things, *origins[0]) if len(origins) == 1 else None


_SIZED = ("rand", "randn", "zeros", "ones", "empty", "arange", "utils.data.TensorDataset")


def left_out(things: Things, loader: Thing) -> tuple[int, int] | None:
    """Return the rows in a loader's last, shorter batch and in its data set; None if unknown."""
    made = cst.ensure_type(loader.made, cst.Call)
    every = rows(things, loader.source, argument(made, "dataset", 0))
    some = rows(things, loader.source, size(loader))
    return (every % some, every) if every is not None and some else None


def may_be_short(loader: Thing) -> bool:
    """Return whether the last batch of a data loader may have fewer samples than the others."""
    if not isinstance(loader.made, cst.Call):
        return True
    drop = argument(loader.made, "drop_last")
    if drop is not None and m.matches(drop, m.Name("True")):
        return False
    rows = size(loader)
    if rows is None:
        return any(each.star == "**" for each in loader.made.args)
    return not m.matches(rows, m.Integer("1"))
