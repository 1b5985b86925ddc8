"""Finds what may run between two updates, where a change affects the next update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from abele.port.analysis import assumed
from abele.port.analysis.kinds import Thing
from abele.port.analysis.things import Things
from abele.port.source import Source

_LOOPS = cst.For | cst.While | cst.BaseComp
_Site = tuple[Source, cst.CSTNode]


class Order:
    """Knows which nodes may run after others, also where functions around them are called."""

    def __init__(self, things: Things):
        """Begin.

        Args:
            things: of the program, which know its calls.
        """
        self._things = things

    def between(self, once: _Site, node: _Site, made: Iterable[Thing]) -> bool:
        """Whether a node may run after one run of something and before another.

        Args:
            once: what runs again and again, such as a call of backward.
            node: what may run between.
            made: what is made anew with whatever the runs belong to, such as their optimizers.
        """
        makers = [site for each in made for site in self.sites(each.source, each.made)]
        return any(
            self._is_between(owner, runs, nodes, makers)
            for owner, runs, nodes in self._shared(once, node)
        )

    def follows(self, once: _Site, node: _Site, made: Iterable[Thing]) -> bool:
        """Whether a node may run after something."""
        makers = [site for each in made for site in self.sites(each.source, each.made)]
        return any(
            _in_one_loop(run, each, makers)
            or (_at(run) < _at(each) and not self._made_in(owner, makers, run, each))
            for owner, runs, nodes in self._shared(once, node)
            for run in runs
            for each in nodes
        )

    def _made_in(self, owner: cst.CSTNode, makers: list[_Site], first: _Site, last: _Site) -> bool:
        """Whether something is made anew after one place, up to another in the same function."""
        inside = [each for each in makers if self._things.owner(*each) is owner]
        return any(_at(first) < _at(each) <= _at(last) for each in inside)

    def sites(self, source: Source, node: cst.CSTNode) -> list[_Site]:
        """A node, and the calls by which it is run, in whichever functions they are."""
        sites: list[_Site] = []
        seen: set[cst.CSTNode] = set()
        rest: list[_Site] = [(source, node)]
        while rest:
            at, each = rest.pop()
            sites.append((at, each))
            calls = assumed.callers(self._things, at, each)
            rest += [(caller, call) for call, caller in calls.items() if call not in seen]
            seen |= {*calls}
        return sites

    def _shared(
        self, once: _Site, node: _Site
    ) -> Iterator[tuple[cst.CSTNode, list[_Site], list[_Site]]]:
        """Functions and files in which both are run, each with the places."""
        runs, nodes = self._by_owner(once), self._by_owner(node)
        for owner in runs.keys() & nodes.keys():
            yield owner, runs[owner], nodes[owner]

    def _by_owner(self, site: _Site) -> dict[cst.CSTNode, list[_Site]]:
        owners: dict[cst.CSTNode, list[_Site]] = {}
        for source, node in self.sites(*site):
            owners.setdefault(self._things.owner(source, node), []).append((source, node))
        return owners

    def _is_between(
        self,
        owner: cst.CSTNode,
        runs: list[_Site],
        nodes: list[_Site],
        makers: list[_Site],
    ) -> bool:
        inside = [each for each in makers if self._things.owner(*each) is owner]
        for node in nodes:
            for run in runs:
                for other in runs:
                    if _in_one_loop(run, node, makers) and _in_one_loop(node, other, makers):
                        if not _is_made_after(node, inside):
                            return True
                    elif _at(run) < _at(node) < _at(other) and not any(
                        _at(run) < _at(each) < _at(other) for each in inside
                    ):
                        return True
        return False


def _at(site: _Site) -> tuple[int, int]:
    return site[0].position(site[1])


def _loops(site: _Site) -> list[cst.CSTNode]:
    """The loops around a node in its function."""
    loops: list[cst.CSTNode] = []
    source, inner = site
    for each in source.above(inner):
        if isinstance(each, cst.FunctionDef):
            break
        if isinstance(each, _LOOPS):
            loops.append(each)
    return loops


def _in_one_loop(one: _Site, other: _Site, makers: Iterable[_Site]) -> bool:
    """Whether some loop has both, and does not make anew what they belong to in each turn."""
    shared = set(_loops(one)) & set(_loops(other))
    anew = {
        loop
        for source, node in makers
        for loop in _loops((source, node))
        if not _is_conditional(source, node, loop)
    }
    return bool(shared - anew)


def _is_conditional(source: Source, node: cst.CSTNode, loop: cst.CSTNode) -> bool:
    """Whether a condition in a loop decides whether a node in it is run."""
    return any(isinstance(each, cst.If) for each in source.between(node, loop))


def _is_made_after(node: _Site, makers: Iterable[_Site]) -> bool:
    """Whether what a change belongs to is made anew right after it, in the same block."""
    source, inner = node
    around = set(source.above(inner))
    return any(
        at is source
        and at.enclosing(made, cst.IndentedBlock) in around
        and _at(node) < _at((at, made))
        for at, made in makers
    )
