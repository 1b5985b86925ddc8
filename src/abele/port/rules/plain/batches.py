"""Rules for options and data loaders: how many batches a call takes is read from the options."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import StepError, statement_of
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.edits import keyword
from abele.port.finding import Verdict
from abele.port.layout import laid_out
from abele.port.rules.plain.removal import is_alone, manual, remove
from abele.port.source import Source

OPTION_CODES = {
    "ABP1001": (
        "Options have no counterpart: what they say of batches is in the loaders and models, and "
        "the rest is about the device."
    ),
    "ABP1002": "The seed of the options becomes torch's seed at the same line.",
    "ABP1008": "The option changes what is computed, and plain PyTorch has no counterpart.",
    "ABP1009": "The options are used where they are not followed.",
}
LOADER_CODES = {
    "ABP1301": (
        "The loader is torch's. A batch has the rows of all batches that a call took, and a "
        "shorter last batch is dropped unless the loader kept it."
    ),
    "ABP1302": "A loader of torch needs no terminate().",
    "ABP1309": "How many rows this loader gives a call is not known.",
}

# -- reading options ------------------------------------------------------------------------------

_FACTORS = {"deviceIterations": "iterations", "gradientAccumulation": "parts"}
_MODES = ("outputMode", "anchorMode")
_REDUCTIONS = ("accumulationAndReplicationReductionType", "accumulationReductionType")
#: Options that say how a device computes, and not what.
_NEUTRAL = frozenset(
    (
        *("setAvailableMemoryProportion", "useIpuModel", "useIpuId", "useOfflineIpuTarget"),
        *("connectionType", "syncPattern", "autoRoundNumIPUs", "enableExecutableCaching"),
        *("enableProfiling", "logCycleCount", "enableStableNorm", "broadcastBuffers"),
        *("setExecutionStrategy", "logDir", "maxRepeatLogs", "modelName", "randomSeed"),
        *("disableModuleNamescope", "relaxOptimizerAttributesChecks", "hostTrainingWarning"),
        *("startMode", "showCompilationProgressBar", "sourceLocationExcludes", "traceModel"),
        *("appendToLocationExcludes", "numIOTiles", "setActivationLocation", "setEngineOptions"),
        *("setWeightLocation", "setOptimizerLocation", "setAccumulatorLocation", "setPatterns"),
        *("setMeanAccumulationAndReplicationReductionStrategy", "setPartialsType"),
        *("enableFloatingPointExceptions", "toDict", "ipu", "stage", "blocks"),
        *("defaultOutputMode", *_FACTORS, *_MODES, *_REDUCTIONS),
    )
)
#: Names of methods of options, and of what they return.
METHODS = _NEUTRAL - {"ipu", "stage", "blocks"} | {
    *("replicationFactor", "enableStochasticRounding", "setAutomaticLossScaling", "anchorTensor"),
    *("enableSyntheticData", "loadFromFile", "from_json"),
}
_SEVERAL = "its options divide rows and gradients among instances: do that with torch.distributed"
#: Parts of models that draw random numbers.
_DRAWS = re.compile(r"(?i)dropout|bernoulli|rrelu|rand\w*_like|multinomial|gumbel")


@dataclasses.dataclass(frozen=True)
class Batches:
    """The division of a call's rows; numbers are expressions of the program.

    Attributes:
        iterations: updates of one call.
        parts: batches whose gradients are averaged for one update.
        returns_all: results of all batches are returned, not only those of the last one.
    """

    iterations: str = "1"
    parts: str = "1"
    returns_all: bool = False

    @property
    def factors(self) -> list[str]:
        """The numbers that are not 1."""
        return [each for each in (self.iterations, self.parts) if each != "1"]


def batches_of(context: Context, source: Source, call: cst.Call, place: int) -> Batches:
    """Return how calls of a wrapper, or batches of a loader, are divided.

    Args:
        context: the program.
        source: the file of the call.
        call: makes the wrapper or loader.
        place: index of the options among its arguments.

    Raises:
        StepError: the options are not of a simple form.
    """
    options = argument(call, "options", place)
    if options is None or m.matches(options, m.Name("None")):
        return Batches()
    things = _latest(context, source, options)
    if len(things) != 1:
        reason = "it is not known which options these are: make them once, in these files"
        raise StepError(call, reason)
    (thing,) = things
    if thing.name.startswith("popdist"):
        raise StepError(call, _SEVERAL)
    numbers: dict[str, str] = {}
    returns_all = False
    for where, setting, name in _settings(context, thing):
        if name not in (*_FACTORS, *_MODES, *_REDUCTIONS, "replicationFactor"):
            continue
        value = setting.args[0].value if setting.args else None
        if value is None or _conditions(where, setting) - _conditions(thing.source, thing.made):
            raise StepError(call, f"a condition decides {name} of its options: set it once")
        code = where.code(value)
        last = code.rpartition(".")[2]
        if name in _FACTORS:
            if numbers.setdefault(_FACTORS[name], code) != code:
                raise StepError(call, f"{name} of its options is set twice: set it once")
            _require_visible(context, where, value, source, call)
        elif name in _MODES:
            returns_all = last == "All"
            if last not in ("Final", "All", "Default"):
                raise StepError(call, f"output mode {last} selects results: do that by hand")
        elif (name in _REDUCTIONS and last != "Mean") or (
            name == "replicationFactor" and last != "1"
        ):
            raise StepError(call, f"{name}({code}) of its options is not carried")
    return Batches(**numbers, returns_all=returns_all)


def _settings(context: Context, options: Thing) -> Iterator[tuple[Source, cst.Call, str]]:
    """Yield the calls of methods of some options, each with its file and the method's name."""
    for source in context.project.sources:
        for call in findall(source.module, m.Call(func=m.Attribute())):
            if options in context.things.of(source, call.func.value, Kind.OPTIONS):
                yield source, call, call.func.attr.value


