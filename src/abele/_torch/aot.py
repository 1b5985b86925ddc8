"""Private names of torch's ahead-of-time autograd, which only ``torch.compile`` loads."""

# pyright: reportPrivateUsage=false, reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, cast

import torch
from torch.fx.node import map_arg

from abele._torch.copies import copied_graph
from abele._torch.versions import optional
from abele.errors import CaptureError

#: A compiled graph: takes its inputs as a list, which it may empty, and returns its outputs.
Boxed = Callable[[list[Any]], Sequence[Any]]
Compiler = Callable[[torch.fx.GraphModule, Sequence[Any]], Boxed]

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def differentiated(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    forward: Compiler,
    backward: Compiler,
    inference: Compiler,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> Callable[..., Any]:
    """Return a graph of Dynamo as a function that autograd differentiates.

    Args:
        graph: as Dynamo passes it to a backend, with static shapes.
        inputs: example inputs of the graph.
        forward: compiles the forward graph, which also returns what is saved for backward.
        backward: compiles the backward graph.
        inference: compiles the graph if no gradient is needed.
        decompositions: functions to trace instead of operators.
    """
    from torch._dynamo.backends.common import aot_autograd

    backend = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=_partitioned,
        decompositions=dict(decompositions),
        keep_inference_input_mutations=True,
    )
    with _without_index_arithmetic():
        return backend(graph, list(inputs))


@optional
@contextlib.contextmanager
def _without_index_arithmetic() -> Generator[None]:
    """Trace interpolation as its own operators, in a ``with`` block.

    torch traces dozens of index operations instead, which round otherwise and take several times as
    long by torch's kernels. The block is entered while no other thread traces.
    """
    keys = torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd
    names = [name for name in dir(torch.ops.aten) if "upsample_" in name]
    packets: list[Any] = [getattr(torch.ops.aten, name) for name in names]
    operators = [getattr(packet, name) for packet in packets for name in packet.overloads()]
    kept = [(each, {key: each.py_kernels.pop(key, None) for key in keys}) for each in operators]
    for each in operators:
        each._dispatch_cache.clear()
    try:
        yield
    finally:
        for each, kernels in kept:
            each.py_kernels.update({key: k for key, k in kernels.items() if k is not None})
            each._dispatch_cache.clear()


def _partitioned(joint: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
    """Divide a joint graph into forward and backward with the least memory between them.

    torch's partitioner may have backward compute again what forward computed of a buffer before it
    wrote the buffer. Gradients would then be those of the buffer's next value; this also happens
    with torch's own compiler. Such a graph is divided without computing anything twice.
    """
    compilers: Any = importlib.import_module("functorch.compile")
    cut, whole_saved = compilers.min_cut_rematerialization_partition, compilers.default_partition
    writing = joint.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    if not writing:
        return cut(joint, inputs, **options)
    written = {node.args[0].name for node in writing if isinstance(node.args[0], torch.fx.Node)}
    whole = torch.fx.GraphModule(joint, copied_graph(joint.graph))
    forward, backward = cut(joint, inputs, **options)
    read = {node.name for node in backward.graph.find_nodes(op="placeholder") if node.users}
    return whole_saved(whole, inputs, **options) if written & read else (forward, backward)


def boxed(function: Boxed) -> Boxed:
    """Return a function that torch calls with a list of inputs, so that they can be freed."""

    def taking(inputs: list[Any]) -> Sequence[Any]:
        return function(inputs)

    untyped: Any = taking
    untyped._boxed_call = True
    return taking


def steers_dynamo(error: Exception) -> bool:
    """Return whether an error tells Dynamo to trace a function otherwise."""
    from torch._dynamo.exc import TorchDynamoException

    return isinstance(error, TorchDynamoException)


def static_inputs() -> frozenset[int]:
    """Return the positions of parameters and buffers among the inputs of the graph being compiled.

    Empty if torch does not know them.
    """
    from torch._guards import TracingContext

    metadata = getattr(TracingContext.try_get(), "fw_metadata", None)
    return frozenset(getattr(metadata, "static_input_indices", None) or ())


def without_symbols(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """Replace the symbolic sizes of a Dynamo graph by their present values.

    Dynamo then guards these values, so that it compiles the function again for others.

    Args:
        graph: of Dynamo; its placeholders that are sizes lose their readers.
        inputs: example inputs of the graph.

    Returns:
        Example inputs with fixed sizes.

    Raises:
        CaptureError: a size depends on the values of a tensor.
    """
    examples, fixed = list[Any](), False
    placeholders = graph.graph.find_nodes(op="placeholder")
    for node, given in zip(placeholders, inputs, strict=True):
        value = node.meta.get("example_value", given)
        if isinstance(given, _SYMBOLS):
            _fix(node, _number(given))
            fixed = True
        examples.append(_static(value) if _has_symbols(value) else given)
    if fixed:
        graph.recompile()
    return examples


def _number(value: Any) -> Any:
    """Return the value of a symbolic number, which becomes a guard; others as they are."""
    try:
        if isinstance(value, torch.SymInt):
            return int(value)
        if isinstance(value, torch.SymFloat):
            return float(value)
        return bool(value) if isinstance(value, torch.SymBool) else value
    except Exception as error:
        raise CaptureError(
            f"a size depends on the values of a tensor ({type(error).__name__}); programs have "
            "static shapes"
        ) from error


def _fix(node: torch.fx.Node, value: complex) -> None:
    """Replace a placeholder by a number in all nodes that read it."""

    def replaced(each: torch.fx.Node) -> Any:
        return value if each is node else each

    for user in list(node.users):
        user.args = cast("Any", map_arg(user.args, replaced))
        user.kwargs = cast("Any", map_arg(user.kwargs, replaced))


def _has_symbols(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    sizes = (*value.shape, *value.stride(), value.storage_offset())
    return any(isinstance(each, _SYMBOLS) for each in sizes)


def _static(value: Any) -> torch.Tensor:
    """Return a fake tensor with the present sizes of one with symbolic sizes."""
    shape, stride = ([_number(each) for each in sizes] for sizes in (value.shape, value.stride()))
    with value.fake_mode:
        made = torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)
    return made.requires_grad_(value.requires_grad)


def sharded(inputs: Sequence[Any]) -> bool:
    """Return whether an input of a graph is a ``DTensor``, of which each process holds a part."""
    module = sys.modules.get("torch.distributed.tensor")
    kind = getattr(module, "DTensor", None)
    return kind is not None and any(isinstance(each, kind) for each in inputs)
