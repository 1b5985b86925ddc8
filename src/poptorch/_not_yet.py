"""Names of PopTorch 3.4 that are not built yet, so that using one says so."""

NAMES = frozenset(
    (
        "Attribute",
        "BeginBlock",
        "Block",
        "BlockFunction",
        "CPU",
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
        "ipuHardwareIsAvailable",
        "ipuHardwareVersion",
        "ipu_print_tensor",
        "load",
        "module_repr",
        "nearest",
        "nop",
        "print",
        "recomputationCheckpoint",
        "removeBlocks",
        "serializedMatMul",
        "set_available_memory",
        "set_overlap_for_input",
        "set_overlap_for_output",
    )
)
EXECUTOR_MEMBERS = frozenset(
    (
        "compileAndExport",
        "cycleCount",
        "getAnchoredTensor",
        "getComputeLatency",
        "getHostIpuLatency",
        "getIpuHostLatency",
        "getLatency",
        "getPerfCounters",
        "getTensorNames",
        "loadExecutable",
        "save",
    )
)


def explain(name: str) -> str:
    """What to tell somebody who uses ``name``."""
    return (
        f"{name} is part of PopTorch 3.4 and not in abele yet; the table 'What works' in README.md "
        "lists what is."
    )