def _latest(context: Context, source: Source, node: cst.BaseExpression) -> list[Thing]:
    """Return the options that an expression may be; of several in one block the latest."""
    things = list(context.things.of(source, node, Kind.OPTIONS))
    owner = context.things.owner(source, node)
    if len(things) > 1 and all(
        each.source is source
        and context.things.owner(source, each.made) is owner
        and not _conditions(source, each.made)
        for each in things
    ):
        before = [t for t in things if source.position(t.made) < source.position(node)]
        return [max(before, key=lambda each: source.position(each.made))] if before else things
    return things


def _conditions(source: Source, node: cst.CSTNode) -> set[cst.CSTNode]:
    """Return the conditions and loops around a node, without ``if __name__ == ...``."""
    kinds = (cst.If, cst.IfExp, cst.For, cst.While, cst.Try)
    main = m.If(test=m.Comparison(left=m.Name("__name__")))
    above = {each for each in source.above(node) if isinstance(each, kinds)}
    return {each for each in above if not m.matches(each, main)}


def _require_visible(
    context: Context, where: Source, value: cst.BaseExpression, source: Source, call: cst.Call
) -> None:
    """Require the names of a number to mean the same at a call.

    Raises:
        StepError: one of them is another variable there, or is assigned more than once.
    """
    for name in findall(value, m.Name()):
        here = context.things.named(source, call, name.value)
        same = where is source and here is context.things.named(where, value, name.value)
        targets = m.AssignTarget(target=m.Name(name.value)) | m.AugAssign(target=m.Name(name.value))
        if not same or len(findall(here, targets)) > 1:
            code = where.code(value)
            reason = f"{code} says how many batches a call takes: make it a constant of this file"
            raise StepError(call, reason)


# -- loaders --------------------------------------------------------------------------------------

#: Arguments of poptorch.DataLoader in their order; torch's has the first three in the same one.
_NAMES = (
    *("options", "dataset", "batch_size", "shuffle", "num_workers", "drop_last"),
    *("persistent_workers", "auto_distributed_partitioning", "mode", "async_options"),
    *("rebatched_worker_size", "batch_sampler"),
)
_GONE = frozenset(
    ("options", "auto_distributed_partitioning", "mode", "async_options", "rebatched_worker_size")
)
_IN_PLACE = 4  # arguments whose place in torch's loader is one lower


