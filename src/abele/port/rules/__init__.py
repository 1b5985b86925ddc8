"""The rules, one construct each, in the order in which they are applied.

Inner changes come first: what moves into another place takes the changes made to it before along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from abele.port.context import Context
from abele.port.rules import devices, evaluation, loaders, optimizers, schedulers, training


class Rule(NamedTuple):
    """A construct and what is done with it.

    Attributes:
        code: such as ``ABP101``; the first of those that it gives.
        title: of its section in the documentation.
        apply: changes a program and says what it did.
    """

    code: str
    title: str
    apply: Callable[[Context], None]


RULES: Sequence[Rule] = (
    Rule("ABP101", "Devices", devices.apply),
    Rule("ABP201", "Data loaders", loaders.apply),
    Rule("ABP401", "Optimizers", optimizers.apply),
    Rule("ABP301", "Training steps", training.apply),
    Rule("ABP501", "Evaluation", evaluation.apply),
    Rule("ABP411", "Schedulers", schedulers.apply),
)
