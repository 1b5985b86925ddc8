"""Handing the operators of a trace to another function, through torch's private mode and tracer."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import (
    _ProxyTensor,  # pyright: ignore[reportPrivateUsage]
    get_proxy_mode,
)

from abele._torch.graphs import results_of, traced_operator

# Of these torch keeps the values of constants, to answer who reads them.
_OF_VALUES = (
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten._local_scalar_dense.default,
)


class Interception:
    """The trace under way, with its operators handed to another tracing function while open."""

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
        results_of: Callable[..., Any] = results_of,
    ) -> None:
        """Hand over operators.

        Args:
            call: gets each, its arguments, and what traces any operator.
            created: gets each node that is traced, and writes its stack trace.
            results_of: gives an operator's results on tensors without data; by default torch does.
        """
        trace: Callable[..., Any] = self._mode.__class__.__torch_dispatch__
        create: Callable[..., torch.fx.Node] = self.tracer.create_node

        is_ours = not self._mode.pre_dispatch

        def dispatch(
            mode: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if not isinstance(function, OpOverload):
                return trace(mode, function, types, args, kwargs)
            if function is torch.ops.prim.device.default and type(args[0]) is FakeTensor:
                return args[0].fake_device  # autograd calls this at every operation

            return call(function, args, kwargs, run)

        def run(function: Any, args: Any, kwargs: Any) -> Any:
            if is_ours and function not in _OF_VALUES:
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
        """Tie a tensor to a node of the trace."""
        proxy = torch.fx.Proxy(node, self.tracer)
        self.tracer.tensor_tracker[tensor] = _ProxyTensor(proxy, None)
