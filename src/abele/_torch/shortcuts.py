"""Ways to a trace through torch's private tracer that load no compiler of torch.

``make_fx`` and the constructors of modes do the same, but load both halves of torch's compiler at
their first call, for symbolic sizes and compiler settings. Imported only with versions that were
tried.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch._functorch.config as _config
import torch.nested._internal.nested_tensor as _nested
from torch._compile import _disable_dynamo
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorConverter, FakeTensorMode
from torch.fx._lazy_graph_module import _make_graph_module
from torch.fx._symbolic_trace import PH
from torch.fx.experimental.proxy_tensor import (
    ProxyTorchDispatchMode,
    PythonKeyTracer,
    _MakefxTracer,
    _set_make_fx_tracer,
    disable_autocast_cache,
    fake_signature,
    wrap_key,
)
from torch.utils._python_dispatch import TorchDispatchMode


@_disable_dynamo
def traced(
    function: Callable[..., Any],
    inputs: tuple[torch.Tensor, ...],
    decompositions: Mapping[OpOverload, Callable[..., Any]],
) -> torch.fx.GraphModule:
    """Trace a function as ``graph_of`` does."""
    importlib.import_module("torch._higher_order_ops.triton_kernel_wrap")  # the tracer names it
    tracer: Any = PythonKeyTracer()
    mode = mode_of_a_trace(tracer, decompositions)
    # Bodies of loops and branches are traced by others like this one.
    maker: Any = _MakefxTracer(decompositions, "real", False, False, False, False, True)
    maker.fx_tracer, maker.proxy_mode = tracer, mode
    called: Any = wrap_key(fake_signature(function, len(inputs)), inputs, tracer, False)
    with mode, disable_autocast_cache(), _set_make_fx_tracer(maker):
        graph = tracer.trace(called, (PH,) * len(inputs))
    return _make_graph_module(tracer.root, graph, inspect.unwrap(function).__name__)


def mode_of_a_trace(
    tracer: PythonKeyTracer, decompositions: Mapping[OpOverload, Callable[..., Any]]
) -> ProxyTorchDispatchMode:
    """Create a trace's dispatch mode without its constructor, which loads torch's compiler."""
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


def mode_of_a_capture() -> FakeTensorMode:
    """Create a fake tensor mode without its constructor.

    That one loads the front-end of torch's compiler for the defaults of two of its settings.
    """
    mode: Any = FakeTensorMode.__new__(FakeTensorMode)
    base: Any = TorchDispatchMode
    base.__init__(mode)
    nested: Any = _nested
    mode.__dict__ |= {
        "allow_fallback_kernels": True,
        "allow_meta": _config.fake_tensor_allow_meta,
        "allow_non_fake_inputs": True,
        "allow_scalar_outputs": False,
        "cache_crosscheck_enabled": False,
        "cache_enabled": True,
        "enter_stack": [],
        "fake_tensor_converter": FakeTensorConverter(copy_data=False, export=False),
        "in_kernel_invocation": False,
        "nt_tensor_id_counter": nested._tensor_id_counter,
        "nt_tensor_id_initial_count": nested._tensor_id_counter,
        "propagate_real_tensors": False,
        "shape_env": None,
        "static_shapes": True,
        "_allow_unsafe_data_ptr_access": _config.fake_tensor_allow_unsafe_data_ptr_access,
        "_mode_key": torch._C._TorchDispatchModeKey.FAKE,
        "_stack": None,
        "_stack_trace": traceback.StackSummary(),
    }
    return mode
