"""Tracing an update once per kind of parameter, and copying its nodes for the other parameters.

    update(a); update(b)   ->   trace update(a); copy its nodes with b in place of a

A model has many parameters but few distinct shapes and dtypes, and tracing an operation takes about
twenty times as long as copying its node. The nodes of an elementwise function are copied to tensors
of other shapes as well.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable, Hashable, Sequence

import torch

from abele import _torch
from abele._torch.copies import copied_node
from abele.program import has_tag

Nodes = list[torch.fx.Node]
_Layout = tuple[tuple[int, ...], tuple[int, ...]]

_COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)


class Repeats:
    """The nodes traced so far, by key and layouts of the tensors."""

    def __init__(self):
        self._traced: dict[Hashable, _Pattern] = {}

    def run(
        self, key: Hashable, function: Callable[[], None], tensors: Sequence[torch.Tensor]
    ) -> None:
        """Call ``function``, or copy what an earlier call with the same key has traced.

        Args:
            key: of everything but ``tensors`` that decides what ``function`` does.
            function: returns nothing; writes to ``tensors`` in place.
            tensors: whatever it reads or writes that another call with this key does not.
        """
        traced = [_torch.traced_node(tensor) for tensor in tensors]
        arguments = [node for node in traced if node is not None]
        if len(set(arguments)) < len(tensors):
            function()  # no trace is open, or a tensor came twice and its uses cannot be told apart
            return
        key = (key, *((t.dtype, t.device, t.dim() == 0) for t in tensors))
        exactly = (key, *((t.shape, t.stride()) for t in tensors))
        layout = _plain_layout(tensors)
        pattern = self._traced.get(exactly)
        if pattern is None and layout is not None:
            pattern = self._traced.get(key)
        if pattern is not None:
            pattern.copy(arguments, layout)
            return
        before = next(iter(reversed(_torch.traced_nodes())))
        function()
        newest = itertools.takewhile(lambda n: n is not before, reversed(_torch.traced_nodes()))
        pattern = _Pattern(arguments, list(newest)[::-1], layout)
        self._traced[exactly] = pattern
        if layout is not None and all(_is_of_elements(node, layout) for node in pattern.nodes):
            self._traced[key] = pattern


@dataclasses.dataclass(frozen=True)
class _Pattern:
    """Nodes that were traced for some tensors.

    Attributes:
        tensors: the nodes of the tensors.
        nodes: what was traced behind them.
        layout: the plain layout of the tensors, if they have one.
    """

    tensors: Nodes
    nodes: Nodes
    layout: _Layout | None

    def copy(self, tensors: Nodes, layout: _Layout | None) -> None:
        """Add the nodes once more, for other tensors."""
        # The tensors keep their nodes: reading one after the copied writes reads what was written.
        copies = dict(zip(self.tensors, tensors, strict=True))
        values: dict[torch.dtype, torch.Tensor] = {}
        for node in self.nodes:
            copies[node] = copied = copied_node(node.graph, node, lambda old: copies.get(old, old))
            if layout != self.layout and copied.meta["val"].dim():
                assert layout is not None
                _lay_out(copied, layout, values)


def _plain_layout(tensors: Sequence[torch.Tensor]) -> _Layout | None:
    """Return the shape and strides that all tensors but single numbers share, if they are plain.

    Plain means contiguous, also in the strides of dimensions of size one.
    """
    layouts = {(tuple(t.shape), t.stride()) for t in tensors if t.dim()}
    if len(layouts) != 1:
        return None
    shape, stride = layouts.pop()
    steps: list[int] = list(itertools.accumulate((1, *shape[:0:-1]), operator.mul))
    contiguous = stride == tuple(reversed(steps))
    return (shape, stride) if contiguous and min(shape) > 0 else None


def _is_of_elements(node: torch.fx.Node, layout: _Layout) -> bool:
    """Return whether a node does the same to tensors of any plain layout."""
    value = node.meta.get("val")
    if node.target not in _COPIES and not has_tag(node, torch.Tag.pointwise):
        return False
    if not isinstance(value, torch.Tensor):
        return False
    return not value.dim() or (tuple(value.shape), value.stride()) == layout


def _lay_out(node: torch.fx.Node, layout: _Layout, values: dict[torch.dtype, torch.Tensor]) -> None:
    """Give a copied node's value another layout; ``values`` keeps one tensor of each type."""
    shape, stride = layout
    before = node.meta["val"]
    if before.dtype not in values:
        with _torch.disable_proxy_modes_tracing():
            values[before.dtype] = torch.empty_strided(
                shape, stride, dtype=before.dtype, device=before.device
            )
    node.meta["val"] = values[before.dtype]
    if "tensor_meta" in node.meta:
        described = node.meta["tensor_meta"]
        node.meta["tensor_meta"] = described._replace(shape=torch.Size(shape), stride=stride)
