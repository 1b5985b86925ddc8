"""Operators and annotations of PopTorch inside of models."""

from __future__ import annotations

from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.parts import statement_of
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.rules.plain import gaps
from abele.port.rules.plain.returned import MARK
from abele.port.source import Source

CODES = {
    "ABP1501": "The mark of a loss is taken out, and its reduction is computed.",
    "ABP1502": "Where something is on the device, and its name there, has no meaning here.",
    "ABP1503": "The operator is one of torch's.",
    "ABP1504": "Nothing here runs on an IPU.",
}

_PLACES = "there is one device; the numbers do not change"
#: What returns its first argument, and says something to the compiler.
_FIRST = frozenset(
    (
        *("BeginBlock", "nop", "set_available_memory", "set_overlap_for_input"),
        *("set_overlap_for_output", "ipu_print_tensor", "AsynchronousDataAccessor"),
        *("recomputationCheckpoint", "LegacyBeginBlockFn"),
    )
)
_AROUND = frozenset(("Block", "MultiConv", "Attribute", "NameScope"))
_STATEMENTS = frozenset(("setLogLevel", "removeBlocks", "Block.useAutoId", "Block.start"))
_FALSE = frozenset(("isRunningOnIpu", "ipuHardwareIsAvailable"))


def apply(context: Context) -> None:
    """Replace what PopTorch has for models."""
    for source in context.project.sources:
        for call in findall(source.module, m.Call()):
            assert isinstance(call, cst.Call)
            module, _, name = source.imported(call.func).partition(".")
            if module == "poptorch":
                _replace(context, source, call, name)


def _replace(context: Context, source: Source, call: cst.Call, name: str) -> None:
    statement = statement_of(source, call)
    alone = m.matches(statement, m.SimpleStatementLine(body=[m.Expr(m.Call())])) and isinstance(
        source.parent(call), cst.Expr
    )
    if f"poptorch.{name}" == MARK:
        _loss(context, source, call)
    elif name in _STATEMENTS or (name in _FIRST and alone):
        if alone:
            context.treated.add(statement)
            gaps.remove(context, source, statement)
            context.say(source, statement, "ABP1502", Verdict.MODIFIED, _PLACES)
    elif name in _FIRST and call.args:
        _first(context, source, call, several=name == "recomputationCheckpoint")
    elif name in _AROUND or name == "BlockFunction":
        _around(context, source, call)
    elif name == "serializedMatMul":
        context.treated |= {call.func, *call.args[2:]}
        context.edits(source).need("import torch")
        context.edits(source).replace(call.func, "torch.matmul")
        context.edits(source).change(call, lambda node: _two(node))
        context.say(source, call, "ABP1503", Verdict.MODIFIED, "torch.matmul computes the same")
    elif name in _FALSE:
        context.treated.add(call)
        context.edits(source).replace(call, "False")
        reason = "nothing runs on an IPU here, so the script takes its way for hosts"
        context.say(source, call, "ABP1504", Verdict.MODIFIED, reason)


def _loss(context: Context, source: Source, call: cst.Call) -> None:
    values, how = argument(call, "x", 0), argument(call, "reduction", 1)
    how = "" if not isinstance(how, cst.SimpleString) else str(how.evaluated_value)
    if values is None or how not in ("none", "mean", "sum"):
        return  # named with everything else that is left
    context.treated |= {call.func, *(each for each in call.args if each.value is not values)}
    if how == "none":
        context.edits(source).take_out(call, lambda node: _argument(node, call, values))
        reason = "backward() begins with this loss; a loss of several values needs .sum()"
    else:
        context.edits(source).change(call, lambda node: _method(_argument(node, call, values), how))
        reason = f"the loss is the {how} of these values, as the program had it"
    context.say(source, call, "ABP1501", Verdict.MODIFIED, reason)


def _argument(node: cst.Call, call: cst.Call, value: cst.BaseExpression) -> cst.BaseExpression:
    """What has become of an argument of a call."""
    return next(
        new.value for new, old in zip(node.args, call.args, strict=True) if old.value is value
    )


def _method(value: cst.BaseExpression, name: str) -> cst.BaseExpression:
    simple = isinstance(value, cst.Name | cst.Attribute | cst.Call | cst.Subscript)
    inner = value if simple or value.lpar else value.with_changes(
        lpar=[cst.LeftParen()], rpar=[cst.RightParen()]
    )  # fmt: skip
    return cst.Call(cst.Attribute(inner, cst.Name(name)))


def _first(context: Context, source: Source, call: cst.Call, *, several: bool) -> None:
    context.treated.add(call.func)
    if several and len(call.args) > 1:
        context.edits(source).change(
            call, lambda node: cst.Tuple([cst.Element(each.value) for each in node.args])
        )
    else:
        context.treated |= set(call.args[1:])
        context.edits(source).take_out(call, lambda node: node.args[0].value)
    context.say(source, call, "ABP1502", Verdict.MODIFIED, _PLACES)


def _two(node: cst.Call) -> cst.Call:
    first, second = node.args[:2]
    return node.with_changes(args=[first, second.with_changes(comma=cst.MaybeSentinel.DEFAULT)])


def _around(context: Context, source: Source, call: cst.Call) -> None:
    """Statements under ``with poptorch.Block(...)`` stand by themselves; so do functions."""
    parent = source.parent(call)
    if isinstance(parent, cst.Decorator):
        context.treated.add(parent)
        context.edits(source).change(parent, lambda _: cst.RemoveFromParent())
        context.say(source, call, "ABP1502", Verdict.MODIFIED, _PLACES)
    around = source.parent(parent) if isinstance(parent, cst.WithItem) else None
    if isinstance(parent, cst.WithItem) and isinstance(around, cst.With):
        context.treated.add(parent)
        if around not in context.once:
            context.once.add(around)
            context.edits(source).change(around, lambda node: _open(node, around, context.treated))
        context.say(source, call, "ABP1502", Verdict.MODIFIED, _PLACES)


def _open(node: Any, around: cst.With, treated: set[cst.CSTNode]) -> Any:
    """A ``with`` statement without some of its items; without any, it is its statements."""
    if not isinstance(node, cst.With):
        return node
    pairs = zip(node.items, around.items, strict=True)
    items = [new for new, old in pairs if old not in treated]
    if items:
        items[-1] = items[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return node.with_changes(items=items)
    body: list[Any] = list(cst.ensure_type(node.body, cst.IndentedBlock).body)
    body[0] = body[0].with_changes(leading_lines=[*node.leading_lines, *body[0].leading_lines])
    return cst.FlattenSentinel(body)
