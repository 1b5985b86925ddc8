"""Backends of the operators of a translated program, with reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from abele.program import Program, is_view
from abele.targets.base import BESIDE, LOOP
from abele.targets.kernel_choice import NOBODY, VIEW, KernelChoice, operators_of
from abele.targets.translation.groups import Unit
from abele.targets.translation.translate import VIEWS

_JOINED = "an expression per element, in one loop with others"
_ALONE = "an expression per element, in a loop of its own"
_NONE = KernelChoice(NOBODY, "nothing is left to be computed")


def kernel_choices(
    program: Program, units: Sequence[Unit], choice: Callable[[Unit], KernelChoice]
) -> dict[torch.fx.Node, KernelChoice]:
    """Return who computes each operator, and why.

    Args:
        program: after the passes of the lowering.
        units: that it was translated to.
        choice: who computes a unit.
    """
    chosen: dict[torch.fx.Node, KernelChoice] = {}
    for unit in units:
        of_unit = choice(unit)
        for node in nodes_of(unit):
            # What is beside a call only brings operands or results into their form.
            if node not in chosen or chosen[node].by in BESIDE:
                chosen[node] = of_unit
    return {
        node: chosen.get(node) or (VIEW if sees(node) else _NONE) for node in operators_of(program)
    }


def loop_choice(unit: Unit) -> KernelChoice:
    """Return why a unit is a loop."""
    return KernelChoice(LOOP, _JOINED if len(nodes_of(unit)) > 1 else _ALONE)


def nodes_of(unit: Unit) -> dict[torch.fx.Node, None]:
    """Return the operators that a unit computes, in order."""
    return {node: None for each in unit.operations for node in each.nodes}


def sees(node: torch.fx.Node) -> bool:
    """Return whether an operator is a view."""
    return is_view(node) or node.target in VIEWS


def types_of(node: torch.fx.Node) -> set[torch.dtype]:
    """Return the types of all tensors that an operator reads and computes."""
    values: list[Any] = [each.meta.get("val") for each in (node, *node.all_input_nodes)]
    types: set[torch.dtype] = set()
    for value in values:
        several = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
        types |= {each.dtype for each in several if isinstance(each, torch.Tensor)}
    return types
