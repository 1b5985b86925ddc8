"""Who computes each operator of a program, and why: what a lowering says of itself, for reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from abele.program import Program, is_getitem

#: Who computes a view: nobody.
NOBODY = "no code"


@dataclasses.dataclass(frozen=True)
class KernelChoice:
    """Who computes an operator, and why.

    Attributes:
        by: ``torch``, ``loop``, the name of a function, or ``NOBODY``; as clocks call it.
        why: a part of a sentence.
    """

    by: str
    why: str


VIEW = KernelChoice(NOBODY, "a view: the same memory, seen otherwise")


def operators_of(program: Program) -> Iterator[torch.fx.Node]:
    """Yield the operators of a program, without those that only pick one of several results."""
    for node in program.graph.graph.nodes:
        if node.op == "call_function" and not is_getitem(node):
            yield node
