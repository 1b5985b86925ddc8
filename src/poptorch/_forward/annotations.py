"""Annotations inside forward: name scopes, memory hints, IO overlap, checkpoints and MultiConv.

Except for checkpoints they change neither numbers nor speed. They are stored as marks on the nodes
of the captured program, for program listings and inspection.
"""

import contextlib
import contextvars
import json
from typing import Any, Self

import torch

from abele import _torch
from abele.contexts import held
from abele.ops.checkpoint import checkpoint
from abele.trace import scopes
from poptorch._error import error, require
from poptorch._forward import structure
from poptorch._forward.blocks import Tracing, current
from poptorch.enums import MultiConvPlanType, OutputMode, OverlapMode
from poptorch.options import Options, PipelinedExecution, ShardedExecution

_ATTRIBUTES = "attributes"


class NameScope:
    """A context manager that prefixes the names of the operators inside, as ``scope/name``."""

    def __init__(self, name: str):
        require(isinstance(name, str), f"The name of a NameScope must be a string, not {name!r}")
        self.name = name

    def __enter__(self) -> None:
        scopes.push(self.name)

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:
        scopes.pop()


class Attribute:
    """A context manager that attaches attributes to operators, as ``Attribute(a={"layer": 1})``."""

    def __init__(self, **kwargs: dict[str, Any]):
        self._attributes = kwargs
        self._outer: list[Any] = []

    def __enter__(self) -> None:
        outer = scopes.current(_ATTRIBUTES)
        self._outer.append(outer)
        scopes.mark(_ATTRIBUTES, {**(outer or {}), **self._attributes})

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:
        scopes.mark(_ATTRIBUTES, self._outer.pop())


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor; raise poptorch.Error for other types."""
    return _tensor("nop", tensor).clone()


def set_available_memory(tensor: torch.Tensor, available_memory_proportion: float) -> torch.Tensor:
    """Annotate the operator that computed a tensor with the scratch memory it may use.

    Differs from the original: the annotation is shown in program listings and has no effect.

    Args:
        tensor: result of a matrix multiplication, convolution or lookup.
        available_memory_proportion: from 0 to 1.

    Returns:
        The tensor.

    Raises:
        poptorch.Error: it is not a tensor.
    """
    node = _torch.traced_node(_tensor("set_available_memory", tensor))
    if node is not None:
        custom = node.meta.setdefault("custom", {})
        custom["available_memory_proportion"] = available_memory_proportion
    return tensor


def _tensor(name: str, value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise error(f"poptorch.{name} takes a torch.Tensor, found a {type(value).__name__}.")
    return value


def accessAttributes(attribute_id_str: str) -> dict[str, Any]:
    """Parse operator attributes from their JSON text.

    Differs from the original: attributes travel as the text of a JSON object, not as the number of
    an attribute table.

    Args:
        attribute_id_str: the text of a JSON object.

    Raises:
        ValueError: not a string, or not a JSON object.
    """
    if not isinstance(attribute_id_str, str):
        raise ValueError(f"accessAttributes takes a string, found {attribute_id_str!r}.")
    try:
        attributes = json.loads(attribute_id_str)
    except json.JSONDecodeError:
        attributes = None
    if not isinstance(attributes, dict):
        raise ValueError(
            f"Attributes must be the text of a JSON object, found {attribute_id_str!r}."
        )
    return attributes


def getIpuTensorId(x: torch.Tensor) -> int:
    """Return a number that identifies a tensor of the program being captured.

    Args:
        x: a tensor of a forward under way.

    Returns:
        The same number for the same value, until it is written to.

    Raises:
        poptorch.Error: the tensor belongs to no capture.
    """
    node = _torch.traced_node(_tensor("getIpuTensorId", x))
    if node is None or current() is None:
        raise error(
            "getIpuTensorId takes an IPU tensor, and this one lives on the host. Call it in the "
            "forward of a wrapped model, on its inputs, parameters or what is computed from them."
        )
    return next(number for number, other in enumerate(_torch.traced_nodes(), 1) if other is node)


# Operators of the original's namespace that programs call by name. They are made of others, so
# nothing of them is left in a captured program.
torch.library.define("poptorch::push_name_scope", "(str name) -> ()")
torch.library.define("poptorch::pop_name_scope", "() -> ()")
torch.library.define("poptorch::internal_cast", "(Tensor x, str kind) -> Tensor")

_CASTS = {"FLOAT": torch.float32, "FLOAT16": torch.float16}


@torch.library.impl("poptorch::push_name_scope", "CompositeImplicitAutograd")
def _push_name_scope(name: str) -> None:
    scopes.push(name)


@torch.library.impl("poptorch::pop_name_scope", "CompositeImplicitAutograd")
def _pop_name_scope() -> None:
    scopes.pop()


@torch.library.impl("poptorch::internal_cast", "CompositeImplicitAutograd")
def _internal_cast(x: torch.Tensor, kind: str) -> torch.Tensor:
    if kind not in _CASTS:
        raise error(f"internal_cast knows {sorted(_CASTS)}, found {kind!r}.")
    return x.to(_CASTS[kind])


# -- overlap of transfers --------------------------------------------------------------------


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """Mark input tensors whose transfer to the device may overlap with computation.

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
    for tensor in _overlapped("set_overlap_for_input", input_tensors, mode):
        node = _torch.traced_node(tensor)
        if node is None or node.op != "placeholder":
            raise error(
                "poptorch.set_overlap_for_input was applied to a value that is not an input of the "
                "model. Apply it to the arguments of forward, before anything else."
            )
    return input_tensors


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """Mark output tensors whose transfer to the host may overlap with later computation.

    Differs from the original: as for ``set_overlap_for_input``; and that nothing is computed from
    an output afterwards is not checked.

    Args:
        output_tensors: results of forward, in any structure.
        mode: how far to overlap.

    Returns:
        The same structure of the same tensors.

    Raises:
        AssertionError, poptorch.Error: as for ``set_overlap_for_input``, but for inputs.
    """
    _overlapped("set_overlap_for_output", output_tensors, mode)
    return output_tensors


