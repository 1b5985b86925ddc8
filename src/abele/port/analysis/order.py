"""Determines which nodes of a program may run after others, across function calls."""

from __future__ import annotations

from typing import TypeAlias

import libcst as cst

from abele.port.analysis.things import Things
from abele.port.source import Source

_LOOPS = cst.For | cst.While | cst.BaseComp
Site: TypeAlias = tuple[Source, cst.CSTNode]


def callers(things: Things, source: Source, node: cst.CSTNode) -> dict[cst.Call, Source]:
    """Return the calls of the function around a syntax node, each with its file."""
    function = source.enclosing(node, cst.FunctionDef)
    return {} if function is None else things.calls(function)


class Order:
    """The order in which syntax nodes of a program may run, from blocks, loops and calls."""

    def __init__(self, things: Things):
        """Store the analyzed objects and function calls of a program."""
        self._things = things

    def follows(self, first: Site, second: Site) -> bool:
        """Return whether a syntax node may run after another syntax node.

        The answer is conservative: objects that a loop creates in each iteration are not
        distinguished, so it may be True for a node that only runs before.
        """
        firsts, seconds = self._by_owner(first), self._by_owner(second)
        return any(
            bool(_loops(one) & _loops(other)) or _at(one) < _at(other)
            for owner in firsts.keys() & seconds.keys()
            for one in firsts[owner]
            for other in seconds[owner]
        )

    def sites(self, source: Source, node: cst.CSTNode) -> list[Site]:
        """Return a syntax node and the chain of calls that run it, each with its file."""
        sites: list[Site] = []
        seen: set[cst.CSTNode] = set()
        rest: list[Site] = [(source, node)]
        while rest:
            at, each = rest.pop()
            sites.append((at, each))
            calls = callers(self._things, at, each)
            rest += [(caller, call) for call, caller in calls.items() if call not in seen]
            seen |= {*calls}
        return sites

    def _by_owner(self, site: Site) -> dict[cst.CSTNode, list[Site]]:
        owners: dict[cst.CSTNode, list[Site]] = {}
        for source, node in self.sites(*site):
            owners.setdefault(self._things.owner(source, node), []).append((source, node))
        return owners


def _at(site: Site) -> tuple[int, int]:
    return site[0].position(site[1])


def _loops(site: Site) -> set[cst.CSTNode]:
    """Return the loops around a syntax node within its function."""
    loops: set[cst.CSTNode] = set()
    source, inner = site
    for each in source.above(inner):
        if isinstance(each, cst.FunctionDef):
            break
        if isinstance(each, _LOOPS):
            loops.add(each)
    return loops
