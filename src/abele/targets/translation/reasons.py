"""Backends of the operators of a translated program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from abele.program import Program
from abele.targets.kernel_choice import BESIDE, LOOP, NOBODY, operators_of
from abele.targets.translation.groups import Unit


def kernel_choices(
    program: Program, units: Sequence[Unit], backend: Callable[[Unit], str]
) -> dict[torch.fx.Node, str]:
    """Return the backend of each operator.

    Args:
        program: after the passes of the lowering.
        units: that it was translated to.
        backend: of a unit.
    """
    chosen: dict[torch.fx.Node, str] = {}
    for unit in units:
        by = backend(unit)
        for node in (node for each in unit.operations for node in each.nodes):
            # What is beside a call only brings operands or results into their form.
            if chosen.get(node, LOOP) in BESIDE:
                chosen[node] = by
    return {node: chosen.get(node, NOBODY) for node in operators_of(program)}
