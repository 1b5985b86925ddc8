"""Options: plain PyTorch has none. What they say of batches goes where the batches are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind
from abele.port.analysis.parts import statement_of
from abele.port.analysis.scopes import is_method
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.edits import parsed
from abele.port.finding import Verdict
from abele.port.rules.plain import gaps
from abele.port.rules.plain.settings import settings
from abele.port.source import Source

CODES = {
    "ABP1001": (
        "Options have no counterpart: what they say of batches is in the loaders and updates, "
        "and the rest is about the device."
    ),
    "ABP1002": "The seed of options is torch's, from where it was set.",
    "ABP1003": "A function is no longer given options.",
    "ABP1007": "The option has an effect that plain PyTorch may not have: check if you need it.",
    "ABP1008": "The option changes what is computed, and plain PyTorch has nothing like it.",
    "ABP1009": "The options go where they are not followed.",
}

_GONE = "plain PyTorch has no options; batches are counted where they are made and used"
_UNKNOWN = (
    "which option {name} names is not known before the program runs: call the option by its name"
)
_SEED = (
    "torch's seed is what the host has had; what a device drew itself, such as dropout, is another "
    "stream"
)
#: Parts of models that draw random numbers.
_DRAWS = re.compile(r"(?i)dropout|bernoulli|rrelu|rand\w*_like|multinomial|gumbel")
#: Options that say how a device computes, and not what.
_NEUTRAL = frozenset(
    (
        *("deviceIterations", "gradientAccumulation", "replicationFactor", "outputMode"),
        *("anchorMode", "accumulationAndReplicationReductionType", "accumulationReductionType"),
        *("setAvailableMemoryProportion", "useIpuModel", "useIpuId", "useOfflineIpuTarget"),
        *("connectionType", "syncPattern", "autoRoundNumIPUs", "enableExecutableCaching"),
        *("enableProfiling", "logCycleCount", "enableStableNorm", "broadcastBuffers"),
        *("setExecutionStrategy", "logDir", "maxRepeatLogs", "modelName"),
        *("disableModuleNamescope", "relaxOptimizerAttributesChecks", "hostTrainingWarning"),
        *("startMode", "showCompilationProgressBar", "sourceLocationExcludes"),
        *("appendToLocationExcludes", "traceModel", "numIOTiles", "setActivationLocation"),
        *("setWeightLocation", "setOptimizerLocation", "setAccumulatorLocation"),
        *("setMeanAccumulationAndReplicationReductionStrategy", "setEngineOptions"),
        *("setPatterns", "enableFloatingPointExceptions", "setPartialsType", "clone", "toDict"),
        *("ipu", "stage", "blocks", "defaultOutputMode", "randomSeed"),
    )
)
_MANUAL = {
    "enableStochasticRounding": "half-precision weights were rounded by chance; here to nearest",
    "setAutomaticLossScaling": "gradients of half precision were scaled; torch has a GradScaler",
    "halfFloatCasting": "mixed float16 and float32 was cast in another way than torch casts it",
    "runningStatisticsAlwaysFloat": "running statistics of float16 layers were float32",
    "autocastEnabled": "the program was cast to half precision; here it is as it is written",
    "autocastPolicy": "the program was cast to half precision; here it is as it is written",
    "set": "what this option of the compiler did is not known here",
}
_BLOCKED = {
    "anchorTensor": "a tensor inside the program was returned; use a hook of torch",
    "inputReplicaGrouping": "replicas with weights of their own are several models here",
    "enableSyntheticData": "the program trained on made-up data, whatever it was given",
    "updatableNamedBuffers": "buffers were sent to the device by hand",
    "loadFromFile": (
        "which options a file has is not known before the program runs: write its lines here, as "
        "calls of these options"
    ),
    "from_json": ("text names the options here: call each option by its name"),
    "configureProcessId": "torchrun numbers processes: run the program in several by popdist",
    "disable": "one process trains or reads by itself: use torch's DataLoader and model there",
    "setEnvVarNames": "torchrun numbers processes by RANK and WORLD_SIZE",
}


def apply(context: Context) -> None:
    """Take options out."""
    for thing in context.things.all(Kind.OPTIONS):
        for each in settings(context, thing):
            if each.name in _BLOCKED:
                reason = f"{each.name}: {_BLOCKED[each.name]}"
                context.say(each.source, each.call, "ABP1008", Verdict.BLOCKED, reason)
            elif each.name not in _NEUTRAL:
                reason = _MANUAL.get(each.name, "what this option did is not known here")
                context.say(each.source, each.call, "ABP1007", Verdict.MANUAL, reason)
    for source in context.project.sources:
        for call in findall(source.module, _ASKED):
            if context.things.of(source, call.args[0].value, Kind.OPTIONS):
                context.treated.add(call.args[0].value)
                reason = _UNKNOWN.format(name=source.code(call.args[1].value))
                context.say(source, call, "ABP1008", Verdict.BLOCKED, reason)
        for node in _outermost(context, source):
            if not context.treated & {*_chain(node)}:
                _take_out(context, source, node)


_ASKED = m.Call(func=m.Name("getattr"), args=[m.Arg(), m.Arg()])


def _outermost(context: Context, source: Source) -> Iterator[cst.BaseExpression]:
    """Expressions that stand for options and are no part of one that does."""
    for node in findall(source.module, m.Name() | m.Attribute() | m.Call()):
        assert isinstance(node, cst.Name | cst.Attribute | cst.Call)
        parent = source.parent(node)
        inner = isinstance(parent, cst.Attribute | cst.Call) and _is_options(
            context, source, parent
        )
        named = isinstance(parent, cst.Attribute) and parent.attr is node
        keyword = isinstance(parent, cst.Arg) and parent.keyword is node
        if not (inner or named or keyword) and _is_options(context, source, node):
            yield node


def _chain(node: cst.BaseExpression) -> Iterator[cst.CSTNode]:
    """An expression, and what it asks or calls something of."""
    while isinstance(node, cst.Attribute | cst.Call):
        yield node
        node = node.func if isinstance(node, cst.Call) else node.value
    yield node


def _is_options(context: Context, source: Source, node: cst.BaseExpression) -> bool:
    return bool(context.things.of(source, node, Kind.OPTIONS))


def _take_out(context: Context, source: Source, node: cst.BaseExpression) -> None:
    parent = source.parent(node)
    several = source.parent(parent) if isinstance(parent, cst.Element) else None
    target = parent if several is None else source.parent(several)
    if isinstance(target, cst.Param | cst.AssignTarget):
        return  # with the argument, or the value
    if isinstance(parent, cst.Expr | cst.Assign | cst.AnnAssign) and _alone(parent):
        _remove(context, source, node)
    elif isinstance(parent, cst.Return) or _is_returned(source, parent):
        context.treated.add(node)
        context.edits(source).replace(node, "None")
        context.say(source, node, "ABP1001", Verdict.MODIFIED, _GONE)
    elif isinstance(parent, cst.Arg):
        call = cst.ensure_type(source.parent(parent), cst.Call)
        if source.imported(call.func).startswith("poptorch."):
            return  # the rule of what is called takes it out
        _not_given(context, source, node, parent, call)
    else:
        _blocked(context, source, node)


def _is_returned(source: Source, parent: cst.CSTNode | None) -> bool:
    """Whether a function returns options beside other values."""
    several = source.parent(parent) if isinstance(parent, cst.Element) else None
    return isinstance(several, cst.Tuple) and isinstance(source.parent(several), cst.Return)


def _alone(parent: cst.CSTNode) -> bool:
    """Whether a statement does nothing but set options, or give them one name."""
    return not isinstance(parent, cst.Assign) or len(parent.targets) == 1


def _remove(context: Context, source: Source, node: cst.CSTNode) -> None:
    statement = node if isinstance(node, cst.For) else statement_of(source, node)
    several = isinstance(statement, cst.SimpleStatementLine) and len(statement.body) > 1
    if several or not isinstance(statement, cst.SimpleStatementLine | cst.For):
        _blocked(context, source, node)
        return
    inside = {node, *findall(statement, m.Call())}
    seeds = {
        each.call: each
        for thing in context.things.all(Kind.OPTIONS)
        for each in settings(context, thing)
        if each.name == "randomSeed" and each.call in inside and each.call.args
    }
    context.treated.add(statement)
    if not seeds:
        gaps.remove(context, source, statement)
        context.say(source, statement, "ABP1001", Verdict.MODIFIED, _GONE)
        return
    context.edits(source).need("import torch")
    given = [context.edits(source).applied(each.call.args[0].value) for each in seeds.values()]
    texts = [f"torch.manual_seed({source.code(each)})" for each in given]

    def change(node: Any) -> Any:
        first, *others = parsed("\n".join(texts))
        first = first.with_changes(leading_lines=node.leading_lines)
        return cst.FlattenSentinel([first, *others])

    context.edits(source).change(statement, change)
    drawn = any(_DRAWS.search(each.text) for each in context.project.sources)
    verdict = Verdict.MANUAL if drawn else Verdict.MODIFIED
    context.say(source, statement, "ABP1002", verdict, _SEED)


def _not_given(
    context: Context, source: Source, node: cst.BaseExpression, given: cst.Arg, call: cst.Call
) -> None:
    """A function of the program loses the parameter and its calls the argument."""
    function = context.things.function(source, call)
    names = [] if function is None else [
        name for name, value in context.things.arguments(function, call).items() if value is node
    ]  # fmt: skip
    if function is None or not names or given.star:
        _blocked(context, source, node)
        return
    context.treated.add(given)
    reason = f"{function.name.value}() needs no options"
    context.say(source, given, "ABP1003", Verdict.MODIFIED, reason)
    context.edits(source).change(given, lambda _: cst.RemoveFromParent())
    context.edits(source).change(call, _without_last_comma)
    _without_parameter(context, function, names[0])


def _without_parameter(context: Context, function: cst.FunctionDef, name: str) -> None:
    source = context.project.source(function)
    first = 1 if is_method(function) else 0
    for param in (*function.params.params[first:], *function.params.kwonly_params):
        if param.name.value == name and param not in context.treated:
            context.treated.add(param)
            reason = f"{function.name.value}() needs no options"
            context.say(source, param, "ABP1003", Verdict.MODIFIED, reason)
            context.edits(source).change(param, lambda _: cst.RemoveFromParent())
            context.edits(source).change(function.params, _without_last_param_comma)


def _without_last_comma(call: cst.Call) -> cst.Call:
    if not call.args or not _same_line(call.args[-1].comma):
        return call
    *first, last = call.args
    return call.with_changes(args=[*first, last.with_changes(comma=cst.MaybeSentinel.DEFAULT)])


def _without_last_param_comma(params: cst.Parameters) -> cst.Parameters:
    if not params.params or params.kwonly_params or params.star_kwarg:
        return params
    *first, last = params.params
    if not _same_line(last.comma):
        return params
    return params.with_changes(params=[*first, last.with_changes(comma=cst.MaybeSentinel.DEFAULT)])


def _same_line(comma: object) -> bool:
    return isinstance(comma, cst.Comma) and not isinstance(
        comma.whitespace_after, cst.ParenthesizedWhitespace
    )


def _blocked(context: Context, source: Source, node: cst.CSTNode) -> None:
    reason = "it is not followed where these options go; give them to wrappers and loaders only"
    context.treated.add(node)
    context.say(source, node, "ABP1009", Verdict.BLOCKED, reason)
