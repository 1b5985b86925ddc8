"""Tracing of functions to FX graphs through torch's proxy mode, and tensors without data."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)
from torch.fx.experimental.proxy_tensor import (
    _ProxyTensor,  # pyright: ignore[reportPrivateUsage]
    get_proxy_mode,
    make_fx,
    track_tensor_tree,
)
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import autograd_would_have_decomposed

from abele import cpython
from abele._torch import versions

aten = torch.ops.aten

# Ways that load nothing of torch's compiler; without delay, since ``dynamo`` looks through them.
_shortcuts: Any = importlib.import_module("abele._torch.shortcuts") if versions.tried else None

_OF_TORCH = {"aten", "prims", "prim"}

# Attribute queries of Python on tensors, for which nothing is traced.
_OF_LAYOUT = (aten.size.default, aten.stride.default, aten.storage_offset.default)


def graph_of(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    decompositions: Mapping[OpOverload, Callable[..., Any]] | None = None,
) -> torch.fx.GraphModule:
    """Trace a function on fake tensors as an FX graph.

    Args:
        function: takes ``inputs``, returns tensors.
        inputs: fake tensors, one per graph input, in order.
        decompositions: functions to trace instead of operators.
    """
    if not versions.tried:
        return make_fx(function, dict(decompositions or {}))(*inputs)
    return _shortcuts.traced(function, tuple(inputs), decompositions or {})


def traced_operator(
    mode: Any,
    function: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    results_of: Callable[..., Any],
) -> Any:
    """Return an operator's results, and add its node to the active trace.

    Args:
        mode: of the trace, which is not open itself while it handles an operator.
        function: the operator.
        args: its arguments, tensors without data among them.
        kwargs: further ones.
        results_of: returns an operator's results on fake tensors.
    """
    decomposed = mode.decomposition_table.get(function)
    if decomposed is not None:
        with mode:
            result = decomposed(*args, **kwargs)
        if result is not NotImplemented:
            return result
    tensors: list[torch.Tensor] = []
    tracer = mode.tracer

    def proxy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        tensors.append(value)
        slot = tracer.tensor_tracker.get(value)
        return value if slot is None else slot.proxy

    proxies: Any = map_aggregate((tuple(args), dict(kwargs)), proxy)
    if function not in _OF_LAYOUT and autograd_would_have_decomposed(function, tensors):
        with mode:
            result = function.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
    name = tracer.graph._target_to_str(function.overloadpacket.__name__)
    made = tracer.create_proxy("call_function", function, *proxies, name=name)
    result = results_of(function, args, kwargs)
    return track_tensor_tree(result, made, constant=None, tracer=tracer)


# Operators with constant results, of which torch keeps the values for later reads.
_OF_VALUES = (
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten._local_scalar_dense.default,
)


class Interception:
    """A hook that passes the operators of the active trace to another tracing function."""

    def __enter__(self) -> Interception:
        mode: Any = get_proxy_mode()
        assert mode is not None, "no trace under way"
        self._mode, self.tracer = mode, mode.tracer
        self.graph: torch.fx.Graph = mode.tracer.graph
        self._recorded: bool = mode.tracer.record_stack_traces
        return self

    def intercept(
        self,
        call: Callable[..., Any],
        created: Callable[[torch.fx.Node], None],
        results_of: Callable[..., Any] | None = None,
    ) -> None:
        """Pass each operator of the trace to ``call``.

        Args:
            call: receives each operator, its arguments, and a function that traces any operator.
            created: receives each traced node, and writes its stack trace.
            results_of: gives an operator's results on tensors without data; by default torch does.
        """
        trace: Callable[..., Any] = self._mode.__class__.__torch_dispatch__
        create: Callable[..., torch.fx.Node] = self.tracer.create_node

        def dispatch(
            mode: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if not isinstance(function, OpOverload):
                return trace(mode, function, types, args, kwargs)
            if function is torch.ops.prim.device.default and type(args[0]) is FakeTensor:
                return args[0].fake_device  # autograd calls this at every operation
            if function.namespace not in _OF_TORCH:  # the user's code may compute it
                return call(function, args, kwargs, run)
            with cpython.unwatched():
                return call(function, args, kwargs, run)

        def run(function: Any, args: Any, kwargs: Any) -> Any:
            if results_of is not None and function not in _OF_VALUES:
                return traced_operator(self._mode, function, args, kwargs, results_of)
            return trace(self._mode, function, (), tuple(args), kwargs)

        def create_node(*args: Any, **kwargs: Any) -> torch.fx.Node:
            node = create(*args, **kwargs)
            created(node)
            return node

        # Patched on the instance: loops and branches look the mode up by its class.
        self._mode.__torch_dispatch__ = types.MethodType(dispatch, self._mode)
        self.tracer.create_node = create_node
        self.tracer.record_stack_traces = False

    def __exit__(self, *exc: object) -> None:
        for changed, name in ((self._mode, "__torch_dispatch__"), (self.tracer, "create_node")):
            changed.__dict__.pop(name, None)
        self.tracer.record_stack_traces = self._recorded

    def node_of(self, tensor: torch.Tensor) -> torch.fx.Node | None:
        """Return a tensor's node; None for constants and tensors outside the trace."""
        slot = self.tracer.tensor_tracker.get(tensor)
        if slot is None or (slot.constant, getattr(tensor, "constant", None)) != (None, None):
            return None
        return slot.proxy.node

    def stand_for(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        """Associate a tensor with a node of the trace."""
        proxy = torch.fx.Proxy(node, self.tracer)
        self.tracer.tensor_tracker[tensor] = _ProxyTensor(proxy, None)


def static_fakes() -> FakeTensorMode:
    """Return the mode of a capture: fake tensors with fixed shapes.

    Reading a value, or a shape that depends on a value, is an error. Torch's own cache of results
    is off: ``operator_cache`` has most of what it would find, and its keys took a fifth
    of a capture.
    """
    if "torch._dynamo" in sys.modules or not versions.tried:
        mode = FakeTensorMode(allow_non_fake_inputs=True, static_shapes=True)
    else:
        mode = _shortcuts.mode_of_a_capture()
    mode.cache_enabled = False
    return mode


def prepare_control_flow() -> None:
    """Let torch's loops and branches be traced with the active fake tensor mode.

    They need a ``ShapeEnv``, which loads torch's compiler; other operators do not.
    """
    from torch._guards import detect_fake_mode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode: FakeTensorMode | None = detect_fake_mode()
    if mode is not None and mode.shape_env is None:
        mode.shape_env = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)


