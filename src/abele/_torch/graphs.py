"""A function as a graph, through torch's private tracer and mode.

``make_fx`` does the same, and more: it loads both halves of torch's compiler at its first call, for
sizes that nobody knows and settings that are those of the compiler.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._compile import _disable_dynamo
from torch._ops import OpOverload
from torch.fx._lazy_graph_module import _make_graph_module
from torch.fx._symbolic_trace import PH
from torch.fx.experimental.proxy_tensor import (
    ProxyTorchDispatchMode,
    PythonKeyTracer,
    _MakefxTracer,
    _set_make_fx_tracer,
    disable_autocast_cache,
    fake_signature,
    track_tensor_tree,
    wrap_key,
)
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode, autograd_would_have_decomposed

aten = torch.ops.aten

# Asked of tensors by Python; nothing is traced for them.
_OF_LAYOUT = (aten.size.default, aten.stride.default, aten.storage_offset.default)


def graph_of(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    decompositions: Mapping[OpOverload, Callable[..., Any]] | None = None,
) -> torch.fx.GraphModule:
    """Return the operators that a function calls.

    Args:
        function: takes ``inputs``, returns tensors.
        inputs: tensors without data; the graph's, in order.
        decompositions: what is traced instead of an operator.
    """
    return _traced(function, tuple(inputs), decompositions or {})


@_disable_dynamo
def _traced(
    function: Callable[..., Any],
    inputs: tuple[torch.Tensor, ...],
    decompositions: Mapping[OpOverload, Callable[..., Any]],
) -> torch.fx.GraphModule:
    importlib.import_module("torch._higher_order_ops.triton_kernel_wrap")  # the tracer names it
    tracer: Any = PythonKeyTracer()
    mode = _mode(tracer, decompositions)
    # Bodies of loops and branches are traced by others like this one.
    maker: Any = _MakefxTracer(decompositions, "real", False, False, False, False, True)
    maker.fx_tracer, maker.proxy_mode = tracer, mode
    called: Any = wrap_key(fake_signature(function, len(inputs)), inputs, tracer, False)
    with mode, disable_autocast_cache(), _set_make_fx_tracer(maker):
        graph = tracer.trace(called, (PH,) * len(inputs))
    return _make_graph_module(tracer.root, graph, inspect.unwrap(function).__name__)


def _mode(
    tracer: PythonKeyTracer, decompositions: Mapping[OpOverload, Callable[..., Any]]
) -> ProxyTorchDispatchMode:
    """Return the mode of a trace without its constructor, which loads torch's compiler."""
    mode: Any = ProxyTorchDispatchMode.__new__(ProxyTorchDispatchMode)
    base: Any = TorchDispatchMode
    base.__init__(mode)
    mode.__dict__ |= {
        "decomp_layers": 0,
        "decomposition_table": decompositions,
        "emulate_precision_casts": False,
        "enter_stack": [],
        "pre_dispatch": False,
        "tracer": tracer,
        "tracing_mode": "real",
        "_allow_fake_constant": False,
        "_decomposition_table_stack": [],
        "_error_on_data_dependent_ops": True,
        "_invoke_subgraph_cache": {},
        "_invoke_subgraph_names": set(),
        "_mode_key": torch._C._TorchDispatchModeKey.PROXY,
    }
    return mode


def results_of(function: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what an operator returns for its arguments and further ones."""
    return function(*args, **kwargs)


def traced_operator(
    mode: Any,
    function: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    results_of: Callable[..., Any] = results_of,
) -> Any:
    """Return an operator's results, and add its node to the trace under way.

    Args:
        mode: of the trace, which is not open itself while it handles an operator.
        function: the operator.
        args: its arguments, tensors without data among them.
        kwargs: further ones.
        results_of: gives an operator's results on tensors without data; by default torch does.
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
