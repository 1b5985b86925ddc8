"""Every operation and annotation that programs use inside forward."""

from poptorch._forward.annotations import (
    Attribute,
    NameScope,
    accessAttributes,
    getIpuTensorId,
    nop,
    set_available_memory,
)
from poptorch._forward.blocks import (
    BeginBlock,
    Block,
    BlockFunction,
    LegacyBeginBlockFn,
    removeBlocks,
)
from poptorch._forward.overlap import set_overlap_for_input, set_overlap_for_output
from poptorch._forward.recomputation import recomputationCheckpoint
from poptorch._forward.running import identity_loss, isRunningOnIpu
from poptorch._operators import shipped_ops  # noqa: F401 - registers them
from poptorch._operators.control_flow import cond, for_loop
from poptorch._operators.cpu_op import CPU
from poptorch._operators.ctc import ctc_beam_search_decoder
from poptorch._operators.custom_op import custom_op, register_custom_op
from poptorch._operators.geometry import fps, nearest
from poptorch._operators.matmul import serializedMatMul
from poptorch._operators.multi_conv import MultiConv
from poptorch._operators.print_tensor import ipu_print_tensor
from poptorch._operators.slicing import dynamic_slice, dynamic_update

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
