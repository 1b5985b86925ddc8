"""Table of operators that generated code computes by calling templates or library kernels."""

from __future__ import annotations

from typing import Any

from abele.targets.cpu.emitted.calls import (
    attention,
    constant_convolutions,
    convolutions,
    indices,
    losses,
    matrices,
    norms,
    recurrent,
    reductions,
    windows,
)
from abele.targets.translation.movement import MOVES
from abele.targets.translation.translate import Handler

HANDLERS: dict[Any, Handler] = {
    **attention.HANDLERS,
    **windows.HANDLERS,
    **norms.BATCH_NORMS,
    **constant_convolutions.HANDLERS,
    **convolutions.HANDLERS,
    **indices.HANDLERS,
    **losses.HANDLERS,
    **matrices.HANDLERS,
    **norms.HANDLERS,
    **recurrent.HANDLERS,
    **reductions.HANDLERS,
    **MOVES,
}
