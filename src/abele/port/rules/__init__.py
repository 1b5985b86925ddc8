"""The porting rules, one construct each, in the order in which they are applied.

Rules that move code come last, so that the moved code includes earlier edits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from abele.port.context import Rule
from abele.port.rules import (
    blocked,
    changes,
    devices,
    distributed,
    evaluation,
    loaders,
    optimizers,
    plain,
    training,
)

RULES: Sequence[Rule] = (
    Rule("Compute modes", devices.MODE_CODES, devices.apply_modes),
    Rule("What cannot be ported", blocked.CODES, blocked.apply),
    Rule("Devices", devices.CODES, devices.apply),
    Rule("Several processes", distributed.CODES, distributed.apply),
    Rule("Data loaders", loaders.CODES, loaders.apply),
    Rule("Optimizers", optimizers.CODES, optimizers.apply),
    Rule("Limits of gradients", optimizers.LIMIT_CODES, optimizers.apply_limits),
    Rule("Training steps", training.CODES, training.apply),
    Rule("Mixed precision", devices.AMP_CODES, devices.apply_amp),
    Rule("Evaluation", evaluation.CODES, evaluation.apply),
    Rule("Schedulers", optimizers.SCHEDULER_CODES, optimizers.apply_schedulers),
    Rule("Learning rates", optimizers.RATE_CODES, optimizers.apply_rates),
    Rule("Changes between updates", changes.CODES, changes.apply),
)

#: The rules by what a program is ported to.
BY_TARGET: Mapping[str, Sequence[Rule]] = {
    "poptorch": RULES,
    "popdist": RULES,
    "torch": plain.RULES,
}

#: What each code stands for.
CODES = {
    code: text
    for rules in BY_TARGET.values()
    for rule in rules
    for code, text in rule.codes.items()
}
