"""Data loaders: torch's, whose batches have all rows that a call of the program took."""

from __future__ import annotations

import dataclasses

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import StepError, calls_of, statement_of
from abele.port.context import Context
from abele.port.edits import keyword
from abele.port.finding import Verdict
from abele.port.layout import laid_out
from abele.port.rules.plain import gaps, processes
from abele.port.rules.plain.settings import batches_of, require_known

CODES = {
    "ABP1301": (
        "The loader is torch's. A batch has the rows of all batches that a call took, and a last, "
        "shorter one is left out unless the loader kept it."
    ),
    "ABP1302": "A loader of torch need not be ended.",
    "ABP1309": "How many rows this loader gives a call is not known.",
}

#: The arguments of poptorch.DataLoader in their order; torch's has the first three in the same one.
_NAMES = (
    *("options", "dataset", "batch_size", "shuffle", "num_workers", "drop_last"),
    *("persistent_workers", "auto_distributed_partitioning", "mode", "async_options"),
    *("rebatched_worker_size", "batch_sampler"),
)
_GONE = frozenset(
    ("options", "auto_distributed_partitioning", "mode", "async_options", "rebatched_worker_size")
)
_IN_PLACE = 4
_SHARE = (
    "each process reads the rows that the instance read, of an order that the seed makes alike; "
    "DistributedSampler would give it others"
)


def apply(context: Context) -> None:
    """Take data loaders from torch."""
    for thing in context.things.all(Kind.LOADER):
        if thing.name == "poptorch.DataLoader" and isinstance(thing.made, cst.Call):
            try:
                _replace(context, thing, thing.made)
            except StepError as error:
                context.treated.add(thing.made)
                context.refuse(thing.source, error, "ABP1309")
    for source in context.project.sources:
        for call in calls_of(source.module, "terminate"):
            assert isinstance(call.func, cst.Attribute)
            if context.things.of(source, call.func.value, Kind.LOADER):
                gaps.remove(context, source, statement_of(source, call))
                context.say(source, call, "ABP1302", Verdict.MODIFIED, "its workers end with it")


_DROP_LAST = m.Arg(keyword=m.Name("drop_last"))


@dataclasses.dataclass
class _Argument:
    """An argument: its name, ``""`` for one with a star."""

    name: str
    argument: cst.Arg


def _named(call: cst.Call) -> list[_Argument]:
    """The arguments of a loader, each with its name."""
    arguments: list[_Argument] = []
    for index, each in enumerate(call.args):
        if each.star or (each.keyword is None and index >= len(_NAMES)):
            arguments.append(_Argument("", each))
        else:
            arguments.append(
                _Argument(_NAMES[index] if each.keyword is None else each.keyword.value, each)
            )
    return arguments


def _replace(context: Context, thing: Thing, call: cst.Call) -> None:
    arguments = _named(call)
    names = {each.name for each in arguments}
    batches = batches_of(context, thing.source, call, 0)
    require_known(context, batches, thing.source, call)
    if batches.factors and (
        ("batch_size" not in names and "" in names) or "batch_sampler" in names
    ):
        raise StepError(
            call, "an argument that is not followed chooses its batches: give it batch_size"
        )
    shared = processes.divides(context, call)
    seed = processes.seed_of(context, thing, call) if shared else []
    factors = " * ".join(batches.factors)
    context.treated |= {each.argument for each in arguments if each.name in _GONE}
    made = "torch.utils.data.DataLoader"
    context.edits(thing.source).need("import torch")
    if shared:
        made = processes.loader(context, thing.source)
        context.say(thing.source, call, "ABP1604", Verdict.MODIFIED, _SHARE)
    context.edits(thing.source).replace(call.func, made)
    context.treated.add(call.func)
    new = [keyword("batch_size", factors)] if factors and "batch_size" not in names else []
    if shared:
        new += seed
    elif _drops(arguments):
        new.append(keyword("drop_last", "True"))

    def change(node: cst.Call) -> cst.Call:
        kept = _kept(node, arguments, factors)
        if shared:  # the loader of the file has no such argument
            kept = [each for each in kept if not m.matches(each, _DROP_LAST)]
        stars = [each for each in kept if each.star]
        plain = [each for each in kept if not each.star]
        return laid_out(thing.source, call, node, [*plain, *new, *stars])

    context.edits(thing.source).change(call, change)
    reason = "torch's loader takes the same arguments, without options"
    if factors:
        reason += f"; a batch has the rows of {factors} batches, as a call took them"
    context.say(thing.source, call, "ABP1301", Verdict.MODIFIED, reason)


def _drops(arguments: list[_Argument]) -> bool:
    """Whether a loader of PopTorch with these arguments leaves a short batch out by default."""
    names = {each.name for each in arguments}
    size = next((each.argument.value for each in arguments if each.name == "batch_size"), None)
    whole = size is not None and m.matches(size, m.Name("None"))
    return not whole and not names & {"drop_last", "batch_sampler"}


def _kept(node: cst.Call, arguments: list[_Argument], factors: str) -> list[cst.Arg]:
    """The arguments that torch's loader has, by name where it has them at another place."""
    kept: list[cst.Arg] = []
    for index, (new, each) in enumerate(zip(node.args, arguments, strict=True)):
        if each.name in _GONE:
            continue
        changed = new
        if each.name == "batch_size" and factors:
            changed = new.with_changes(value=_times(new.value, factors))
        if new.keyword is None and not new.star and index >= _IN_PLACE:
            equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
            changed = changed.with_changes(keyword=cst.Name(each.name), equal=equal)
        kept.append(changed)
    return kept


def _times(size: cst.BaseExpression, factors: str) -> cst.BaseExpression:
    code = cst.Module([]).code_for_node(size)
    simple = isinstance(size, cst.Name | cst.Integer | cst.Attribute | cst.Call)
    return cst.parse_expression(f"{code if simple else f'({code})'} * {factors}")
