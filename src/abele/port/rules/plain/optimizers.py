"""Optimizers: torch's, without what steers half precision and the device."""

from __future__ import annotations

import libcst as cst
from libcst import matchers as m

from abele.port.analysis.batches import argument
from abele.port.analysis.kinds import Kind, Thing
from abele.port.analysis.parts import StepError, statement_of
from abele.port.analysis.search import findall
from abele.port.context import Context
from abele.port.finding import Verdict
from abele.port.rules.plain import gaps

CODES = {
    "ABP1401": "The optimizer is torch's, with the same values.",
    "ABP1402": (
        "Scales of losses and types of accumulators are for half precision on the device, and go."
    ),
    "ABP1403": "The norm of gradients is limited by a call before the update.",
    "ABP1404": "Every value of torch's optimizers may change, so nothing has to say so.",
    "ABP1409": "torch's optimizer makes another update.",
}

_TORCH = frozenset(("SGD", "Adam", "AdamW", "RMSprop"))
_PRECISION = frozenset(
    (
        *("loss_scaling", "velocity_scaling", "use_combined_accum", "accum_type"),
        *("velocity_accum_type", "first_order_momentum_accum_type"),
        *("second_order_momentum_accum_type",),
    )
)
#: Arguments that torch's optimizers do not have, with the value by which they change nothing.
_OTHER = {
    "bias_correction": "True",
    "use_tf_variant": "False",
    "decoupled_weight_decay": "False",
    "max_weight_norm": "None",
}


def apply(context: Context) -> None:
    """Take optimizers from ``torch.optim``."""
    for thing in context.things.all(Kind.OPTIMIZER):
        if thing.name.startswith("poptorch.optim.") and isinstance(thing.made, cst.Call):
            try:
                _replace(context, thing, thing.made)
            except StepError as error:
                context.treated.add(thing.made)
                context.refuse(thing.source, error, "ABP1409")
    for source in context.project.sources:
        for node in findall(source.module, m.Attribute(attr=m.Name("variable_attrs"))):
            assert isinstance(node, cst.Attribute)
            if context.things.of(source, node.value, Kind.OPTIMIZER):
                statement = statement_of(source, node)
                gaps.remove(context, source, statement)
                reason = "every value of torch's optimizers may change"
                context.say(source, statement, "ABP1404", Verdict.MODIFIED, reason)


def _replace(context: Context, thing: Thing, call: cst.Call) -> None:
    name = thing.name.rpartition(".")[2]
    source = thing.source
    if name not in _TORCH:
        raise StepError(call, f"torch.optim has no {name}: use another optimizer, such as AdamW")
    for other, same in _OTHER.items():
        value = argument(call, other)
        if value is not None and source.code(value) not in (same, "None"):
            raise StepError(
                call, f"torch's {name} updates otherwise than this with {other}: leave that out"
            )
    rate = argument(call, "lr", 1)
    if isinstance(rate, cst.Tuple):
        raise StepError(
            call,
            "torch's optimizers take the number alone: leave out the flag that says whether it "
            "may change",
        )
    context.edits(source).need("import torch")
    context.edits(source).replace(call.func, f"torch.optim.{name}")
    context.treated.add(call.func)
    context.say(source, call, "ABP1401", Verdict.MODIFIED, f"torch.optim.{name} makes this update")
    gone = [each for each in call.args if each.keyword is not None and _is_gone(each.keyword.value)]
    context.treated |= set(gone)
    for each in gone:
        assert each.keyword is not None
        if each.keyword.value in _PRECISION:
            reason = f"{each.keyword.value} is for half precision; float32 needs none"
            context.say(source, each, "ABP1402", Verdict.MODIFIED, reason)
        elif each.keyword.value == "max_grad_norm":
            reason = "torch.nn.utils.clip_grad_norm_ limits the norm before each update"
            context.say(source, each, "ABP1403", Verdict.MODIFIED, reason)
    context.edits(source).change(call, lambda node: _without(node, call, gone))


def _is_gone(name: str) -> bool:
    return name in _PRECISION or name in _OTHER or name == "max_grad_norm"


def _without(node: cst.Call, call: cst.Call, gone: list[cst.Arg]) -> cst.Call:
    kept = [
        new
        for new, old in zip(node.args, call.args, strict=True)
        if not any(old is g for g in gone)
    ]
    if kept and len(kept) < len(node.args):
        last = node.args[-1]
        kept[-1] = kept[-1].with_changes(
            comma=last.comma, whitespace_after_arg=last.whitespace_after_arg
        )
    return node.with_changes(args=kept)
