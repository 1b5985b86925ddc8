"""Who computes each operator on a GPU, and why."""

from __future__ import annotations

import torch

from abele.targets.cuda.emitted.blocks import Blocks
from abele.targets.kernel_choice import KernelChoice
from abele.targets.translation.groups import Unit
from abele.targets.translation.operations import Foreign
from abele.targets.translation.pointwise import NAMES
from abele.targets.translation.reasons import loop_choice, types_of

_BLOCKS = "sums by blocks of threads: parts of launches with loops beside them"
_CONVOLUTIONS = "few channels: blocks of threads compute eight of some pixels, as parts of launches"
_TORCH = "torch's kernel for GPUs: what is no expression per element stays torch's"


def of_unit(unit: Unit) -> KernelChoice:
    """Return who computes a unit, and why."""
    first = unit.operations[0]
    if isinstance(first, Blocks):
        convolves = first.what.startswith(("convolution", "pointwise"))
        return KernelChoice(first.what, _CONVOLUTIONS if convolves else _BLOCKS)
    if not isinstance(first, Foreign):
        return loop_choice(unit)
    unknown = (
        set[torch.dtype]() if first.part_of is None else types_of(first.part_of).difference(NAMES)
    )
    if unknown:
        names = ", ".join(sorted(str(each).removeprefix("torch.") for each in unknown))
        return KernelChoice("torch", f"torch's kernel for GPUs: loops do not know {names}")
    return KernelChoice("torch", _TORCH)
