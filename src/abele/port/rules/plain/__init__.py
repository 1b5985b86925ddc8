"""The way back: a PopTorch program becomes one of plain PyTorch, on the host."""

from __future__ import annotations

from collections.abc import Sequence

from abele.port.rules.plain import (
    inference,
    instances,
    leftovers,
    loaders,
    modes,
    operators,
    optimizers,
    options,
    updates,
    wrappers,
)
from abele.port.rules.rule import Rule

#: In the order in which they are applied: what is left comes last.
RULES: Sequence[Rule] = (
    Rule("Instances", instances.CODES, instances.apply),
    Rule("Options", options.CODES, options.apply),
    Rule("Data loaders", loaders.CODES, loaders.apply),
    Rule("Optimizers", optimizers.CODES, optimizers.apply),
    Rule("Operators", operators.CODES, operators.apply),
    Rule("Training models", updates.CODES | modes.CODES, updates.apply),
    Rule("Inference models", inference.CODES, inference.apply),
    Rule("Wrappers", wrappers.CODES, wrappers.apply),
    Rule("What is left", leftovers.CODES, leftovers.apply),
)
