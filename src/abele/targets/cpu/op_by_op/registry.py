"""Lookup of library kernels by operator, and of dead arguments that they overwrite."""

from __future__ import annotations

import collections
from typing import Any

import torch

from abele._torch import OpOverload
from abele.ops import norm_activation
from abele.program import is_getitem, node_argument
from abele.program.aliasing import Aliases, Liveness
from abele.targets.cpu.op_by_op.constants import CONSTANT_CONVOLUTIONS
from abele.targets.cpu.op_by_op.images import KERNELS_OF_IMAGES
from abele.targets.cpu.op_by_op.kernels import OwnKernel
from abele.targets.cpu.op_by_op.norms import NORMS
from abele.targets.cpu.op_by_op.updates import UPDATES

_Node = torch.fx.Node

_BY_OPERATOR = collections.defaultdict[Any, list[OwnKernel]](list)
for _each in (*KERNELS_OF_IMAGES, *CONSTANT_CONVOLUTIONS, *NORMS, *UPDATES):
    _BY_OPERATOR[_each.operator].append(_each)


def own_kernel(node: _Node) -> OwnKernel | None:
    """Return the library kernel that computes a node, or None if torch does."""
    rows = _BY_OPERATOR.get(node.target, ())
    return next((row for row in rows if row.suits(node)), None)


class Lifetimes:
    """Last uses of each value's memory by library kernels."""

    def __init__(self, graph: torch.fx.Graph):
        self._aliases = Aliases()
        self._liveness = Liveness(graph, self._memory)
        # A normalisation may keep its argument for backward.
        self._kept: dict[_Node, int] = {}
        for node in reversed(graph.nodes):
            if node.target is norm_activation.forward:
                memory = self._liveness.memory(node_argument(node, 0))
                self._kept[memory] = max(self._last(memory), self._last(node))

    def position(self, node: _Node) -> int:
        """Return the index of a node in graph order."""
        return self._liveness.position(node)

    def may_overwrite(self, node: _Node, value: _Node) -> bool:
        """Return whether ``node`` is the last use of ``value``, which owns its memory."""
        if value.op != "call_function" or self._liveness.memory(value) is not value:
            return False
        keeps = node.target is norm_activation.forward
        last = self._liveness.last_use(value) if keeps else self._last(value)
        return last == self.position(node)

    def _last(self, memory: _Node) -> int:
        return self._kept.get(memory, self._liveness.last_use(memory))

    def _memory(self, node: _Node) -> _Node:
        """Return the node that allocated the memory of a node's value."""
        memory = self._aliases.base(node)
        while is_getitem(memory):
            origin = node_argument(memory, 0)
            # What a normalisation keeps for backward is its result or its argument, and nobody
            # says which results of a loop or a branch are one.
            alone = isinstance(origin.target, OpOverload)
            if alone and origin.target is not norm_activation.forward:
                break
            memory = self._aliases.base(origin)
        return memory


def overwritten(node: _Node, lifetimes: Lifetimes) -> int | None:
    """Return the index of the argument that a node's first result overwrites, or None."""
    kernel = own_kernel(node)
    over = None if kernel is None else kernel.over
    if over is None or not lifetimes.may_overwrite(node, node_argument(node, over)):
        return None
    return over
