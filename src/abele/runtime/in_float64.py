"""Runs a program in float64: what it would compute if nothing were rounded to its own types."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from abele.program import Program, all_nodes, node_argument, returned_nodes, writes
from abele.targets.interpretation import Interpretation, Types, calls, last_uses

_HALF = (torch.float16, torch.bfloat16)
_FLOAT64 = Types(dtype=torch.float64)


def is_yardstick(program: Program) -> bool:
    """Whether float64's results say what rounding changes, and nothing else does.

    Numbers that are too large for half precision are not in float64. An update that is left out
    for their sake would be made.
    """
    values = (node.meta.get("val") for node in all_nodes(program.graph))
    return not any(isinstance(each, torch.Tensor) and each.dtype in _HALF for each in values)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor, in float64 unless it has integers."""
    return tensor.to(_FLOAT64.of(tensor.dtype), copy=True)


def run(program: Program, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return what a program returns, and write into its arguments what it writes.

    Args:
        program: is run, with torch's random numbers as they come.
        arguments: one tensor per input slot; those with fractions in float64.
    """
    graph = program.graph.graph
    writing = [node for node in graph.nodes if writes(node)]
    returned = returned_nodes(program.graph)
    kept = {*returned, *(node_argument(node, 1) for node in writing)}
    places = dict(zip(program.placeholders(), arguments, strict=True))
    run = Interpretation(program, arguments, _FLOAT64)
    nodes = calls(program)
    last = last_uses(nodes)
    with torch.no_grad():
        for node in nodes:
            run.compute(node)
            for value in last[node]:
                if value not in kept:
                    run.values.pop(value, None)
        for node in writing:
            places[node_argument(node, 0)].copy_(run.values[node_argument(node, 1)])
    return [run.values[node] for node in returned]
