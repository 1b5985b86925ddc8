"""Choice of the programs that run operator by operator, and reasons per operator."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from abele.kernels.convolutions import POINTWISE, convolution_of, kernel_of, suits_winograd
from abele.kernels.convolutions import why as why_kernel
from abele.ops.memory_layout import in_layout
from abele.program import Program, Role, is_view, node_argument
from abele.targets.cpu.emitted.calls.convolutions import is_product_or_depthwise
from abele.targets.cpu.op_by_op.overwriting import Lifetimes, overwritten
from abele.targets.cpu.op_by_op.registry import own_kernel
from abele.targets.cpu.op_by_op.updates import copies_back, is_update
from abele.targets.kernel_choice import NOBODY, VIEW, KernelChoice, operators_of

aten = torch.ops.aten

# Images above this many bytes leave a core's cache between operations. Compiling them gains
# nothing (the convolutions stay the library's) and was seen to lose; this way keeps memory instead.
LARGE_IMAGE = 2**20
# An update of this many tensors and bytes waits for memory, whoever does it, and takes minutes to
# compile, as one kernel for each tensor.
LARGE_UPDATE, MANY_TENSORS = 2**23, 64

# A convolution of our own with fewer multiply-adds takes no longer than some calls from Python.
LEAST_WORK = 2**22
# Fewer are compiled in seconds.
LEAST_CONVOLUTIONS = 8
# So many take 10 s and more. Where each has so many multiply-adds on average, calls from Python
# cost little beside them; where half of them have a batch norm, most of what compiled code would
# join is joined by our kernels, too.
MANY_CONVOLUTIONS, MEAN_WORK = 64, 2**23

# Of large images, these are passes through memory, which our kernels make fewer.
_PASSES = (
    aten.upsample_bilinear2d.vec,
    aten.upsample_bilinear2d.default,
    aten._native_batch_norm_legit_functional.default,
)


def why(program: Program) -> str | None:
    """Why a program runs operator by operator, or ``None`` if it does not.

    Args:
        program: before any lowering pass; they change what is counted here.
    """
    convolutions, others, large, ours = _work(program)
    if not convolutions:
        return _why_update(program)
    total = sum(convolutions)
    if _enough(large, total):
        return (
            f"{len(large)} convolutions with images of {LARGE_IMAGE // 2**20} MiB and more do "
            f"{_share(large, total)} of its multiply-adds; the library runs them best, "
            "one by one, and nothing needs compiling"
        )
    if _enough(ours, sum(others)) and 4 * sum(ours) >= total:
        return (
            f"{len(ours)} convolutions of 3x3 do {_share(ours, total)} of its multiply-adds; "
            "our kernels do them faster than the library, and nothing needs compiling"
        )
    if _many(others) and 2 * _norms(program) >= len(convolutions):
        return (
            f"{len(others)} convolutions of {sum(others) / len(others) / 1e6:.0f} million "
            "multiply-adds on average, with batch norms between; compiling so many takes long and "
            "gains nothing"
        )
    return None


def has_work(program: Program) -> bool:
    """Return whether kernels that emitted code does not call have enough to do.

    Args:
        program: before any lowering pass.
    """
    return any(
        kernel_of(node) not in (None, POINTWISE) or (node.target in _PASSES and _is_large(node))
        for node in program.graph.graph.nodes
    )


def _is_large(node: torch.fx.Node) -> bool:
    """Return whether an operator reads images that exceed a core's cache."""
    image = node_argument(node, 0).meta["val"]
    return image.numel() * image.element_size() >= LARGE_IMAGE


def why_not(program: Program) -> str | None:
    """Why a program does not run operator by operator, or ``None`` if it does."""
    if why(program) is not None:
        return None
    convolutions, _, large, ours = _work(program)
    if not convolutions:
        return "it has no convolutions of float32 images, and is no large update"
    total = sum(convolutions)
    if not large and not ours:
        return "its convolutions are neither of large images nor of 3x3 that our kernels compute"
    return (
        f"{len(large)} convolutions with images of {LARGE_IMAGE // 2**20} MiB and more do "
        f"{_share(large, total)} of its multiply-adds, {len(ours)} of 3x3 for our kernels "
        f"{_share(ours, total)}; it takes {LEAST_CONVOLUTIONS} that do half, or "
        f"{MANY_CONVOLUTIONS} of some size with batch norms"
    )


class _Work(NamedTuple):
    """Multiply-adds of convolutions.

    Attributes:
        convolutions: of all.
        others: of those that are neither products nor depthwise in compiled code.
        large: of those with large images among these.
        ours: of those that only our kernels of channels-last images compute.
    """

    convolutions: list[int]
    others: list[int]
    large: list[int]
    ours: list[int]


def _work(program: Program) -> _Work:
    work = _Work([], [], [], [])
    for node in program.graph.graph.nodes:
        if node.target is not aten.convolution.default:
            continue
        result, weight = node.meta["val"], node_argument(node, 1).meta["val"]
        if result.dim() != 4 or result.dtype is not torch.float32:
            continue
        adds = result.numel() * math.prod(weight.shape[1:])
        work.convolutions.append(adds)
        if is_product_or_depthwise(node):
            continue
        work.others.append(adds)
        if math.prod(result.shape[1:]) * result.element_size() >= LARGE_IMAGE:
            work.large.append(adds)
        if adds >= LEAST_WORK and suits_winograd(node):
            work.ours.append(adds)
    return work


def _many(convolutions: list[int]) -> bool:
    enough = MEAN_WORK * len(convolutions)
    return len(convolutions) >= MANY_CONVOLUTIONS and sum(convolutions) >= enough


def _norms(program: Program) -> int:
    """Batch norms that train."""
    norm = aten._native_batch_norm_legit_functional.default
    return sum(node.target is norm for node in program.graph.graph.nodes)


def _why_update(program: Program) -> str | None:
    """Return why a program that only applies gradients runs operator by operator, or None."""
    if not any(slot.role is Role.ACCUMULATOR for slot in program.inputs):
        return None
    written = [slot for slot in program.inputs if slot.role is Role.PARAMETER and slot.mutated]
    size = sum(math.prod(slot.shape) * slot.dtype.itemsize for slot in written)
    if size < LARGE_UPDATE or len(written) < MANY_TENSORS:
        return None
    return f"it only updates {len(written)} tensors of {size / 2**20:.0f} MiB, one by one"


def _enough(work: list[int], total: int) -> bool:
    return len(work) >= LEAST_CONVOLUTIONS and 2 * sum(work) >= total


def _share(work: list[int], total: int) -> str:
    return f"{round(100 * sum(work) / total)} %"


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
    kernel = own_kernel(node)
    if kernel is not None:
        return KernelChoice(kernel.name, kernel.why)
    convolution = convolution_of(node)
    if convolution is not None:
        return KernelChoice("torch", why_kernel(convolution))
    if node.target is in_layout:
        return KernelChoice("in_layout", _LAYOUT)
    if is_view(node):
        return VIEW
    over = overwritten(node, lifetimes) is not None
    return KernelChoice("torch", _OVER if over else _TORCH)
