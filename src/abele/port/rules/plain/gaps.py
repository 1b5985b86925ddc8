"""Removes statements, and keeps the empty lines before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.source import Source


def remove(context: Context, source: Source, statement: cst.CSTNode) -> None:
    """Take a statement out."""
    context.edits(source).remove(statement)
    context.once.add(("removed", statement))


def without_empty(node: Any) -> Any:
    """Take out a condition, or a ``try``, of which the last statement was removed."""
    if isinstance(node, cst.Try) or (isinstance(node, cst.If) and node.orelse is None):
        body: Any = node.body.body
        if cst.Module(list(body)).code.strip() in ("", "pass"):
            return cst.RemoveFromParent()
    return node


def settle(context: Context) -> None:
    """Give the empty lines before statements that go to the next one that stays."""
    for source in context.project.sources:
        for block in findall(source.module, m.IndentedBlock() | m.Module()):
            assert isinstance(block, cst.IndentedBlock | cst.Module)
            _settle(context, source, block.body)


def _settle(context: Context, source: Source, body: Sequence[Any]) -> None:
    gap: list[cst.EmptyLine] = []
    for statement in body:
        lines = getattr(statement, "leading_lines", ())
        before = [each for each in lines if each.comment is None]
        if ("removed", statement) in context.once:
            gap = max(gap, before, key=len)
        else:
            if len(gap) > len(before):
                context.edits(source).change(statement, _with(gap[len(before) :]))
            gap = []


def _with(lines: Sequence[cst.EmptyLine]) -> Any:
    def change(node: Any) -> Any:
        if not isinstance(node, cst.CSTNode):
            return node
        old: Any = getattr(node, "leading_lines", ())
        return node.with_changes(leading_lines=[*lines, *old])

    return change
