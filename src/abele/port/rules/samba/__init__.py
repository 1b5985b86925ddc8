"""Programs for SambaFlow: named tensors, and a session that compiles a model and runs it."""

from __future__ import annotations

from collections.abc import Sequence

from abele.port.rules import amp, blocked, clipping, devices
from abele.port.rules.rule import Rule
from abele.port.rules.samba import limits, loaders, optimizers, state, training

#: In the order in which they are applied.
RULES: Sequence[Rule] = (
    Rule("What cannot be ported", blocked.CODES, blocked.apply),
    Rule("What a session does not do", limits.CODES, limits.apply),
    Rule("Devices", devices.CODES, devices.apply),
    Rule("Data loaders", loaders.CODES, loaders.apply),
    Rule("Optimizers", optimizers.CODES, optimizers.apply),
    Rule("Limits of gradients", clipping.CODES, clipping.apply),
    Rule("Training steps", training.CODES, training.apply),
    Rule("Mixed precision", amp.CODES, amp.apply),
    Rule("Weights on the host", state.CODES, state.apply),
)
