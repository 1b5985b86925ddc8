"""Values that the operation that reads them last overwrites."""

from __future__ import annotations

from typing import Any

import torch

from abele._torch import OpOverload
from abele.ops import norm_activation
from abele.program import is_getitem, node_argument
from abele.program.aliasing import Aliases, Liveness
from abele.targets.cpu.op_by_op.registry import own_kernel

aten = torch.ops.aten

_Node = torch.fx.Node


class Lifetimes:
    """Last uses of the memory of each value, as our kernels use it."""

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
        """Return the index of a node in the order of the graph."""
        return self._liveness.position(node)

    def may_overwrite(self, node: _Node, value: _Node) -> bool:
        """Return whether ``node`` is the last to need ``value``, which owns its memory."""
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


#: Operators whose result may take the place of an argument of the same shape and type.
IN_PLACE: dict[Any, tuple[Any, tuple[int, ...]]] = {
    aten.add.Tensor: (aten.add_.Tensor, (0, 1)),
    aten.relu.default: (aten.relu_.default, (0,)),
    aten.leaky_relu.default: (aten.leaky_relu_.default, (0,)),
}


def overwritten(node: _Node, lifetimes: Lifetimes) -> int | None:
    """Index of the argument over which a node's first result is written; None if over none."""
    kernel = own_kernel(node)
    if kernel is not None:
        over = kernel.over
        return over if over is not None and _is_free(node, over, lifetimes) else None
    if node.target not in IN_PLACE or node.kwargs:
        return None
    result = node.meta["val"]
    for index in IN_PLACE[node.target][1]:
        value = node.args[index]
        if not isinstance(value, _Node) or not _is_free(node, index, lifetimes):
            continue
        argument = value.meta["val"]
        if argument.shape == result.shape and argument.dtype == result.dtype:
            return index
    return None


def _is_free(node: _Node, index: int, lifetimes: Lifetimes) -> bool:
    return lifetimes.may_overwrite(node, node_argument(node, index))