def laid_out_like(
    like: torch.Tensor, mode: FakeTensorMode, shared: torch.Tensor | None = None
) -> torch.Tensor:
    """Return a fake tensor with the layout of another tensor, in new or shared memory."""
    shape, stride = like.shape, like.stride()
    if shared is not None:
        return view_of(shared, mode, shape, stride, like.storage_offset(), like)
    device = like.fake_device if isinstance(like, FakeTensor) else like.device
    return laid_out(shape, stride, like.dtype, device, mode)


def laid_out(
    shape: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    mode: FakeTensorMode,
) -> torch.Tensor:
    """Return a fake tensor with some shape and strides in memory of its own."""
    with in_kernel_invocation_manager(mode):
        meta = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    return FakeTensor(mode, meta, device)


def view_of(
    tensor: torch.Tensor,
    mode: FakeTensorMode,
    shape: Sequence[int],
    stride: Sequence[int],
    offset: int | torch.SymInt,
    like: torch.Tensor,
) -> torch.Tensor:
    """Return a fake view in the memory of another tensor, of the type of ``like``."""
    device = like.fake_device if isinstance(like, FakeTensor) else like.device
    with in_kernel_invocation_manager(mode):
        meta = torch.empty_strided(shape, stride, dtype=like.dtype, device="meta")
        meta.set_(tensor.untyped_storage(), offset, shape, stride)
    return FakeTensor(mode, meta, device)
