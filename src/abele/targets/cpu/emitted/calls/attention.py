"""Attention by the library kernel, for sequences whose scores fit the L2 cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from abele.kernels.binding import TYPES
from abele.ops.half_products import is_plain_attention, runs_in_bfloat16
from abele.targets.cpu.emitted.calls.products import threads_for
from abele.targets.translation.movement import arguments, options, selected
from abele.targets.translation.operations import Call
from abele.targets.translation.places import Place

aten = torch.ops.aten


def attention(translator: Any, node: torch.fx.Node) -> Any:
    """Translate unmasked ``aten._scaled_dot_product_flash_attention_for_cpu`` to a kernel call."""
    if not is_ours(node):
        return None
    q, k, v, *given = arguments(node)
    inputs = _inputs(translator, (q, k, v))
    logarithms = node.meta["val"][1]
    saved = translator.new(tuple(logarithms.shape), logarithms.dtype)
    results = [_heads(translator, node, 0), saved]
    described, threads = _described(node, inputs, given)
    steps = _steps([*inputs, results[0]])
    text = f"status |= abele::attention({described}, {steps}, {_places(5)}, {threads})"
    translator.add(Call(inputs, results, text))
    return results


def attention_backward(translator: Any, node: torch.fx.Node) -> Any:
    """Translate the backward of unmasked scaled dot product attention to a kernel call."""
    if not is_ours(node):
        return None
    grad, q, k, v, y, logarithms, *given = arguments(node)
    inputs = _inputs(translator, (grad, q, k, v, y))
    saved = translator.contiguous(translator.places[logarithms])
    results = _stacked(translator, node) or [_heads(translator, node, i) for i in range(3)]
    described, threads = _described(node, inputs[1:4], given)
    steps = _steps([*inputs, *results])
    text = f"status |= abele::attention_backward({described}, {steps}, {_places(9)}, {threads})"
    translator.add(Call([*inputs, saved], results, text))
    return results


def is_ours(node: torch.fx.Node) -> bool:
    """Return whether the library kernel computes an attention: no mask, no dropout."""
    return runs_in_bfloat16(node) or is_plain_attention(node, torch.float32)


def _inputs(translator: Any, nodes: tuple[torch.fx.Node, ...]) -> list[Place]:
    """Return query, key and value tensors, copied unless the kernel reads their layout."""
    places = [translator.places[each] for each in nodes]
    return [each if _is_readable(each) else translator.contiguous(each) for each in places]


def _is_readable(heads: Place) -> bool:
    """Return whether heads are contiguous along their depth, with even strides in 16 bits."""
    even = heads.dtype is torch.float32 or not any(each % 2 for each in heads.stride[:3])
    return even and (heads.stride[3] == 1 or heads.shape[3] == 1)


def _heads(translator: Any, node: torch.fx.Node, index: int) -> Place:
    """Allocate an attention result, in torch's layout if the kernel writes that."""
    result = translator.new_like(node, index)
    return result if _is_readable(result) else translator.new(result.shape, result.dtype)


def _stacked(translator: Any, node: torch.fx.Node) -> list[Place] | None:
    """Allocate gradients as slices of the copy that is all that reads them; None if more does.

    clone(permute(stack([of_query, of_key, of_value])))
    """
    picked = sorted(node.users, key=lambda each: arguments(each)[1])
    joined = _only_user(picked)
    permuted = _only_user([joined])
    copied = _only_user([permuted])
    targets = [getattr(each, "target", None) for each in (joined, permuted, copied)]
    if targets != [aten.stack.default, aten.permute.default, aten.clone.default]:
        return None
    assert joined is not None
    assert permuted is not None
    assert copied is not None
    value = copied.meta["val"]
    if len(picked) != 3 or arguments(joined) != (picked,) or not value.is_contiguous():
        return None
    whole = translator.new(tuple(value.shape), value.dtype)
    stride = dict(zip(arguments(permuted)[1], whole.stride, strict=True))
    shape = tuple(joined.meta["val"].shape)
    parts = Place(whole.buffer, shape, tuple(stride[dim] for dim in range(len(shape))))
    results = [selected(parts, 0, index) for index in range(3)]
    if not all(map(_is_readable, results)):
        return None
    translator.places[joined], translator.places[copied] = parts, whole
    return results


def _only_user(nodes: Sequence[torch.fx.Node | None]) -> torch.fx.Node | None:
    """Return the node that alone uses some nodes, once each; None if there are more or none."""
    users = {user for node in nodes if node is not None for user in node.users}
    return users.pop() if len(users) == 1 else None


def _described(node: torch.fx.Node, inputs: list[Place], given: list[Any]) -> tuple[str, str]:
    """Return an attention's C++ descriptor ``AbeleAttention`` and its useful thread count."""
    q, _, v = inputs
    (samples, heads, queries, depth), (keys, value_depth) = q.shape, v.shape[2:]
    scale = options(node).get("scale")
    scale = 1 / math.sqrt(depth) if scale is None else float(scale)
    causal = int(len(given) > 1 and bool(given[1]))
    sizes = f"{samples}, {heads}, {queries}, {keys}, {depth}, {value_depth}"
    adds = samples * heads * queries * keys * (depth + value_depth)
    kind = f", {TYPES[q.dtype]}" * (q.dtype is not torch.float32)
    return f"AbeleAttention{{{{{sizes}, {causal}, {scale!r}{kind}}}}}", threads_for(adds)


def _steps(places: Sequence[Place]) -> str:
    """Return the batch, head and sequence strides of attention tensors, as C++."""
    each = (", ".join(map(str, place.stride[:3])) for place in places)
    return "{{" + ", ".join(f"{{{{{steps}}}}}" for steps in each) + "}}"


def _places(count: int) -> str:
    """Return format placeholders for the pointers of ``count`` tensors."""
    return ", ".join(f"{{{number}}}" for number in range(count))


HANDLERS = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention_backward,
}
