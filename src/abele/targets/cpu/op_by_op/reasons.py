"""Who computes each operator of a program that runs operator by operator, and why."""

from __future__ import annotations

import torch

from abele.kernels.convolutions import convolution_of, kernel_for, why
from abele.ops import adam
from abele.ops.memory_layout import in_layout
from abele.program import Program, is_view
from abele.targets.cpu.op_by_op import build, pools, upsampling
from abele.targets.cpu.op_by_op.convolutions import name_of
from abele.targets.cpu.op_by_op.lifetimes import Lifetimes
from abele.targets.cpu.op_by_op.updates import copies_back, is_update
from abele.targets.kernel_choice import NOBODY, VIEW, KernelChoice, operators_of

_NORM = "our kernel: a normalisation with its activation"
_UPDATE = "our kernel: all tensors in one call, each read and written once"
_POOL = "our kernel: windows of 2 x 2 side by side, in channels last"
_POOL_BACKWARD = "our kernel, where the pool was ours; else torch's call"
_UPSAMPLING = "our kernel: images twice as large, in channels last"
_LAYOUT = "brings an image into the layout of our kernels, where it is not in it already"
_SPARED = KernelChoice(NOBODY, "the update writes over its arguments, so there is nothing to copy")
_OVER = "torch's call, written over an argument that nobody needs any more"
_TORCH = "torch's call: there is no kernel of ours for it"


def kernel_choices(program: Program) -> dict[torch.fx.Node, KernelChoice]:
    """Return who computes each operator, and why.

    Args:
        program: after the passes of the lowering.
    """
    lifetimes = Lifetimes(program.graph.graph)
    choices = {node: _choice(node, lifetimes) for node in operators_of(program)}
    for node in choices:
        if is_update(node):
            choices |= dict.fromkeys(copies_back(node) or (), _SPARED)
    return choices


def _choice(node: torch.fx.Node, lifetimes: Lifetimes) -> KernelChoice:
    convolution = convolution_of(node)
    if convolution is not None:
        kernel = kernel_for(convolution)
        by = "torch" if kernel is None else name_of(convolution, kernel)
        return KernelChoice(by, why(convolution))
    if pools.is_ours(node):
        forward = node.target is torch.ops.aten.max_pool2d_with_indices.default
        name = "max_pool" if forward else "max_pool_backward"
        return KernelChoice(name, _POOL if forward else _POOL_BACKWARD)
    if upsampling.is_ours(node):
        forward = node.target is torch.ops.aten.upsample_bilinear2d.default
        return KernelChoice("upsample" if forward else "upsample_backward", _UPSAMPLING)
    if node.target in build.OURS:
        make, _ = build.OURS[node.target]
        return KernelChoice(make.__name__, _NORM)
    if is_update(node):
        return KernelChoice("adam" if node.target is adam.update else "sgd", _UPDATE)
    if node.target is in_layout:
        return KernelChoice("in_layout", _LAYOUT)
    if is_view(node):
        return VIEW
    over = build.overwritten(node, lifetimes) is not None
    return KernelChoice("torch", _OVER if over else _TORCH)
