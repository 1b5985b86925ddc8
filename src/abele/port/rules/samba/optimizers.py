"""Optimizers: those of samba.optim where it has them."""

from __future__ import annotations

import libcst as cst

from abele.port.analysis.kinds import Thing
from abele.port.context import Context
from abele.port.finding import Verdict

CODES = {
    "ABP2401": "The optimizer is samba.optim's, with the same arguments.",
    "ABP2402": "The optimizer is torch's. A session here takes it; SambaFlow does not have it.",
    "ABP2409": "The update of this optimizer cannot be compiled.",
}

#: The arguments of each in samba.optim; the first ones have torch's order.
_ARGUMENTS = {
    "SGD": ("params", "lr", "momentum", "weight_decay"),
    "Adam": ("params", "lr", "betas", "eps", "weight_decay"),
    "AdamW": ("params", "lr", "betas", "eps", "weight_decay"),
}
_BY_PLACE = {"SGD": 3, "Adam": 5, "AdamW": 5}
_HOST = frozenset(("foreach", "fused", "capturable"))  # how torch computes it on the host
_TORCH = frozenset(("SGD", "Adam", "AdamW", "RMSprop", "Adadelta", "Adagrad", "Adamax", "NAdam"))
_TOO = _TORCH | {"RAdam", "ASGD", "Rprop"}


def apply(context: Context) -> None:
    """Take optimizers from ``samba.optim``."""
    for thing, made in context.optimizers():
        name = thing.name.rpartition(".")[2]
        if not thing.name.startswith("torch.optim."):
            reason = (
                f"the update of {name} cannot be compiled: use another optimizer, such as "
                "samba.optim.AdamW"
            )
            context.say(thing.source, made, "ABP2409", Verdict.BLOCKED, reason)
        elif _fits(name, made):
            _replace(context, thing, made, name)
        elif name in _TOO:
            reason = f"torch's {name}, with these arguments, is taken as it is; SambaFlow has none"
            context.say(thing.source, made, "ABP2402", Verdict.MATCH, reason)


def is_replaced(context: Context, optimizer: Thing) -> bool:
    """Whether an optimizer is one of samba.optim."""
    return ("samba", optimizer) in context.once


def _fits(name: str, call: cst.Call) -> bool:
    """Whether samba.optim has an optimizer with these arguments."""
    if name not in _ARGUMENTS:
        return False
    for index, each in enumerate(call.args):
        if each.star or (each.keyword is None and index >= _BY_PLACE[name]):
            return False
        if each.keyword is not None and each.keyword.value not in {*_ARGUMENTS[name], *_HOST}:
            return False
    return True


def _replace(context: Context, thing: Thing, call: cst.Call, name: str) -> None:
    edits = context.edits(thing.source)
    edits.need("from sambaflow import samba")
    edits.replace(call.func, f"samba.optim.{name}")
    edits.change(call, _without_host)
    context.once.add(("samba", thing))
    reason = f"samba.optim.{name} takes the same arguments; the update is part of the program"
    context.say(thing.source, call, "ABP2401", Verdict.MODIFIED, reason)


def _without_host(node: cst.Call) -> cst.Call:
    """An optimizer without what says how the host computes it."""
    kept = [each for each in node.args if not (each.keyword and each.keyword.value in _HOST)]
    if kept and len(kept) < len(node.args):
        last = node.args[-1]
        kept[-1] = kept[-1].with_changes(
            comma=last.comma, whitespace_after_arg=last.whitespace_after_arg
        )
    return node.with_changes(args=kept)
