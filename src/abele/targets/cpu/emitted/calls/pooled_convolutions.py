"""Convolutions whose results only a pool of 2 x 2 reads: one call, that writes a quarter of them.

    conv -> [relu ->] pool          and back:   pool -> [relu ->] conv

What lies between has no memory then. That pays where samples lie side by side in registers: the
largest of a window is found there, before samples become images again.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from abele.kernels.on_tensors import place_count
from abele.ops import few_channel_conv
from abele.targets.cpu.emitted.calls import images
from abele.targets.translation.movement import arguments
from abele.targets.translation.operations import Call

aten = torch.ops.aten

_Node = torch.fx.Node

# With fewer samples than this, images are convolved one by one.
_LEAST_BATCH = 12
# Larger ones leave the second-level cache when 16 samples lie side by side.
_MOST_PIXELS_PER_SAMPLE = 32768


@dataclasses.dataclass(frozen=True)
class Chain:
    """The nodes of one pooled convolution; those that a program lacks are None."""

    conv: _Node
    relu: _Node | None
    pool: _Node
    pool_backward: _Node | None


def convolution(translator: Any, node: _Node) -> bool:
    """``abele::few_channel_conv``, with its pool if nobody else reads its result."""
    chain = _chain(node)
    if chain is None or not _pays(chain):
        return images.convolution(translator, node)
    x, weight, bias, stride, padding = arguments(node)
    inputs = [translator.contiguous(translator.places[each]) for each in (x, weight, bias) if each]
    y = translator.new(tuple(chain.pool.meta["val"][0].shape), torch.float32)
    places = translator.new((place_count(y.shape),), torch.uint8)
    pointers = "{0}, {1}, {2}, {3}, " if bias else "{0}, {1}, nullptr, {2}, "
    pointers += f"{{{len(inputs) + 1}}}" if chain.pool_backward else "nullptr"
    slope = 0 if chain.relu else 1
    sizes = images.described(inputs[0], inputs[1], stride, padding, slope)
    text = f"status |= abele::convolve_and_pool({sizes}, {pointers}, threads)"
    made = [y, places] if chain.pool_backward else [y]
    others = tuple(each for each in (chain.relu, chain.pool) if each)
    translator.add(Call(inputs, made, text, also=others))
    translator.places |= {node: None, chain.pool: [y, places]}
    if chain.relu:
        translator.places[chain.relu] = None
    return True


def max_pool_backward(translator: Any, node: _Node) -> bool:
    """``aten.max_pool2d_with_indices_backward``, with its convolution if both are one forward."""
    grad, source, *_, indices = arguments(node)
    if translator.places[source] is not None:
        return images.max_pool_backward(translator, node)
    nodes = [node]
    while nodes[-1].target is not few_channel_conv.backward:
        nodes.append(_only(list(nodes[-1].users)))
    _, x, weight, stride, padding, mask = arguments(nodes[-1])
    reads = [translator.contiguous(translator.places[each]) for each in (grad, indices, x, weight)]
    results, pointers = images.gradients(translator, nodes[-1], mask, len(reads))
    sizes = images.described(reads[2], reads[3], stride, padding)
    text = (
        f"status |= abele::convolve_and_pool_backward({sizes}, {{0}}, {{1}}, {{2}}, {{3}}, "
        f"{pointers}, threads)"
    )
    made = [each for each in results if each is not None]
    translator.add(Call(reads, made, text, also=tuple(nodes[1:])))
    translator.places |= dict.fromkeys(nodes[:-1]) | {nodes[-1]: results}
    return True


def _chain(conv: _Node) -> Chain | None:
    """Return the ReLU and max pool after a convolution and their gradients, or None."""
    relu = _user(conv, aten.relu.default) if len(conv.users) == 1 else None
    source = relu or conv
    pool = _user(source, aten.max_pool2d_with_indices.default)
    back = _user(source, aten.max_pool2d_with_indices_backward.default)
    mask = _user(source, aten.threshold_backward.default) if relu else None
    if pool is None or set(source.users) != {each for each in (pool, back, mask) if each}:
        return None
    picked = [user for each in pool.users if each.args[1] == 1 for user in each.users]
    if not images.has_plain_windows(pool) or picked != [back] * (back is not None):
        return None
    if back is not None and not _leads_back(back, mask, source, conv):
        return None
    return Chain(conv, relu, pool, back)


def _leads_back(back: _Node, mask: _Node | None, source: _Node, conv: _Node) -> bool:
    """Return whether only the convolution's backward reads the gradients in between."""
    nodes = [back] if mask is None else [back, mask]
    if mask is not None and list(mask.args) != [back, source, 0]:
        return False
    after = [*nodes[1:], _user(nodes[-1], few_channel_conv.backward)]
    if any(list(node.users) != [user] for node, user in zip(nodes, after, strict=True)):
        return False
    last = after[-1]
    assert last is not None
    same = arguments(last)[1] is conv.args[0] and last.args[3:5] == conv.args[3:5]
    return last.args[0] is nodes[-1] and last.args.count(nodes[-1]) == 1 and same


def _user(node: _Node, target: Any) -> _Node | None:
    """Return the user of a node with this target, or None."""
    return next((user for user in node.users if user.target is target), None)


def _only(nodes: list[_Node]) -> _Node:
    (node,) = nodes
    return node


def _pays(chain: Chain) -> bool:
    x, y = (arguments(chain.conv)[0].meta["val"], chain.conv.meta["val"])
    pixels = x[0].numel() + y[0].numel()
    return x.shape[0] >= _LEAST_BATCH and pixels <= _MOST_PIXELS_PER_SAMPLE


HANDLERS = {
    few_channel_conv.forward: convolution,
    aten.max_pool2d_with_indices_backward.default: max_pool_backward,
}
