"""Operators that become calls: of a template, of a kernel, or of the library."""

from __future__ import annotations

from typing import Any

from abele.targets.cpu.emitted.calls import (
    attention,
    batch_norms,
    convolutions,
    distances,
    extremes,
    images,
    indices,
    losses,
    matrices,
    norms,
    pooled_convolutions,
    recurrent,
    reductions,
    tables,
    windows,
)
from abele.targets.translation.dialect import Handler
from abele.targets.translation.moves import gates, shapes

HANDLERS: dict[Any, Handler] = {
    **attention.HANDLERS,
    **distances.HANDLERS,
    **tables.HANDLERS,
    **windows.HANDLERS,
    **batch_norms.HANDLERS,
    **convolutions.HANDLERS,
    **extremes.HANDLERS,
    **gates.HANDLERS,
    **images.HANDLERS,
    **pooled_convolutions.HANDLERS,  # more than images.HANDLERS have of the same
    **indices.HANDLERS,
    **losses.HANDLERS,
    **matrices.HANDLERS,
    **norms.HANDLERS,
    **recurrent.HANDLERS,
    **reductions.HANDLERS,
    **shapes.HANDLERS,
}