def apply_loaders(context: Context) -> None:
    """Take data loaders from torch."""
    for source in context.project.sources:
        for call in findall(source.module, m.Call()):
            if source.imported(call.func) == "poptorch.DataLoader":
                try:
                    _replace_loader(context, source, call)
                except StepError as error:
                    context.once.add(("wrapped", source))
                    manual(context, source, call, "ABP1309", error.reason)
        for call in findall(source.module, m.Call(func=m.Attribute(attr=m.Name("terminate")))):
            if is_alone(source, call) and context.things.of(source, call.func.value, Kind.LOADER):
                remove(context, source, statement_of(source, call))
                context.say(source, call, "ABP1302", Verdict.MODIFIED, "its workers end with it")


def _replace_loader(context: Context, source: Source, call: cst.Call) -> None:
    named: list[str] = []
    for index, each in enumerate(call.args):
        by_place = _NAMES[index] if index < len(_NAMES) and not each.star else ""
        named.append(each.keyword.value if each.keyword is not None else by_place)
    factors = " * ".join(batches_of(context, source, call, 0).factors)
    if factors and ("batch_sampler" in named or ("" in named and "batch_size" not in named)):
        raise StepError(call, "its batches are chosen by an argument: give it batch_size")
    size = argument(call, "batch_size", 2)
    in_rows = size is not None and m.matches(size, m.Name("None"))
    new = [keyword("batch_size", factors)] if factors and "batch_size" not in named else []
    if not in_rows and not {*named} & {"drop_last", "batch_sampler"}:
        new.append(keyword("drop_last", "True"))

    def change(node: cst.Call) -> cst.Call:
        kept: list[cst.Arg] = []
        for index, (name, each) in enumerate(zip(named, node.args, strict=True)):
            if name in _GONE:
                continue
            if name == "batch_size" and factors:
                each = each.with_changes(value=_times(each.value, factors))
            if each.keyword is None and not each.star and index >= _IN_PLACE:
                each = keyword(name, cst.Module([]).code_for_node(each.value))
            kept.append(each)
        stars = [each for each in kept if each.star]
        plain = [each for each in kept if not each.star]
        func = cst.parse_expression("torch.utils.data.DataLoader")
        return laid_out(node.with_changes(func=func), [*plain, *new, *stars])

    context.treated |= {
        call.func, *(e for n, e in zip(named, call.args, strict=True) if n in _GONE)
    }  # fmt: skip
    context.edits(source).need("import torch")
    context.edits(source).change(call, change)
    reason = "torch's loader takes the same arguments, without options"
    if factors:
        reason += f"; a batch has the rows of {factors} batches, as a call took them"
    context.say(source, call, "ABP1301", Verdict.MODIFIED, reason)


def _times(size: cst.BaseExpression, factors: str) -> cst.BaseExpression:
    code = cst.Module([]).code_for_node(size)
    simple = isinstance(size, cst.Name | cst.Integer | cst.Attribute | cst.Call)
    return cst.parse_expression(f"{code if simple else f'({code})'} * {factors}")


# -- removing options -----------------------------------------------------------------------------

_GONE_OPTIONS = "plain PyTorch has no options; loaders and models have the numbers of batches"
_SEED = "numbers that the device drew itself, such as those of dropout, are another stream"


