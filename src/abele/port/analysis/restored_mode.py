"""Recognises modes that are put back: ``was = model.training``, later ``model.train(was)``."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.flow import writes
from abele.port.analysis.search import findall

_LEAVES = m.Return() | m.Break() | m.Continue() | m.Raise() | m.Yield()
_FLAG = m.Attribute(attr=m.Name("training"))
_SAVES = m.SimpleStatementLine([m.Assign([m.AssignTarget(m.Name())], _FLAG)])
_TRAIN = m.Attribute(attr=m.Name("train"))
_CALL = m.SimpleStatementLine([m.Expr(m.Call(func=_TRAIN, args=[m.Arg(m.Name(), keyword=None)]))])
_AGAIN = m.SimpleStatementLine([m.Expr(m.Call(func=_TRAIN, args=[]))])
_EVAL = m.SimpleStatementLine([m.Expr(m.Call(func=m.Attribute(attr=m.Name("eval"))))])


def saved_at(statements: Sequence[cst.CSTNode], index: int) -> int | None:
    """Where the mode is taken that a statement of a block puts back.

    Args:
        statements: of the block.
        index: of the statement.

    Returns:
        The index of the statement that takes it; None if the statement puts none back, or not for
        sure that of the same model.
    """
    restored = _restored(statements[index])
    if restored is None:
        return None
    name, model, conditional = restored
    for before in range(index - 1, -1, -1):
        each = statements[before]
        if name not in writes(each):
            continue
        between = statements[before + 1 : index]
        whole = _saved_model(each) == model and not any(findall(s, _LEAVES) for s in between)
        evaluates = any(m.matches(s, _EVAL) and _called(s) == model for s in between)
        return before if whole and (evaluates or not conditional) else None
    return None


def _restored(statement: cst.CSTNode) -> tuple[str, str, bool] | None:
    """The name of a mode, the model that gets it, and whether only where it is training."""
    if isinstance(statement, cst.Try) and statement.finalbody is not None:
        last = [*statement.finalbody.body.body]
        return _restored(last[-1]) if last else None
    if m.matches(statement, _CALL):
        call = findall(statement, m.Call())[0]
        return cst.ensure_type(call.args[0].value, cst.Name).value, _called(statement), False
    if isinstance(statement, cst.If) and isinstance(statement.test, cst.Name):
        body = [*statement.body.body]
        if statement.orelse is None and len(body) == 1 and m.matches(body[0], _AGAIN):
            return statement.test.value, _called(body[0]), True
    return None


def _saved_model(statement: cst.CSTNode) -> str:
    """The model of which a statement takes the mode."""
    if not m.matches(statement, _SAVES):
        return ""
    assign = cst.ensure_type(
        cst.ensure_type(statement, cst.SimpleStatementLine).body[0], cst.Assign
    )
    return _code(cst.ensure_type(assign.value, cst.Attribute).value)


def _called(statement: cst.CSTNode) -> str:
    """The object of which a statement calls a method."""
    return _code(cst.ensure_type(findall(statement, m.Call())[0].func, cst.Attribute).value)


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)
