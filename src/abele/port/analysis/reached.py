"""Finds functions that a piece of a program calls, and which of their parameters are tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.search import findall
from abele.port.analysis.things import Things
from abele.port.analysis.values import depends, followed
from abele.port.source import Source


class Reached(NamedTuple):
    """A function that a program runs.

    Attributes:
        source: its file.
        function: itself.
        tensors: those of its parameters that may be tensors.
    """

    source: Source
    function: cst.FunctionDef
    tensors: frozenset[str]


def reached(
    things: Things,
    source: Source,
    body: cst.CSTNode,
    given: Collection[str],
    seen: set[Reached],
) -> Iterator[Reached]:
    """The functions that a piece of a program calls with tensors, and those that they call.

    Args:
        things: what names stand for.
        source: the file of the piece.
        body: the piece.
        given: names in it that are tensors.
        seen: those that were found before, to which these are added.
    """
    tensors = followed(body, given)
    for call in findall(body, m.Call()):
        assert isinstance(call, cst.Call)
        function = things.function(source, call)
        if function is None or function.name.value in ("__init__", "forward"):
            continue
        values = things.arguments(function, call)
        names = frozenset(name for name, value in values.items() if depends(value, tensors))
        found = Reached(things.file(function), function, names)
        if names and found not in seen:
            seen.add(found)
            yield found
            yield from reached(things, found.source, function.body, names, seen)
