"""Kernels of the operators of a program, as a lowering reports them, with reasons."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from abele.program import Program, is_getitem

#: Who computes a view: nobody.
NOBODY = "no code"


@dataclasses.dataclass(frozen=True)
class KernelChoice:
    """The backend of an operator, and why.

    Attributes:
        by: ``torch``, ``loop``, the name of a function, or ``NOBODY``; as clocks call it.
        why: a part of a sentence.
    """

    by: str
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
    """Operators that run as one loop or one call.

    Attributes:
        what: who computes it: ``torch``, ``loop``, or the name of a function.
        nodes: what it computes of the program.
        bytes: that it reads and writes at least; None where each node's tensors say so.
    """

    what: str
    nodes: tuple[torch.fx.Node, ...]
    bytes: int | None = None


VIEW = KernelChoice(NOBODY, "a view: the same memory, seen otherwise")


def operators_of(program: Program) -> Iterator[torch.fx.Node]:
    """Yield the operators of a program, without those that only pick one of several results."""
    for node in program.graph.graph.nodes:
        if node.op == "call_function" and not is_getitem(node):
            yield node
