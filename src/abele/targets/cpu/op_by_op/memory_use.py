"""Memory use of op-by-op programs, whose kernels overwrite dead arguments."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

import torch

from abele import arena
from abele.kernels.convolutions import kernel_of, scratch_bytes
from abele.ops import norm_activation
from abele.ops.memory_layout import in_layout
from abele.passes.of_lowerings.channels_last import that_read_channels_last
from abele.program import Program, is_getitem, node_argument
from abele.program.aliasing import Liveness, aliases_of_calls
from abele.program.memory import MemoryUse, Piece
from abele.targets.cpu.op_by_op import images
from abele.targets.cpu.op_by_op.constants import packed_bytes
from abele.targets.cpu.op_by_op.registry import Lifetimes, overwritten
from abele.targets.cpu.op_by_op.updates import copies_back, is_update

aten = torch.ops.aten

_Node = torch.fx.Node


def memory_use(program: Program, *, with_inner: bool = False) -> MemoryUse:
    """Return the memory use of an op-by-op program at each step.

    Args:
        program: after the passes of its lowering.
        with_inner: include temporary memory inside torch's operators.
    """
    graph = program.graph.graph
    last = that_read_channels_last(graph)
    liveness = Liveness(graph, _Memories(graph).of)
    ours = {node for node in graph.nodes if _is_ours(node)}
    copies = [each for step, node in enumerate(graph.nodes) for each in _copies(node, step)]
    use = MemoryUse(
        basis="every result is kept until its last use, but for those written over an argument",
        nodes=tuple(graph.nodes),
        pieces=(*_pieces(graph, liveness, last), *copies),
        reserved=sum(map(packed_bytes, graph.nodes)),
        scratch=max(map(scratch_bytes, graph.nodes), default=0),
    )
    return arena.with_inner(use, ours, last) if with_inner else use


def _is_ours(node: _Node) -> bool:
    return node.target is norm_activation.backward or kernel_of(node) is not None


def _copies(node: _Node, step: int) -> Iterator[Piece]:
    """Yield the copies that library kernels make of activations that are not dense."""
    if not _is_ours(node):
        return
    for index in range(2 if node.target is aten.convolution_backward.default else 1):
        image = node_argument(node, index).meta["val"]
        if not (image.is_contiguous() or image.is_contiguous(memory_format=torch.channels_last)):
            yield Piece(node=node, first=step, last=step, size=image.nbytes, inner=True)


def _pieces(graph: torch.fx.Graph, liveness: Liveness, last: Container[_Node]) -> Iterator[Piece]:
    """Yield the memory that operations allocate, without results that alias other tensors.

    Args:
        graph: the program's graph.
        liveness: of the graph.
        last: nodes that read channels-last tensors.
    """
    picks: dict[Any, _Node] = {}
    for node in graph.nodes:
        if is_getitem(node):
            picks.setdefault(node.args, node)
    for each in liveness.ranges:
        picked = picks.get((each.node, each.result))
        if picked is not None and liveness.memory(picked) is not picked:
            continue
        size = each.size
        pools = each.node.target is aten.max_pool2d_with_indices.default
        if each.result == 1 and each.node in last and pools and images.suits_pool(each.node):
            size = each.node.meta["val"][1].numel() if images.has_places(each.node) else 0
        if size:
            yield Piece(
                node=each.node, result=each.result, first=each.first, last=each.last, size=size
            )


class _Memories:
    """Owners of each value's memory, where kernels overwrite their arguments.

    Args:
        graph: of a program after the passes of its lowering.
    """

    def __init__(self, graph: torch.fx.Graph):
        self._aliases = aliases_of_calls(graph)
        for node in graph.nodes:
            # One that changes nothing is not in a program.
            if node.target is in_layout and _copies_image(node_argument(node, 0).meta["val"]):
                self._aliases.declare(node, node)
        self._taken: dict[_Node, _Node] = {}
        lifetimes = Lifetimes(graph)
        for node in graph.nodes:
            if is_update(node):
                self._update(node)
                continue
            index, first = overwritten(node, lifetimes), _result(node, 0)
            if node.target is norm_activation.forward:
                self._norm(node, first, index)
            elif node.target is norm_activation.saved:
                kept, y, copy = (self.of(node_argument(node, index)) for index in range(3))
                if kept is y:
                    self._taken[node] = copy
            elif index is not None and first is not None:
                self._taken[first] = self.of(node_argument(node, index))

    def _norm(self, node: _Node, first: _Node | None, index: int | None) -> None:
        """Record which of a norm's argument and result is saved for backward."""
        kept, slope = _result(node, 1), node.args[7]
        argument = self.of(node_argument(node, 0))
        # With other slopes, what was below zero is lost, or cannot be told from the rest.
        if not (isinstance(slope, int | float) and slope > 0):
            if kept is not None:
                self._taken[kept] = argument
        elif first is not None:
            if index is not None:
                self._taken[first] = argument
            if kept is not None:
                self._taken[kept] = self.of(first)

    def of(self, node: _Node) -> _Node:
        """Return the node that owns a value's memory."""
        memory = self._aliases.base(node)
        while memory in self._taken:
            memory = self._taken[memory]
        return memory

    def _update(self, node: _Node) -> None:
        for copy in copies_back(node) or ():
            self._taken[node_argument(copy, 1)] = node_argument(copy, 0)


def _copies_image(image: torch.Tensor) -> bool:
    """Return whether a layout change copies a tensor; one channel or pixel has one layout."""
    has_two = image.shape[1] > 1 and image.shape[2] * image.shape[3] > 1
    return has_two or not image.is_contiguous()


def _result(node: _Node, index: int) -> _Node | None:
    """Return the ``getitem`` node of a node's result at an index, or None."""
    if not isinstance(node.meta.get("val"), tuple | list):
        return None if index else node
    return next((u for u in node.users if is_getitem(u) and u.args[1] == index), None)
