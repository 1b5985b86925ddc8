"""Finds statements, their blocks, and the method calls in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import libcst as cst
from libcst import matchers as m

from abele.port.source import Source, findall

Statement: TypeAlias = cst.SimpleStatementLine | cst.BaseCompoundStatement
Loop: TypeAlias = cst.For | cst.While


class StepError(Exception):
    """A training step that cannot be ported, with the syntax node that is the reason."""

    def __init__(self, node: cst.CSTNode, reason: str):
        super().__init__(reason)
        self.node, self.reason = node, reason


def calls_of(node: cst.CSTNode, method: str) -> list[cst.Call]:
    """Return the calls of a method, such as ``backward``, below a syntax node."""
    pattern = m.Call(func=m.Attribute(attr=m.Name(method)))
    return [each for each in findall(node, pattern) if isinstance(each, cst.Call)]


def receiver(call: cst.Call) -> cst.BaseExpression:
    """Return the object whose method a call runs."""
    return cst.ensure_type(call.func, cst.Attribute).value


def is_call(statement: Statement) -> bool:
    """Return whether a statement consists of a single call."""
    return m.matches(statement, m.SimpleStatementLine(body=[m.Expr(m.Call())]))


def statement_of(source: Source, node: cst.CSTNode) -> Statement:
    """Return the statement that contains an expression."""
    for each in (node, *source.above(node)):
        if isinstance(each, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            return each
    raise AssertionError("an expression is in a statement")


def block_of(source: Source, statement: Statement) -> Sequence[Statement]:
    """Return the statements of the block that contains a statement.

    Blocks of ``with torch.autocast(...)`` and of timers are merged into the block around them.
    """
    parent = source.parent(statement)
    while isinstance(parent, cst.IndentedBlock):
        outer = source.parent(parent)
        if not (isinstance(outer, cst.With) and _is_transparent(source, outer)):
            break
        parent = source.parent(outer)
    assert isinstance(parent, cst.IndentedBlock | cst.Module)
    return list(statements_in(source, parent))


def statements_in(
    source: Source, block: cst.BaseSuite | cst.Module | cst.CSTNode
) -> Iterator[Statement]:
    """Return the statements of a block, including those inside ``with`` of autocast and timers."""
    assert isinstance(block, cst.IndentedBlock | cst.Module)
    for each in block.body:
        if (
            isinstance(each, cst.With)
            and _is_transparent(source, each)
            and isinstance(each.body, cst.IndentedBlock)
        ):
            yield from statements_in(source, each.body)
        elif isinstance(each, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            yield each


def _is_transparent(source: Source, statement: cst.With) -> bool:
    """Return whether a ``with`` statement leaves the results of its body unchanged."""
    return is_autocast(source, statement) or only_times(statement)


def only_times(statement: cst.With) -> bool:
    """Return whether a ``with`` statement only measures the time of its body."""
    code = cst.Module([]).code_for_node
    return all(
        isinstance(each.item, cst.Call) and bool(_TIMES.search(code(each.item.func)))
        for each in statement.items
    )


_TIMES = re.compile(r"(?i)(timing|timer|stopwatch|record_function)")


def is_autocast(source: Source, statement: cst.With) -> bool:
    """Return whether a ``with`` statement only enables or disables autocast."""
    return all(
        isinstance(each.item, cst.Call) and is_autocast_call(source, each.item)
        for each in statement.items
    )


def is_autocast_call(source: Source, call: cst.Call) -> bool:
    """Return whether a call creates an autocast context of torch."""
    name = source.imported(call.func)
    return name.startswith("torch.") and name.rpartition(".")[2] == "autocast"
