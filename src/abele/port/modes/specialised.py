"""A file as one mode sees it, without the branches of the others."""

from __future__ import annotations

from typing import Any

import libcst as cst

from abele.port import tree
from abele.port.modes.switch import Switch
from abele.port.source import Source


class Specialised(Source):
    """A file without what the new mode leaves out.

    Attributes:
        whole: the file with everything.
    """

    def __init__(self, whole: Source, switch: Switch):
        """Leave out what other modes do.

        Args:
            whole: the file.
            switch: of the program.
        """
        self.whole, pruner = whole, _Pruner(whole, switch)
        self._set(whole.name, whole.text, whole.module.visit(pruner))
        self._origins = pruner.origins
        self._here = {
            self._origins[node]: node for node in tree.walk(self.module) if node in self._origins
        }

    def position(self, node: cst.CSTNode) -> tuple[int, int]:
        """Line and column of a node of either tree, in the whole file."""
        return self.whole.position(self.origin(node))

    def origin(self, node: cst.CSTNode) -> cst.CSTNode:
        """The node of the whole file that a node stands for."""
        return self._origins.get(node, node)

    def here(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """What stands for a node of the whole file; None if it is left out."""
        return self._here.get(node)


class _Pruner(cst.CSTTransformer):
    """Takes decided branches out, and remembers what each node was."""

    def __init__(self, source: Source, switch: Switch):
        super().__init__()
        self._source, self._switch = source, switch
        self._inner: set[cst.CSTNode] = set()
        self.origins: dict[cst.CSTNode, cst.CSTNode] = {}

    def visit_If(self, node: cst.If) -> None:
        if isinstance(node.orelse, cst.If):
            self._inner.add(node.orelse)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        if isinstance(updated_node, cst.CSTNode):
            self.origins[updated_node] = original_node
        return super().on_leave(original_node, updated_node)

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> Any:
        decided = self._switch.decided(self._source, original_node.test)
        if decided is None:
            return updated_node
        return updated_node.body if decided else updated_node.orelse

    def leave_IndentedBlock(self, original_node: Any, updated_node: Any) -> Any:
        if updated_node.body:
            return updated_node
        return self._same(original_node, updated_node.with_changes(body=[_pass()]))

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        if original_node in self._inner:
            return updated_node  # what is around it decides
        left = self._left(updated_node)
        if isinstance(left, cst.If):
            return left
        if left is None:
            return cst.RemoveFromParent()
        body: Any = left.body
        return cst.FlattenSentinel(list(body.body))

    def _left(self, node: cst.If | cst.Else) -> cst.If | cst.Else | None:
        """What is left of a condition and those after it."""
        if isinstance(node, cst.Else):
            return node
        original: Any = self.origins[node]
        decided = self._switch.decided(self._source, original.test)
        if decided:
            return self._same(original, cst.Else(node.body))
        rest = None if node.orelse is None else self._left(node.orelse)
        if decided is False or rest is node.orelse:
            return rest if decided is False else node
        return self._same(original, node.with_changes(orelse=rest))

    def _same(self, original: cst.CSTNode, node: Any) -> Any:
        self.origins[node] = original
        return node


def _pass() -> cst.SimpleStatementLine:
    return cst.SimpleStatementLine([cst.Pass()])
