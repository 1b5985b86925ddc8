"""Products and convolutions of 16-bit tensors on the host.

Those of float16 are computed in float32 and rounded once: torch computes them 5 to 60 times as
slowly as those of float32 on processors without half arithmetic; on those with it, gradients of
convolution weights are as slow. The same bits follow on all processors.

Those of bfloat16 are oneDNN's, through torch, where the processor has instructions for them
(AVX512-BF16, AMX): they take half of the time of our float32 kernels, and their sums are float32.
Attention in bfloat16 is our kernel's, which has the same instructions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, cast

import torch

from abele.containers import is_sequence

aten = torch.ops.aten

#: Products and convolutions.
OPERATORS = frozenset(
    (
        *(aten.convolution.default, aten.convolution_backward.default, aten.mm.default),
        *(aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.mv.default),
        *(aten.addmv.default, aten.dot.default),
    )
)

# Those that compiled programs leave to oneDNN in bfloat16. With fewer FMAs, calling torch takes
# longer than what it saves.
_OF_BFLOAT16 = OPERATORS - {aten.mv.default, aten.addmv.default, aten.dot.default}
_LEAST_FMAS = 2**21

_ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default
_ATTENTION_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
# Scores of a block of queries stay in the second-level cache.
_MOST_KEYS = 1024


@functools.cache
def has_bfloat16_products() -> bool:
    """Return whether torch multiplies bfloat16 with instructions of this processor."""
    has = torch.cpu.get_capabilities().get("avx512_bf16") or has_bfloat16_tiles()
    return bool(has) and torch.backends.mkldnn.is_available()


def has_bfloat16_tiles() -> bool:
    """Return whether this processor has AMX, which oneDNN uses and our kernels do not."""
    return bool(torch.cpu.get_capabilities().get("amx_bf16"))


def runs_in_bfloat16(node: torch.fx.Node) -> bool:
    """Return whether a node of a captured program is a product or an attention in bfloat16."""
    if node.target in (_ATTENTION, _ATTENTION_BACKWARD):
        return has_bfloat16_products() and is_plain_attention(node, torch.bfloat16)
    return is_bfloat16_product(node)


def is_plain_attention(node: torch.fx.Node, dtype: torch.dtype) -> bool:
    """Return whether the library kernel computes an attention of a type: no mask, no dropout.

    In bfloat16 it multiplies pairs of numbers, so that depths of heads have to be even.
    """
    count = 5 if node.target is _ATTENTION_BACKWARD else 3
    heads: Any = node.args[:count]
    given = node.args[count + (count == 5) :]
    values = [each.meta["val"] for each in heads]
    if any(v.dtype is not dtype or v.device.type != "cpu" or not v.numel() for v in values):
        return False
    scale: Any = node.kwargs.get("scale")
    positive = scale is None or 0 < scale < math.inf  # so the largest score stays the largest
    plain = not any(given[:1]) and node.kwargs.get("attn_mask") is None
    same = len({each.shape[:2] for each in values}) == 1
    even = dtype is torch.float32 or all(each.shape[3] % 2 == 0 for each in values)
    few = all(each.shape[2] <= _MOST_KEYS for each in values)
    return same and plain and positive and even and few


def is_bfloat16_product(node: torch.fx.Node) -> bool:
    """Return whether oneDNN computes a node of a captured program in bfloat16; none with groups."""
    if node.target not in _OF_BFLOAT16 or not has_bfloat16_products():
        return False
    values = [each.meta["val"] for each in node.all_input_nodes]
    if any(each.dtype is not torch.bfloat16 or each.device.type != "cpu" for each in values):
        return False
    return _fmas(node) >= _LEAST_FMAS


def _fmas(node: torch.fx.Node) -> int:
    """Return the number of FMAs of a product or convolution, of one result of its backward."""
    given: Any = node.args
    if node.target is aten.convolution_backward.default:
        result, image, weight, transposed, groups = given[0], *given[1:3], given[7], given[9]
    elif node.target is aten.convolution.default:
        result, image, weight, transposed, groups = node, *given[:2], given[6], given[8]
    else:
        a, b = (each.meta["val"] for each in given[-2:])
        return a.numel() * b.shape[-1]
    pixels = (image if transposed else result).meta["val"].numel()
    return pixels * math.prod(weight.meta["val"].shape[1:]) if groups == 1 else 0


def is_half_product(node: torch.fx.Node) -> bool:
    """Return whether a node is a product or convolution of float16 tensors on the host."""
    if node.target not in OPERATORS:
        return False
    value = node.all_input_nodes[0].meta["val"]
    return value.dtype is torch.float16 and value.device.type == "cpu"


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a product or convolution whose float16 arguments and results are float32 inside."""

    def product(*args: Any, **kwargs: Any) -> Any:
        wide = [each.float() if _is_half(each) else each for each in args]
        if not any(map(_is_half, args)):  # interpreted in another type
            return function(*args, **kwargs)
        results = function(*wide, **kwargs)
        if is_sequence(results):
            return tuple(each if each is None else each.half() for each in results)
        return cast("torch.Tensor", results).half()

    return product


def _is_half(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float16
