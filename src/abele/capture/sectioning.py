"""Cuts a step into its sections: forward, backward and update, which a caller runs one by one.

The step was traced as a whole, so the sections together compute what it computes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from abele import passes
from abele.capture.sections import Sectioned, gradient_of_output
from abele.program import (
    Program,
    Role,
    ancestors,
    has_effect,
    is_getitem,
    node_argument,
    returned_nodes,
    writes,
)
from abele.program.cut import Parts, cut, draws

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


def sections(sectioned: Sectioned) -> tuple[Program, ...]:
    """Cut a step into the programs ``forward``, ``backward`` and ``update``.

    What a section takes that is neither state nor given to the step, an earlier one returns under
    that name. The results of forward belong to the caller; ``update`` reads the gradients that
    ``backward`` returned.

    Args:
        sectioned: what ``capture_from_outputs`` returned.
    """
    (step,) = sectioned.captured.programs
    step = passes.run(step)  # without nodes that say nothing, less crosses the cuts
    results = len(step.outputs) - len(sectioned.captured.updated)
    seeds = [gradient_of_output(i) for i in sectioned.starts]
    parts = cut(
        step,
        _assigned(step, results, seeds),
        (FORWARD, BACKWARD, UPDATE),
        shared={i: step.outputs[i].name for i in range(results, len(step.outputs))},
        homes=dict.fromkeys(seeds, 1),
    )
    return tuple(part.program for part in parts if part.program is not None)


def _assigned(step: Program, results: int, seeds: Sequence[str]) -> Parts:
    """Place every operation in the first section that needs it."""
    nodes = [n for n in step.graph.graph.nodes if n.op not in ("placeholder", "output")]
    returned = returned_nodes(step.graph)
    late = {
        node
        for node, slot in zip(step.placeholders(), step.inputs, strict=True)
        if slot.role is Role.INPUT and slot.name in seeds
    }
    for node in nodes:
        if late.intersection(node.all_input_nodes):
            late.add(node)
    forward_nodes = _needed(step, nodes, returned[:results], late)
    backward_nodes = _needed(step, nodes, returned[results:], ())
    parts = {n: 0 if n in forward_nodes else 1 if n in backward_nodes else 2 for n in nodes}
    for index, node in enumerate(returned):  # placeholders may be returned, too
        parts.setdefault(node, 0 if index < results else 1)
    return parts


def _needed(
    step: Program,
    nodes: Sequence[torch.fx.Node],
    results: Sequence[torch.fx.Node],
    late: Collection[torch.fx.Node],
) -> set[torch.fx.Node]:
    """Collect what a section computes: its results, and all that has an order or changes the model.

    Args:
        step: the whole.
        nodes: its operations.
        results: what the section returns.
        late: what cannot be computed yet.
    """
    slots = dict(zip(step.placeholders(), step.inputs, strict=True))
    roots = {
        node
        for node in nodes
        if node not in late
        and (
            draws(node)
            or has_effect(node)
            # A buffer or an input; parameters belong to the update.
            or (writes(node) and slots[node_argument(node, 0)].role in (Role.BUFFER, Role.INPUT))
        )
    }
    roots |= set(results)
    needed = roots | ancestors(*roots)
    # A result of several values goes where its producer is.
    return needed | {n for n in nodes if is_getitem(n) and node_argument(n, 0) in needed}
