"""Merges a port into its program: where they differ, the new mode has a branch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import libcst as cst

from abele.port import tree
from abele.port.edits import parsed, statements_of
from abele.port.modes.specialised import Specialised
from abele.port.modes.switch import Switch

_Statements = Sequence[Any]


@dataclasses.dataclass
class _Item:
    """Statements of the new mode and those of the others; one list for both where they agree."""

    new: list[Any]
    old: list[Any]
    test: str = ""


@dataclasses.dataclass(kw_only=True)
class Branches:
    """A file, what is changed in it, and what a changed node becomes.

    Attributes:
        source: the file as the new mode sees it.
        switch: of the program.
        condition: the text of "this is the new mode" at a node.
        changed: nodes of the file that change in the new mode.
        everywhere: nodes that change in all modes.
        around: statements that the new mode has before and after one.
        first: statements that all modes have before one.
        methods: further methods of classes.
        new: a node with all changes.
        old: a node with those of all modes.
    """

    source: Specialised
    switch: Switch
    condition: Callable[[cst.CSTNode], str]
    changed: Collection[cst.CSTNode]
    everywhere: Collection[cst.CSTNode]
    around: Mapping[cst.CSTNode, tuple[_Statements, _Statements]]
    first: Mapping[cst.CSTNode, _Statements]
    methods: Mapping[cst.ClassDef, Collection[str]]
    new: Callable[[Any], Any]
    old: Callable[[Any], Any]

    def module(self) -> cst.Module:
        """The whole file."""
        whole = self.source.whole.module
        return whole.with_changes(body=self._block(whole.body))

    def _block(self, body: _Statements) -> list[Any]:
        return list(_joined(item for statement in body for item in self._items(statement)))

    def _items(self, node: Any) -> Iterator[_Item]:
        """What becomes of a statement of the whole file."""
        here = self.source.here(node)
        if here is None:
            yield _both([self._left_out(node)])
            return
        if here in self.first:
            yield _both(list(self.first[here]))
        before, after = self.around.get(here, ((), ()))
        if self._nodes(here, header=True) & set(self.changed):
            new = statements_of(self.new(here))  # with what is before and after it
            yield _Item(new, [self._same(node, here)], self.condition(here))
            return
        if before:
            yield _Item(list(before), [], self.condition(here))
        yield _both([self._same(node, here)])
        if after:
            yield _Item(list(after), [], self.condition(here))

    def _left_out(self, node: Any) -> Any:
        """A statement that the new mode does not have, or of which it has one branch."""
        return self._condition_of(node) if isinstance(node, cst.If) else node

    def _condition_of(self, node: Any) -> Any:
        """An ``if`` with its branches merged, those that the new mode never takes as they were."""
        decided = self.switch.decided(self.source.whole, node.test)
        body, orelse = node.body, node.orelse
        if decided is not False:
            body = self._suite(body)
        if decided is not True and orelse is not None:
            if isinstance(orelse, cst.If):
                orelse = self._condition_of(orelse)
            else:
                orelse = orelse.with_changes(body=self._suite(orelse.body))
        return node.with_changes(body=body, orelse=orelse)

    def _suite(self, suite: Any) -> Any:
        if not isinstance(suite, cst.IndentedBlock):
            return suite
        return suite.with_changes(body=self._block(suite.body))

    def _same(self, node: Any, here: Any) -> Any:
        """A statement as all modes have it, with what is inside of it merged."""
        if isinstance(node, cst.SimpleStatementLine):
            return self.old(here) if self._nodes(here) & set(self.everywhere) else node
        if isinstance(node, cst.If):
            return self._condition_of(node)
        merged: Any = node.visit(_Suites(self._suite))
        if isinstance(node, cst.FunctionDef):
            return merged.with_changes(params=self.old(here.params))
        return self._with_methods(merged, here) if here in self.methods else merged

    def _with_methods(self, cls: Any, here: cst.ClassDef) -> Any:
        """A class with those that it has from now on."""
        added = [each for text in self.methods[here] for each in parsed(text, blank=1)]
        return cls.with_changes(body=cls.body.with_changes(body=[*cls.body.body, *added]))

    def _nodes(self, node: cst.CSTNode, header: bool = False) -> set[cst.CSTNode]:
        """The nodes of a piece of the file; of its header, those in none of its blocks."""
        visitor = _Nodes(header)
        tree.visit(node, visitor)
        return visitor.nodes


def _both(statements: list[Any]) -> _Item:
    return _Item(statements, statements)


def _joined(items: Iterator[_Item]) -> Iterator[Any]:
    """Statements, with one branch for those that follow each other under the same condition."""
    waiting = _Item([], [])
    for item in items:
        if item.new is item.old or item.test != waiting.test:
            yield from _branch(waiting)
            waiting = _Item([], [], item.test)
        if item.new is item.old:
            yield from item.new
        else:
            waiting = _Item([*waiting.new, *item.new], [*waiting.old, *item.old], item.test)
    yield from _branch(waiting)


def _branch(item: _Item) -> Iterator[Any]:
    if not (item.new or item.old):
        return
    test = item.test if item.new else item.test.replace(" == ", " != ")
    leading = item.old[0].leading_lines if item.old else ()
    made: Any = cst.parse_statement(f"if {test}:\n    pass\nelse:\n    pass\n")
    first = _suite_of(item.new or item.old)
    orelse = made.orelse.with_changes(body=_suite_of(item.old)) if item.new and item.old else None
    yield made.with_changes(body=first, orelse=orelse, leading_lines=leading)


def _suite_of(statements: list[Any]) -> cst.IndentedBlock:
    first, *rest = statements
    return cst.IndentedBlock([first.with_changes(leading_lines=[]), *rest])


class _Suites(cst.CSTTransformer):
    """Changes the blocks right below a statement."""

    def __init__(self, change: Callable[[Any], Any]):
        super().__init__()
        self._change = change

    def on_visit(self, node: cst.CSTNode) -> bool:
        return not isinstance(node, cst.IndentedBlock)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        if isinstance(original_node, cst.IndentedBlock):
            return self._change(original_node)
        return updated_node


class _Nodes(cst.CSTVisitor):
    """The nodes of a piece, without those in its blocks where only its header is asked for."""

    def __init__(self, header: bool):
        super().__init__()
        self._header = header
        self.nodes: set[cst.CSTNode] = set()

    def on_visit(self, node: cst.CSTNode) -> bool:
        if self._header and isinstance(node, cst.IndentedBlock):
            return False
        self.nodes.add(node)
        return True
