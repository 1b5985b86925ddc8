"""Operators that become calls: of a template, of a kernel, or of the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from abele.targets.cpu.emitted.calls import (
    attention,
    batch_norms,
    distances,
    extremes,
    gates,
    images,
    indices,
    losses,
    matrices,
    norms,
    pooled_convolutions,
    reductions,
    shapes,
    tables,
    windows,
)

#: Takes the translator and the node, and says whether it could be translated.
Handler = Callable[[Any, torch.fx.Node], bool]

HANDLERS: dict[Any, Handler] = {
    **attention.HANDLERS,
    **distances.HANDLERS,
    **tables.HANDLERS,
    **windows.HANDLERS,
    **batch_norms.HANDLERS,
    **extremes.HANDLERS,
    **gates.HANDLERS,
    **images.HANDLERS,
    **pooled_convolutions.HANDLERS,  # more than images.HANDLERS have of the same
    **indices.HANDLERS,
    **losses.HANDLERS,
    **matrices.HANDLERS,
    **norms.HANDLERS,
    **reductions.HANDLERS,
    **shapes.HANDLERS,
}
