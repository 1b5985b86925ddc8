"""Optimizers: those that PopTorch has are taken from it; their arguments are the same."""

from __future__ import annotations

from libcst import matchers as m

from abele.port.context import Context
from abele.port.finding import Verdict

CODES = {
    "ABP401": "The optimizer is PopTorch's, with the same arguments.",
    "ABP402": (
        "The optimizer is torch's. A training model here takes it; PopTorch on an IPU does "
        "not have it."
    ),
    "ABP409": "The update of this optimizer cannot be compiled.",
}

_POPTORCH = frozenset(("SGD", "Adam", "AdamW", "RMSprop"))
#: Accepted as they are by a training model here, but not by PopTorch.
_TORCH = frozenset(("Adadelta", "Adagrad", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop"))


def apply(context: Context) -> None:
    """Take optimizers from ``poptorch.optim``."""
    for thing, made in context.optimizers():
        name = thing.name.rpartition(".")[2]
        if thing.name.startswith("torch.optim.") and name in _POPTORCH:
            edits = context.edits(thing.source)
            edits.need("import poptorch")
            edits.replace(made.func, f"poptorch.optim.{name}")
            context.say(
                thing.source,
                made,
                "ABP401",
                Verdict.MODIFIED,
                f"poptorch.optim.{name} takes the same arguments, and more",
            )
        elif name in _TORCH:
            context.say(
                thing.source,
                made,
                "ABP402",
                Verdict.MATCH,
                f"torch's {name} is taken as it is; PopTorch on an IPU does not have it",
            )
        elif not m.matches(made, m.Call(func=m.Attribute(value=m.Attribute()))) and not (
            thing.name.startswith("poptorch.")
        ):
            context.say(
                thing.source,
                made,
                "ABP409",
                Verdict.BLOCKED,
                f"the update of {name} cannot be compiled: use another optimizer, such as Adam",
            )