def _overlapped(name: str, value: Any, mode: OverlapMode) -> list[torch.Tensor]:
    """Check arguments and options of ``set_overlap_for_*``; return the tensors to overlap."""
    require(isinstance(mode, OverlapMode), f"{name} takes a poptorch.OverlapMode, not {mode!r}")
    recorded = structure.record(value)
    for node in structure.nodes(recorded):
        if isinstance(node, structure.Constant):
            raise error(
                f"poptorch.{name} takes tensors in any structure, found {node.value!r} of type "
                f"{type(node.value).__name__} in it."
            )
    tracing = current()
    if tracing is None or mode is OverlapMode.NoOverlap:
        return []
    _check_options(tracing)
    return list(structure.tensors(value, recorded))


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


# -- recomputation ---------------------------------------------------------------------------

# autoRecomputation, by the original's numbers: None 0, Standard 1, NormOnly 2, Pipeline 3,
# RecomputeAll 4.
_MODES = range(5)
_IGNORES_MARKS = (0, 2)

_marking: contextvars.ContextVar[bool] = contextvars.ContextVar("marking", default=False)


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Save activations at a checkpoint; training rematerializes the others between checkpoints.

    Results stay the same to the bit; memory shrinks, time grows. Activations after the last
    checkpoint are saved, as are the results of random operations, prints and host calls: backward
    sees the same dropout. Without any effect in inference and outside of a wrapper.

    Differs from the original: rematerialization is on as soon as a training model has a checkpoint,
    pipelined or not; ``options._Popart.set("autoRecomputation", 0)`` turns it off. Pipelined stages
    are rematerialized only if that option asks for it (1, 3 or 4), since it costs time.

    Args:
        tensors: one or several tensors, or one list or tuple of them.

    Returns:
        The one tensor; a tuple of several; or the container that was passed, with its tensors.

    Raises:
        ValueError: something else than a tensor.
    """
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        container = tensors[0]
        # Named tuples have a constructor of their own.
        return getattr(container, "_make", type(container))(map(_checkpoint, container))
    marked = tuple(map(_checkpoint, tensors))
    return marked[0] if len(marked) == 1 else marked


def _checkpoint(tensor: Any) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(
            f"All inputs must be tensors, recomputationCheckpoint was given {tensor!r} of type "
            f"{type(tensor).__name__}. Pass tensors, or one list or tuple of tensors."
        )
    return checkpoint(tensor) if _marking.get() else tensor


def recomputes(options: Options, *, training: bool) -> bool:
    """Return whether recomputation checkpoints have an effect; raise Error for an unknown mode."""
    mode = options._Popart.options.get("autoRecomputation")
    if mode is not None and mode not in _MODES:
        raise error(
            f"Unknown autoRecomputation {mode!r}. Use 0 (none), 1 (standard), 3 (pipeline) or "
            "4 (all)."
        )
    return training and mode not in _IGNORES_MARKS


def marking_checkpoints(on: bool) -> contextlib.AbstractContextManager[None]:
    """Switch marking of recomputation checkpoints in the captured program, inside the block."""
    return held(_marking, on)


# -- groups of convolutions ------------------------------------------------------------------

_MARK = "multi_conv"
_CONVOLUTIONS = (
    torch.ops.aten.convolution.default,
    torch.ops.aten.convolution_overrideable.default,
    # As they are called, where forward is recorded for a file.
    torch.ops.aten.conv1d.default,
    torch.ops.aten.conv2d.default,
    torch.ops.aten.conv3d.default,
    torch.ops.aten.conv1d.padding,
    torch.ops.aten.conv2d.padding,
    torch.ops.aten.conv3d.padding,
    torch.ops.aten.conv_transpose1d.default,
    torch.ops.aten.conv_transpose2d.input,
    torch.ops.aten.conv_transpose3d.input,
)


class MultiConv:
    """A context manager that groups convolutions; the group is checked when a model is compiled.

    Each setter returns the group. It takes None to withdraw the setting, and raises the error that
    it names for a value of another type. Proportions, types and dithering are one value for all
    convolutions or a list with one for each.

    Differs from the original: convolutions run one after the other whatever the settings say, and
    with the same numbers.
    """

    def __init__(self):
        self._settings: dict[str, Any] = {}

    def availableMemoryProportions(self, value: float | list[float] | None) -> Self:
        """Suggest the convolutions' share of scratch memory, from 0 to 1 (AssertionError)."""
        valid = _all_are(value, (float, int))
        return self._set("availableMemoryProportions", value, valid, "a float or a list of floats")

    def partialsTypes(self, value: torch.dtype | list[torch.dtype] | None) -> Self:
        """Set the dtypes of convolutions' partial sums: torch.float or torch.half (ValueError)."""
        dtypes = value if isinstance(value, list | tuple) else [value]
        valid = all(dtype in (None, torch.float, torch.half) for dtype in dtypes)
        return self._set("partialsTypes", value, valid, "torch.float or torch.half", ValueError)

    def enableConvDithering(self, value: bool | list[bool] | None) -> Self:
        """Set whether convolutions are dithered over an IPU's tiles: bool (ValueError)."""
        valid = _all_are(value, bool)
        return self._set("enableConvDithering", value, valid, "a bool or bools", ValueError)

    def planType(self, value: MultiConvPlanType | None) -> Self:
        """Set how the group of convolutions is planned (AssertionError)."""
        valid = isinstance(value, MultiConvPlanType)
        return self._set("planType", value, valid, "a poptorch.MultiConvPlanType")

    def perConvReservedTiles(self, value: int | None) -> Self:
        """Set the number of IPU tiles reserved for each convolution (AssertionError)."""
        return self._set("perConvReservedTiles", value, isinstance(value, int), "an int")

    def cycleBackOff(self, value: float | None) -> Self:
        """Set how much slower than the fastest a convolution's plan may be (AssertionError)."""
        return self._set("cycleBackOff", value, isinstance(value, float | int), "a float")

    def _set(
        self,
        name: str,
        value: Any,
        valid: bool,
        expected: str,
        problem: type[Exception] = AssertionError,
    ) -> Self:
        if value is not None and not valid:
            raise problem(f"Invalid {name} {value!r}: give {expected}.")
        self._settings[name] = value
        return self

    def __enter__(self) -> Self:
        if current() is not None:
            if scopes.current(_MARK) is not None:
                raise error(
                    "Nested poptorch.MultiConv is not supported. Leave the outer one first."
                )
            # A fresh object, by which the operators of this entry are known.
            scopes.mark(_MARK, {k: v for k, v in self._settings.items() if v is not None})
        return self

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:
        if current() is None:
            return
        settings = scopes.mark(_MARK, None)
        if type is None:
            self._check(settings)

    def _check(self, settings: dict[str, Any]) -> None:
        count = sum(
            node.target in _CONVOLUTIONS and node.meta.get("custom", {}).get(_MARK) is settings
            for node in _torch.traced_nodes()
        )
        if not count:
            raise error(
                "Unexpected end of an empty poptorch.MultiConv: there is no convolution in it. "
                "Remove it, or move the convolutions inside."
            )
        for name, values in settings.items():
            if isinstance(values, list | tuple) and len(values) != count:
                raise error(
                    f"Invalid number of values for MultiConv.{name}: there are {count} "
                    f"convolutions inside and {len(values)} values, {values!r}. Give one value for "
                    "all of them, or one for each."
                )


def _all_are(value: Any, kinds: type | tuple[type, ...]) -> bool:
    values = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(item, kinds) for item in values)
