"""Choice of the programs that run operator by operator instead of as generated code."""

from __future__ import annotations

import math

import torch

from abele.kernels.convolutions import POINTWISE, kernel_of, suits_winograd
from abele.ops.half_products import is_bfloat16_product
from abele.program import Program, Role, node_argument
from abele.targets.cpu.emitted.calls.convolutions import is_product_or_depthwise

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
# cost little beside them.
MANY_CONVOLUTIONS, MEAN_WORK = 64, 2**23
#: Why a program is lowered otherwise.
WHY_NOT = (
    f"it has no {LEAST_CONVOLUTIONS} convolutions of large images, or of 3x3 that our kernels "
    "compute, that do much of its multiply-adds, and is no large update"
)

# Of large images, these are passes through memory, which our kernels make fewer.
_PASSES = (
    aten.upsample_bilinear2d.vec,
    aten.upsample_bilinear2d.default,
    aten._native_batch_norm_legit_functional.default,
)


def why(program: Program) -> str | None:
    """Return why a program runs operator by operator, or ``None`` if it does not.

    Args:
        program: before any lowering pass, because passes change the operators counted here.
    """
    total = 0  # multiply-adds of convolutions
    left, ours = list[int](), list[int]()  # those that emitted code leaves to the library, and ours
    for node in program.graph.graph.nodes:
        if node.target is not aten.convolution.default:
            continue
        result, weight = node.meta["val"], node_argument(node, 1).meta["val"]
        if result.dim() != 4 or result.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            continue
        adds = result.numel() * math.prod(weight.shape[1:])
        total += adds
        if is_product_or_depthwise(node):
            continue
        left.append(adds)
        image_bytes = math.prod(result.shape[1:]) * result.element_size()
        fast = suits_winograd(node) or is_bfloat16_product(node)
        if image_bytes >= LARGE_IMAGE or (adds >= LEAST_WORK and fast):
            ours.append(adds)
    if not total:
        return _why_update(program)
    enough = len(ours) >= LEAST_CONVOLUTIONS
    if enough and 2 * sum(ours) >= sum(left) and 4 * sum(ours) >= total:
        return (
            f"{len(ours)} convolutions of large images, or of 3x3 that our kernels compute, do "
            f"{round(100 * sum(ours) / total)} % of its multiply-adds, and nothing needs compiling"
        )
    if len(left) >= MANY_CONVOLUTIONS and sum(left) >= MEAN_WORK * len(left):
        return f"compiling its {len(left)} convolutions takes long and gains nothing"
    return None


def has_work(program: Program) -> bool:
    """Return whether library kernels that only op-by-op lowering calls have enough work.

    Args:
        program: before any lowering pass.
    """
    return any(
        kernel_of(node) not in (None, POINTWISE)
        or (node.target in _PASSES and node_argument(node, 0).meta["val"].nbytes >= LARGE_IMAGE)
        for node in program.graph.graph.nodes
    )


def _why_update(program: Program) -> str | None:
    """Return why an optimizer update runs operator by operator, or None if it does not."""
    if not any(slot.role is Role.ACCUMULATOR for slot in program.inputs):
        return None
    written = [slot for slot in program.inputs if slot.role is Role.PARAMETER and slot.mutated]
    size = sum(math.prod(slot.shape) * slot.dtype.itemsize for slot in written)
    if size < LARGE_UPDATE or len(written) < MANY_TENSORS:
        return None
    return f"it only updates {len(written)} tensors of {size / 2**20:.0f} MiB, one by one"
