"""Layout pass: chooses channels-last or contiguous activations for each part of a network.

    y = convolution(x, w)   ->   l = in_layout(x, channels_last=True); y = convolution(l, w)

Convolutions of large images run channels last, and so do those that our kernels compute; small ones
with large weights run in the default order.
Normalisation follows in rows of channels. Pools, upsampling, sums and activations keep the order of
their input. Everything else gets the default order, so images are converted only where two parts
meet.
"""

from __future__ import annotations

from typing import Any

import torch

from abele import _torch
from abele.kernels.convolutions import PATCHES, POINTWISE, WINOGRAD, kernel_of, reads_planes
from abele.ops import constant_convolution, norm_activation
from abele.ops.memory_layout import in_layout
from abele.passes._edit import editable, finished
from abele.program import Program, is_getitem, node_argument, writes

aten = torch.ops.aten

_Node = torch.fx.Node
_CONVOLUTIONS = (
    aten.convolution.default,
    aten.convolution_backward.default,
    _torch.convolution_with_activation(),
    constant_convolution.operator,
)
_NORMS = (
    norm_activation.forward,
    norm_activation.backward,
    norm_activation.of_sum,
    norm_activation.of_sum_backward,
    norm_activation.evaluation,
)

# Kernels that know channels-last images alone, and give gradients of weights in the default order.
_ALWAYS_LAST = (WINOGRAD, PATCHES, POINTWISE)

# Operators that keep the order of their images if all images have the same order.
_FOLLOWERS = {
    aten._to_copy.default,
    norm_activation.saved,
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mul.Tensor,
    aten.relu.default,
    aten.leaky_relu.default,
    aten.hardtanh.default,
    aten.silu.default,
    aten.leaky_relu_backward.default,
    aten.threshold_backward.default,
    aten._native_batch_norm_legit_no_training.default,
    aten.max_pool2d_with_indices.default,
    aten.max_pool2d_with_indices_backward.default,
    aten.avg_pool2d.default,
    aten.avg_pool2d_backward.default,
    aten.upsample_bilinear2d.default,
    aten.upsample_bilinear2d_backward.default,
    aten.upsample_nearest2d.default,
    aten.upsample_nearest2d_backward.default,
}


def channels_last(program: Program) -> Program:
    """Choose memory formats of images and insert conversions."""
    graph = editable(program)
    _Layouts(graph.graph).visit_all()
    return finished(program, graph)


def that_read_channels_last(graph: torch.fx.Graph) -> set[_Node]:
    """Return the nodes that read channels-last images.

    Args:
        graph: of a program after this pass.
    """
    layouts = _Layouts(graph)
    layouts.visit_all()
    return {node for node in graph.nodes if layouts.read_by(node)}


def _is_image(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, _Node) else None
    return isinstance(value, torch.Tensor) and value.dim() == 4


def _joins_or_cuts_channels(node: _Node) -> bool:
    """Return whether a node concatenates or slices channels; slices are not dense."""
    whole = node.target is aten.cat.default or node.target is aten.slice.Tensor
    return whole and _is_image(node) and node.args[1:2] == (1,)


def _sums(node: _Node) -> bool:
    """Return whether a node sums bfloat16 images, of which no layout has the best order."""
    return node.target is aten.sum.dim_IntList and node.meta["val"].dtype is torch.bfloat16


def prefers_channels_last(node: _Node) -> bool:
    """Return whether a convolution node should run channels-last: by kernel or sizes."""
    if kernel_of(node) in _ALWAYS_LAST or node.target is constant_convolution.operator:
        return True
    backward = node.target is aten.convolution_backward.default
    value, weight = (node.args[1], node.args[2]) if backward else node.args[:2]
    result = node.args[0] if backward else node
    pixels = value.meta["val"].numel() + result.meta["val"].numel()  # type: ignore[union-attr]
    return pixels > weight.meta["val"].numel()  # type: ignore[union-attr]


class _Layouts:
    """Propagation of channels-last layouts through a graph, with conversions."""

    def __init__(self, graph: torch.fx.Graph):
        self._graph = graph
        self._last: set[_Node] = set()
        self._converted: dict[tuple[_Node, bool], _Node] = {}

    def visit_all(self) -> None:
        """Insert layout conversions at the inputs of all nodes; idempotent."""
        for node in list(self._graph.nodes):
            if node.op == "output" or (node.op == "call_function" and not is_getitem(node)):
                self._visit(node)

    def read_by(self, node: _Node) -> bool:
        """Return whether a node reads a channels-last image."""
        return any(each in self._last for each in self._images(node))

    def _visit(self, node: _Node) -> None:
        """Convert the inputs of a node and record the layout of its results."""
        if node.target is in_layout:
            self._last.update({node} if node.args[1] else ())
        elif reads_planes(node):
            self._lay(node, False, results=False)
            self._last.add(node)
        elif node.target in _CONVOLUTIONS and _is_image(node.args[1]):
            self._lay(node, prefers_channels_last(node))
            self._keep_weights(node)
        elif node.target in _NORMS:
            self._lay(node, True)
        elif node.target in _FOLLOWERS or _joins_or_cuts_channels(node) or _sums(node):
            self._lay(node, self.read_by(node))
        else:
            self._lay(node, False, results=False)

    def _keep_weights(self, node: _Node) -> None:
        """Record that weight gradients of abele's kernels are contiguous."""
        backward = node.target is aten.convolution_backward.default
        if backward and kernel_of(node) in _ALWAYS_LAST:
            of_weight = {user for user in node.users if is_getitem(user) and user.args[1] == 1}
            self._last -= of_weight

    def _images(self, node: _Node) -> list[_Node]:
        return [each for each in node.all_input_nodes if _is_image(each)]

    def _lay(self, node: _Node, last: bool, *, results: bool = True) -> None:
        for each in self._images(node):
            # A weight may stay as it is: the library packs it anyway.
            is_weight = node.target in _CONVOLUTIONS and each is _weight(node)
            unwritten = not (writes(node) and each is node.args[0])
            if not is_weight and unwritten and (each in self._last) is not last:
                self._convert(node, each, last)
        if not (last and results):
            return
        # Gradients of weights by the library come in the order of the images.
        nodes = [node, *(user for user in node.users if is_getitem(user))]
        self._last.update(each for each in nodes if _is_image(each))

    def _convert(self, node: _Node, image: _Node, last: bool) -> None:
        new = self._converted.get((image, last))
        if new is None:
            with self._graph.inserting_before(node):
                new = self._graph.call_function(in_layout, (image, last))
            layout = torch.channels_last if last else torch.contiguous_format
            # A slice lies in something larger, its copy does not.
            val = image.meta["val"].contiguous(memory_format=layout)
            new.meta = {**image.meta, "val": val}
            self._converted[image, last] = new
            if last:
                self._last.add(new)
        node.replace_input_with(image, new)


def _weight(node: _Node) -> _Node:
    return node_argument(node, 2 if node.target is aten.convolution_backward.default else 1)
