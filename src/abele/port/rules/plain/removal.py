"""Helpers of the rules: remove a statement with its blank lines, and name what is left."""

from __future__ import annotations

from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.parts import is_call, statement_of
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.source import Source


def manual(context: Context, source: Source, node: cst.CSTNode, code: str, reason: str) -> None:
    """Name something that stays in the program for somebody to see to."""
    context.treated.add(node)
    context.once.add(("left", source))
    context.say(source, node, code, Verdict.MANUAL, reason)


def is_alone(source: Source, call: cst.CSTNode | None) -> bool:
    """Return whether a call is a statement by itself."""
    return (
        isinstance(call, cst.Call)
        and isinstance(source.parent(call), cst.Expr)
        and is_call(statement_of(source, call))
    )


def remove(context: Context, source: Source, statement: cst.CSTNode) -> None:
    """Remove a statement; ``settle`` gives its blank lines to the next one."""
    context.treated.add(statement)
    context.edits(source).remove(statement)
    context.once.add(("removed", statement))


def without_empty(node: Any) -> Any:
    """Remove a ``try``, or a condition without ``else``, of which no statement is left."""
    if isinstance(node, cst.Try) or (isinstance(node, cst.If) and node.orelse is None):
        body: Any = node.body.body
        if cst.Module(list(body)).code.strip() in ("", "pass"):
            return cst.RemoveFromParent()
    return node


def settle(context: Context, source: Source) -> None:
    """Give the blank lines before removed statements to the next one that stays."""
    for block in findall(source.module, m.IndentedBlock() | m.Module()):
        gap: list[cst.EmptyLine] = []
        for statement in block.body:
            lines = getattr(statement, "leading_lines", ())
            blank = [each for each in lines if each.comment is None]
            if ("removed", statement) in context.once:
                gap = max(gap, blank, key=len)
                continue
            if len(gap) > len(blank):
                context.edits(source).change(statement, _led_by(gap[len(blank) :]))
            gap = []


def _led_by(lines: list[cst.EmptyLine]) -> Any:
    def change(node: Any) -> Any:
        if not isinstance(node, cst.CSTNode):
            return node
        old: Any = getattr(node, "leading_lines", ())
        return node.with_changes(leading_lines=[*lines, *old])

    return change
