"""The rules, one construct each, in the order in which they are applied.

Inner changes come first: what moves into another place takes the changes made to it before along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from abele.port.context import Context
from abele.port.rules import (
    amp,
    blocked,
    checkpoints,
    clipping,
    devices,
    distributed,
    evaluation,
    loaders,
    optimizers,
    rates,
    schedulers,
    training,
)


class Rule(NamedTuple):
    """A construct and what is done with it.

    Attributes:
        title: of the construct.
        codes: that it gives, each with what it stands for.
        apply: changes a program and says what it did.
    """

    title: str
    codes: dict[str, str]
    apply: Callable[[Context], None]


RULES: Sequence[Rule] = (
    Rule("What cannot be ported", blocked.CODES, blocked.apply),
    Rule("Devices", devices.CODES, devices.apply),
    Rule("Several processes", distributed.CODES, distributed.apply),
    Rule("Data loaders", loaders.CODES, loaders.apply),
    Rule("Optimizers", optimizers.CODES, optimizers.apply),
    Rule("Limits of gradients", clipping.CODES, clipping.apply),
    Rule("Training steps", training.CODES, training.apply),
    Rule("Mixed precision", amp.CODES, amp.apply),
    Rule("Evaluation", evaluation.CODES, evaluation.apply),
    Rule("Schedulers", schedulers.CODES, schedulers.apply),
    Rule("Learning rates", rates.CODES, rates.apply),
    Rule("Checkpoints", checkpoints.CODES, checkpoints.apply),
)

#: What each code stands for.
CODES = {code: text for rule in RULES for code, text in rule.codes.items()}