def apply_options(context: Context) -> None:
    """Remove options, and leave None where the program passes them on."""
    for thing in context.things.all(Kind.OPTIONS):
        if thing.name.startswith("popdist"):
            manual(context, thing.source, thing.made, "ABP1009", _SEVERAL)
        for source, call, name in _settings(context, thing):
            if name not in _NEUTRAL and not _is_one_replica(name, call):
                reason = f"plain PyTorch has no {name}: write by hand what it changes"
                manual(context, source, call, "ABP1008", reason)
    for source in context.project.sources:
        if ("wrapped", source) in context.once:
            continue  # what is left of wrappers and loaders reads them
        assigned: list[cst.Assign] = []
        for node in _outermost(context, source):
            if context.treated & {node, *source.above(node), *_chain(node)}:
                continue
            parent, statement = source.parent(node), statement_of(source, node)
            if isinstance(parent, cst.Expr) and isinstance(node, cst.Call):
                _take_out(context, source, statement, node)
            elif isinstance(parent, cst.Assign) and len(parent.targets) == 1:
                assigned.append(parent)
            elif not _is_passed_on(context, source, parent):
                reason = "give these options to wrappers, loaders and functions of these files only"
                manual(context, source, node, "ABP1009", reason)
            elif not isinstance(node, cst.Name):
                context.treated.add(node)
                context.edits(source).replace(node, "None")
                context.say(source, node, "ABP1001", Verdict.MODIFIED, _GONE_OPTIONS)
        for assign in assigned:
            keep = _is_read(context, source, assign)
            if keep:
                context.treated.add(assign.value)
                context.edits(source).replace(assign.value, "None")
            _take_out(context, source, statement_of(source, assign), assign.value, keep=keep)


def _is_one_replica(name: str, call: cst.Call) -> bool:
    return name == "replicationFactor" and m.matches(call, m.Call(args=[m.Arg(m.Integer("1"))]))


def _outermost(context: Context, source: Source) -> Iterator[cst.BaseExpression]:
    """Yield expressions that stand for options and are no part of one that does."""
    for node in findall(source.module, m.Name() | m.Attribute() | m.Call()):
        parent = source.parent(node)
        if isinstance(parent, cst.Attribute | cst.Call) and context.things.of(
            source, parent, Kind.OPTIONS
        ):
            continue
        named = isinstance(parent, cst.Attribute) and parent.attr is node
        by_name = isinstance(parent, cst.Arg) and parent.keyword is node
        if not (named or by_name or isinstance(parent, cst.Param | cst.AssignTarget)) and (
            context.things.of(source, node, Kind.OPTIONS)
        ):
            yield node


def _chain(node: cst.BaseExpression) -> Iterator[cst.CSTNode]:
    while isinstance(node, cst.Attribute | cst.Call):
        node = node.func if isinstance(node, cst.Call) else node.value
        yield node


def _is_passed_on(context: Context, source: Source, parent: cst.CSTNode | None) -> bool:
    """Return whether an expression is returned, or an argument of a function of the program."""
    if isinstance(parent, cst.Element):
        parent = source.parent(source.parent(parent) or parent)
    if isinstance(parent, cst.Return):
        return True
    call = source.parent(parent) if isinstance(parent, cst.Arg) else None
    return isinstance(call, cst.Call) and (
        context.things.function(source, call) is not None
        or context.project.class_of(source, call.func) is not None
    )


def _is_read(context: Context, source: Source, assign: cst.Assign) -> bool:
    """Return whether the name of options is still read."""
    name = source.code(assign.targets[0].target)
    return any(
        source.code(each) == name
        and not context.treated & {each, *source.above(each)}
        and not isinstance(source.parent(each), cst.AssignTarget | cst.Param)
        and not m.matches(source.parent(each) or each, m.Arg(keyword=m.Name(name)))
        for each in findall(source.module, m.Attribute() if "." in name else m.Name(name))
        if assign.value not in (each, *source.above(each))
    )


_SEEDS = m.Call(func=m.Attribute(attr=m.Name("randomSeed")), args=[m.AtLeastN(n=1)])


def _take_out(
    context: Context,
    source: Source,
    statement: Any,
    node: cst.BaseExpression,
    *,
    keep: bool = False,
) -> None:
    """Remove a statement about options, unless it stays; a seed in it becomes torch's."""
    seeds = findall(node, _SEEDS)
    for each in seeds:
        context.edits(source).need("import torch")
        line = f"torch.manual_seed({source.code(each.args[0].value)})"
        context.edits(source).after(statement, line)
    if not keep:
        remove(context, source, statement)
    if not seeds:
        context.say(source, statement, "ABP1001", Verdict.MODIFIED, _GONE_OPTIONS)
        return
    drawn = any(_DRAWS.search(each.text) for each in context.project.sources)
    verdict = Verdict.MANUAL if drawn else Verdict.MODIFIED
    context.say(source, statement, "ABP1002", verdict, _SEED)
