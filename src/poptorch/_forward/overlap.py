"""Marks on inputs and outputs whose transfer may overlap with computing; without effect."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from abele import _torch
from poptorch._error import error, require
from poptorch._forward.tracing import Tracing, current
from poptorch._values import structure as _structure
from poptorch.enums import OutputMode, OverlapMode
from poptorch.options import PipelinedExecution, ShardedExecution

_INPUT, _OUTPUT = "set_overlap_for_input", "set_overlap_for_output"


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """Mark inputs whose transfer may overlap with the computation on earlier ones.

    Differs from the original: transfers are not part of a program here, so nothing overlaps. The
    requirements are checked all the same.

    Args:
        input_tensors: inputs of forward, in any structure.
        mode: how far to overlap.

    Returns:
        The same structure of the same tensors.

    Raises:
        AssertionError: the mode is no OverlapMode.
        poptorch.Error: there is something else than tensors, or than inputs; or the options are a
            pipeline, or without IO tiles, or their output mode is neither All nor Sum.
    """
    return _marked(_INPUT, input_tensors, mode)


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """Mark outputs whose transfer may overlap with later computation.

    Differs from the original: as for ``set_overlap_for_input``; and that nothing is computed from
    an output afterwards is not checked.

    Args:
        output_tensors: results of forward, in any structure.
        mode: how far to overlap.

    Returns:
        The same structure of the same tensors.

    Raises:
        AssertionError: the mode is no OverlapMode.
        poptorch.Error: there is something else than tensors; or the options are a pipeline, or
            without IO tiles, or their output mode is neither All nor Sum.
    """
    return _marked(_OUTPUT, output_tensors, mode)


def _marked(name: str, value: Any, mode: OverlapMode) -> Any:
    require(isinstance(mode, OverlapMode), f"{name} takes a poptorch.OverlapMode, not {mode!r}")
    structure = _structure.record(value)
    _refuse_constants(name, structure)
    tracing = current()
    if tracing is not None and mode is not OverlapMode.NoOverlap:
        _check_options(tracing)
        if name == _INPUT:
            _check_inputs(_structure.tensors(value, structure))
    return value


def _refuse_constants(name: str, structure: _structure.Structure) -> None:
    if isinstance(structure, _structure.Constant):
        raise error(
            f"poptorch.{name} takes tensors in any structure, found {structure.value!r} of type "
            f"{type(structure.value).__name__} in it."
        )
    if not isinstance(structure, _structure.Leaf):
        for part in structure.parts:
            _refuse_constants(name, part)


def _check_options(tracing: Tracing) -> None:
    options, strategy = tracing.options, tracing.strategy
    if isinstance(strategy, PipelinedExecution) and not isinstance(strategy, ShardedExecution):
        raise error(
            "Overlapped IO is not supported with poptorch.PipelinedExecution. Choose "
            "poptorch.ShardedExecution or a phased strategy with options.setExecutionStrategy."
        )
    if not options.TensorLocations.exists("num_io_tiles"):
        raise error(
            "No IO tiles allocated. You must allocate at least 32 IO tiles for overlapped IO: "
            "call options.TensorLocations.numIOTiles(32)."
        )
    if options.output_mode not in (OutputMode.All, OutputMode.Sum):
        raise error(
            "Unsupported output mode for overlapped IO: found "
            f"{OutputMode(options.output_mode).name}. Call options.outputMode with "
            "poptorch.OutputMode.All or Sum."
        )


def _check_inputs(tensors: Iterable[torch.Tensor]) -> None:
    node_of: Callable = _torch.traced_node
    for tensor in tensors:
        node = node_of(tensor)
        if node is None or node.op != "placeholder":
            raise error(
                f"poptorch.{_INPUT} was applied to a value that is not an input of the model. "
                "Apply it to the arguments of forward, before anything else."
            )
