"""Who computes each operator of a program that was written as C++, and why."""

from __future__ import annotations

import torch

from abele.program import Program
from abele.targets.clocked import LOOP
from abele.targets.cpu.emitted import calls
from abele.targets.cpu.emitted.by_rows import ByRows
from abele.targets.cpu.emitted.calls import attention, convolutions
from abele.targets.cpu.emitted.clocked import who
from abele.targets.kernel_choice import KernelChoice
from abele.targets.translation import reasons as shared
from abele.targets.translation.groups import Unit
from abele.targets.translation.operations import Foreign
from abele.targets.translation.pointwise import RULES, TYPES

aten = torch.ops.aten

_CALLS = {
    "convolve": "few channels: our kernel is faster than the library's",
    "convolve_backward": "few channels: our kernel is faster than the library's",
    "convolve_and_pool": "only a pool of 2 x 2 reads the convolution: one kernel does both",
    "convolve_and_pool_backward": "the gradient of a pool goes to one convolution: one kernel",
    "depthwise": "a kernel for each channel: ours reads images where they lie",
    "depthwise_backward": "a kernel for each channel: ours reads images where they lie",
    "channels": "sums of channels and the loops around them: each block of channels is read once",
    "multiply": "large enough for our kernel of products in float32",
    "product": "too small for our kernel of products, or not in float32: the library's",
    "products": "too small for our kernel of products, or not in float32: the library's",
    "pool": "windows of 2 x 2 side by side: our kernel",
    "recurrent": "all time steps of the layer: our kernel",
    "recurrent_backward": "all time steps of the layer: our kernel",
    "attention": "float32 without mask and dropout: our kernel keeps scores in the cache",
    "attention_backward": "float32 without mask and dropout: our kernel keeps scores in the cache",
}
_TEMPLATE = "a template of ours, compiled for its sizes"
_ROWS = "only a loop reads the product: it runs on rows that are still in the cache"


def kernel_choices(program: Program, units: list[Unit]) -> dict[torch.fx.Node, KernelChoice]:
    """Return who computes each operator, and why.

    Args:
        program: after the passes of the lowering.
        units: that it was translated to.
    """
    return shared.kernel_choices(program, units, _of_unit)


def _of_unit(unit: Unit) -> KernelChoice:
    first, by = unit.operations[0], who(unit)
    if isinstance(first, Foreign) and first.part_of is not None:
        return KernelChoice(by, why_torch(first.part_of))
    if by == LOOP:
        return shared.loop_choice(unit)
    return KernelChoice(by, _ROWS if isinstance(unit, ByRows) else _CALLS.get(by, _TEMPLATE))


def why_torch(node: torch.fx.Node) -> str:
    """Return why an operator is called as torch has it."""
    if node.target in convolutions.OPERATORS:
        return convolutions.why_not(node) or "torch's call: the pass that replaces it did not run"
    if node.target in attention.HANDLERS:
        return "torch's call: our kernel is for float32 without mask and dropout"
    unknown = {str(t).removeprefix("torch.") for t in shared.types_of(node) if t not in TYPES}
    if unknown:
        return f"torch's call: loops do not know {', '.join(sorted(unknown))}"
    if shared.sees(node):
        return "torch's call: its argument lies so that it cannot be seen this way"
    if node.target in calls.HANDLERS or node.target in RULES:
        return "torch's call: the code for it does not cover these arguments"
    return "torch's call: no code is written for this operator"
