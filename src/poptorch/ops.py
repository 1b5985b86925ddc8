"""Operators and annotations that programs use inside forward, such as `for_loop` and `Block`."""

from poptorch._forward.annotations import (
    Attribute,
    MultiConv,
    NameScope,
    accessAttributes,
    getIpuTensorId,
    nop,
    recomputationCheckpoint,
    set_available_memory,
    set_overlap_for_input,
    set_overlap_for_output,
)
from poptorch._forward.blocks import (
    BeginBlock,
    Block,
    BlockFunction,
    LegacyBeginBlockFn,
    removeBlocks,
)
from poptorch._forward.cpu_op import CPU
from poptorch._forward.custom_op import custom_op, register_custom_op
from poptorch._forward.operators import (
    cond,
    ctc_beam_search_decoder,
    dynamic_slice,
    dynamic_update,
    for_loop,
    fps,
    ipu_print_tensor,
    nearest,
    serializedMatMul,
)
from poptorch._forward.running import identity_loss, isRunningOnIpu

__all__ = [
    "CPU",
    "Attribute",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "LegacyBeginBlockFn",
    "MultiConv",
    "NameScope",
    "accessAttributes",
    "cond",
    "ctc_beam_search_decoder",
    "custom_op",
    "dynamic_slice",
    "dynamic_update",
    "for_loop",
    "fps",
    "getIpuTensorId",
    "identity_loss",
    "ipu_print_tensor",
    "isRunningOnIpu",
    "nearest",
    "nop",
    "recomputationCheckpoint",
    "register_custom_op",
    "removeBlocks",
    "serializedMatMul",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
]
