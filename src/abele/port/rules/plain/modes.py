"""Modes: a program keeps the one that it was compiled in, a module has the last one."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import Statement, calls_of, statement_of
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.rules.plain.latest import latest
from abele.port.rules.plain.trainers import bases
from abele.port.source import Source

CODES = {
    "ABP1105": (
        "A program keeps the mode that it was compiled in, a module has the one that was set last: "
        "it is set again before the loop."
    ),
}

_REASON = "the compiled program kept the mode of its first call, which is set again here"


def set_before(
    context: Context, source: Source, call: cst.Call, statement: Statement, mode: str
) -> None:
    """Set the mode of a model before the loop of its call, where the program sets another one.

    Args:
        context: the program.
        source: the file.
        call: of the model.
        statement: of the call.
        mode: ``train`` or ``eval``.
    """
    models = bases(context, source, call.func)
    if not _is_switched(context, models):
        return
    loop = next(
        (each for each in _outer(source, call) if isinstance(each, cst.For | cst.While)), statement
    )
    if loop is not statement and _touches(context, source, loop, models, mode, set()):
        loop = statement
    if _is_set(context, source, loop, models, mode) or (loop, mode) in context.once:
        return
    context.once.add((loop, mode))
    context.edits(source).before(loop, f"{source.code(call.func)}.{mode}()")
    context.say(source, loop, "ABP1105", Verdict.MODIFIED, _REASON)


def is_evaluated(context: Context, source: Source, node: cst.CSTNode, models: set[Thing]) -> bool:
    """Whether models are in evaluation mode where a node is, as far as the program has modes."""
    statement = statement_of(source, node)
    return not _is_switched(context, models) or _is_set(context, source, statement, models, "eval")


def _outer(source: Source, node: cst.CSTNode) -> list[cst.CSTNode]:
    """What is around a node in its function, innermost first."""
    outer: list[cst.CSTNode] = []
    for each in source.above(node):
        if isinstance(each, cst.FunctionDef):
            break
        outer.append(each)
    return outer


def _is_switched(context: Context, models: set[Thing]) -> bool:
    """Whether a model is set to evaluate anywhere."""
    return any(
        models & bases(context, source, call.func.value)
        for source in context.project.sources
        for call in calls_of(source.module, "eval")
        if isinstance(call.func, cst.Attribute)
    )


def _is_set(
    context: Context, source: Source, loop: cst.CSTNode, models: set[Thing], mode: str
) -> bool:
    """Whether the mode is set in the same block, or in one around it, with no other after it."""
    child = loop
    for each in source.above(loop):
        if isinstance(each, cst.IndentedBlock | cst.Module):
            earlier = list(each.body)[: list(each.body).index(child)]  # type: ignore[arg-type]
            for statement in reversed(earlier):
                last = _last(context, source, statement, models)
                if last:
                    return last == mode
        if isinstance(each, cst.FunctionDef):
            return False
        loops = cst.For | cst.While
        if isinstance(each, loops) and _touches(context, source, each, models, mode, set()):
            return False
        child = each
    return False


def _touches(
    context: Context,
    source: Source,
    node: cst.CSTNode,
    models: set[Thing],
    mode: str,
    seen: set[cst.CSTNode],
) -> bool:
    """Whether a piece of a program sets the other mode, or calls a model that has it."""
    other = "eval" if mode == "train" else "train"
    kind = Kind.INFERENCE if mode == "train" else Kind.TRAINING
    for call in findall(node, m.Call()):
        assert isinstance(call, cst.Call)
        func = call.func
        sets = isinstance(func, cst.Attribute) and func.attr.value == other
        called = func.value if isinstance(func, cst.Attribute) and sets else func
        known = latest(context, source, func, context.things.of(source, func))
        runs = any(each.kind is kind for each in known)
        if (sets or runs) and models & bases(context, source, called):
            return True
        function = context.things.function(source, call)
        if function is not None and function not in seen:
            seen.add(function)
            where = context.project.source(function)
            if _touches(context, where, function.body, models, mode, seen):
                return True
    return False


def _last(context: Context, source: Source, statement: cst.CSTNode, models: set[Thing]) -> str:
    """The mode that a statement sets last; ``""`` if none, ``perhaps`` if a condition decides."""
    modes = m.Attribute(attr=m.OneOf(m.Name("train"), m.Name("eval")))
    last = ""
    for call in findall(statement, m.Call(func=modes)):
        func = cst.ensure_type(cst.ensure_type(call, cst.Call).func, cst.Attribute)
        if models & bases(context, source, func.value):
            last = func.attr.value
    return last if not last or isinstance(statement, cst.SimpleStatementLine) else "perhaps"
