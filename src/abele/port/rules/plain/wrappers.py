"""Replaces calls about a wrapper: its device, its state, and how it was compiled."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import statement_of
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.rules.plain import gaps, processes
from abele.port.source import Source

CODES = {
    "ABP1111": "A plain module is not compiled or attached to a device; the line is removed.",
    "ABP1112": "A new rate of the optimizer takes effect at once.",
    "ABP1113": "The training model is given another optimizer, whose state would be the old one's.",
    "ABP1114": "A plain module does not have this: decide by hand what takes its place.",
}

_GONE = frozenset(
    (
        *("attachToDevice", "detachFromDevice", "destroy", "compile", "copyWeightsToHost"),
        *("copyWeightsToDevice", "copyWeightsToHostIfNeeded", "copyNamedBuffersToDevice"),
    )
)
_NONE = frozenset(
    (
        *("target", "executable_hash", "build_record", "exchanges", "placement"),
        *("isAttachedToDevice", "compileAndExport", "loadExecutable", "save", "report", "options"),
        *("compilationTime", "cycleCount", "getPerfCounters", "getLatency", "getHostIpuLatency"),
        *("getComputeLatency", "getIpuHostLatency", "getTensorNames", "getAnchoredTensor"),
        *("getDataLocation", "per_replica_params", "rng_state", "pipelineReport", "rewrap"),
        *("trace", "precisionReport", "copyOptimizerState", "session", "resetTimingInfo"),
    )
)
#: What a model in DistributedDataParallel does as the model itself.
_OF_BOTH = frozenset(("train", "eval", "parameters", "zero_grad", "training"))
_KINDS = (Kind.TRAINING, Kind.INFERENCE)


def apply(context: Context) -> None:
    """Take out what a module has no use for, and name what it does not have."""
    for source in context.project.sources:
        for node in findall(source.module, m.Attribute()):
            assert isinstance(node, cst.Attribute)
            things = context.things.of(source, node.value)
            if any(each.kind in _KINDS for each in things):
                _member(context, source, node)


def _member(context: Context, source: Source, node: cst.Attribute) -> None:
    name = node.attr.value
    call = source.parent(node)
    statement = statement_of(source, node)
    alone = m.matches(statement, m.SimpleStatementLine(body=[m.Expr(m.Call())])) and (
        isinstance(call, cst.Call) and isinstance(source.parent(call), cst.Expr)
    )
    if name == "setOptimizer" and isinstance(call, cst.Call) and alone:
        _set_optimizer(context, source, node, call)
    elif name == "model" and not isinstance(source.parent(node), cst.AssignTarget):
        context.edits(source).change(node, lambda each: each.value)
        _unwrap(context, source, node)
        context.say(source, node, "ABP1111", Verdict.MODIFIED, "the model is not wrapped")
    elif name == "isCompiled" and isinstance(call, cst.Call):
        context.edits(source).replace(call, "True")
        around = source.parent(call)
        if isinstance(around, cst.If):
            context.edits(source).change(around, gaps.without_empty)
        reason = "a plain module runs without being compiled"
        context.say(source, node, "ABP1111", Verdict.MODIFIED, reason)
    elif name in _GONE and alone:
        context.treated.add(statement)
        gaps.remove(context, source, statement)
        reason = f"a plain module needs no {name}"
        context.say(source, statement, "ABP1111", Verdict.MODIFIED, reason)
    elif name in _NONE | _GONE:
        reason = f"a plain module has no {name}: take this out, or ask something else"
        context.say(source, node, "ABP1114", Verdict.MANUAL, reason)
    elif name not in _OF_BOTH:
        _unwrap(context, source, node)


def _unwrap(context: Context, source: Source, node: cst.Attribute) -> None:
    """What is asked of a training model is asked of the model, not of what is around it."""
    things = context.things.of(source, node.value, Kind.TRAINING)
    if context.instances and things:
        name = processes.unwrapped(context, source)
        context.edits(source).change(
            node.value, lambda value: cst.Call(cst.Name(name), [cst.Arg(value)])
        )
        reason = "names and values are those of the model itself"
        context.say(source, node, "ABP1603", Verdict.MODIFIED, reason)


def _set_optimizer(context: Context, source: Source, node: cst.Attribute, call: cst.Call) -> None:
    statement = statement_of(source, node)
    value = call.args[0].value if call.args else None
    new: set[Thing] = set() if value is None else context.things.of(source, value, Kind.OPTIMIZER)
    trained = {
        optimizer
        for each in context.things.of(source, node.value, Kind.TRAINING)
        if isinstance(each.made, cst.Call)
        for argument in each.made.args
        for optimizer in context.things.of(each.source, argument.value, Kind.OPTIMIZER)
    }
    known = bool(new) and new <= trained
    same = isinstance(value, cst.Name | cst.Attribute) and known
    if not same:
        reason = (
            "a new optimizer would begin without the old one's momentum; change the param_groups "
            "of the one that there is"
        )
        context.say(source, call, "ABP1113", Verdict.BLOCKED, reason)
        return
    gaps.remove(context, source, statement)
    reason = "each update reads the present values of the optimizer"
    context.say(source, statement, "ABP1112", Verdict.MODIFIED, reason)
