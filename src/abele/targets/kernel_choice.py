"""Backends of a program's operators (torch, loop, library kernel), with reasons."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from abele.program import Program, is_getitem, is_view

TORCH, LOOP = "torch", "loop"
#: The backend of a view, and of an operator of which nothing is left: none.
NOBODY = "no code"
#: Kernels that are beside others of the same operator: they add a bias, copy or pack an operand.
BESIDE = frozenset({LOOP, "abele_product_pack", "abele_product_bfloat16_pack"})

_REASONS = {
    TORCH: "torch's kernel: ours do not compute it, or are slower with these sizes",
    NOBODY: "nothing is computed: a view, or a part of what another kernel writes",
    LOOP: "an expression per element, in one loop with those that read or make the same tensors",
    "adam_update": "all tensors in one call, each read and written once",
    "attention": "float32 without mask and dropout: our kernel keeps scores in the cache",
    "channels": "sums of channels and the loops around them: each block of channels is read once",
    "column_sums": "sums by blocks of threads: parts of launches with loops beside them",
    "constant_convolution": "its weight is packed once, and what follows is part of it",
    "convolution": "few channels: blocks of threads compute eight of some pixels",
    "abele_conv": "few channels: our kernel is faster than the library's",
    "abele_conv_pool": "only a pool of 2 x 2 reads the convolution: one kernel does both",
    "abele_depthwise": "a kernel for each channel: ours reads images where they are stored",
    "direct_convolution": "few channels on large images: our kernel is faster than the library's",
    "in_layout": "converts an image to the layout of our kernels, unless it has that already",
    "abele_product": "large enough for our kernel of products in float32",
    "abele_product_bfloat16": "a constant factor: ours packs it once and rounds each result once",
    "patches_convolution": "windows side by side: our kernel computes them as a product",
    "pointwise_convolution": "1x1 with enough channels: our kernel computes it as a product",
    "product": "too small for our kernel of products, or not in float32: the library's",
    "abele_recurrent": "all time steps of the layer: our kernel",
    "sgd_update": "all tensors in one call, each read and written once",
    "winograd_convolution": "3x3 with enough channels: ours needs half of the multiplications",
}


def reason(backend: str) -> str:
    """Return the reason for an operator's backend, as part of a sentence."""
    name = backend.removesuffix("_backward").removesuffix("_forward").removesuffix("s")
    return _REASONS.get(backend, _REASONS.get(name, "a kernel of ours, for its sizes"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel: operators of a program that run as one loop or one call.

    Attributes:
        what: the backend: ``torch``, ``loop``, or the name of a function.
        nodes: the operators that it computes.
        bytes: lower bound of its memory traffic; None: the sum of its nodes' tensors.
    """

    what: str
    nodes: tuple[torch.fx.Node, ...]
    bytes: int | None = None


def operators_of(program: Program) -> Iterator[torch.fx.Node]:
    """Yield the operator nodes of a program, without ``getitem`` of tuple results."""
    for node in program.graph.graph.nodes:
        if node.op == "call_function" and not is_getitem(node):
            yield node


def by_torch(program: Program) -> dict[torch.fx.Node, str]:
    """Return torch as the backend of every operator; views have none."""
    return {each: NOBODY if is_view(each) else TORCH for each in operators_of(program)}
