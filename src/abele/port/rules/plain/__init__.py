"""Rules of ``--to torch``, which turn a PopTorch program into plain PyTorch on the host.

Few shapes are carried. Every name of PopTorch that none of these rules replaces is named by its
line as *manual*, and stays in the program.
"""

from __future__ import annotations

from collections.abc import Sequence

from abele.port.context import Rule
from abele.port.rules.plain import batches, models, names

#: Rules in the order in which they are applied. Options go after everything that is given them.
RULES: Sequence[Rule] = (
    Rule("Data loaders", batches.LOADER_CODES, batches.apply_loaders),
    Rule("Models", models.CODES, models.apply),
    Rule("Optimizers", names.OPTIMIZER_CODES, names.apply_optimizers),
    Rule("Operators", names.OPERATOR_CODES, names.apply_operators),
    Rule("Options", batches.OPTION_CODES, batches.apply_options),
    Rule("Remaining names", names.REMAINING_CODES, names.apply_remaining),
)
