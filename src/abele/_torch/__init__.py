"""Private names of torch that this project uses, each with its reason.

When torch moves, this folder and ``tests/unit/_torch/test_torch_names.py`` change and nothing else
does. Heavy imports stay inside functions: importing abele must not load torch's compiler.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import logging
import re
import sys
import threading
from collections.abc import Callable, Generator, Reversible, Sequence
from pathlib import Path
from typing import Any, TypeGuard, cast

import torch

from abele._torch import versions
from abele._torch.replaced import replaced
from abele._torch.versions import optional
from abele.locks import Lock

versions.require()

with versions.imported():
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensor,
        FakeTensorMode,
    )
    from torch.fx.experimental.proxy_tensor import (
        disable_proxy_modes_tracing,
        get_proxy_mode,
        get_proxy_slot,
        make_fx,
        track_tensor_tree,
    )

    from abele._torch.contexts import (
        default_device,
        is_observed,
        is_transformed,
        recomputed_within,
        with_outer_onednn,
        without_onednn,
        without_tf32,
    )
    from abele._torch.graphs import (
        Interception,
        graph_of,
        laid_out,
        laid_out_like,
        prepare_control_flow,
        static_fakes,
        view_of,
    )

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "HigherOrderOperator",
    "Interception",
    "OpOverload",
    "OpOverloadPacket",
    "default_device",
    "disable_proxy_modes_tracing",
    "get_proxy_mode",
    "graph_of",
    "is_observed",
    "is_transformed",
    "laid_out",
    "laid_out_like",
    "make_fx",
    "prepare_control_flow",
    "recomputed_within",
    "static_fakes",
    "track_tensor_tree",
    "view_of",
    "with_outer_onednn",
    "without_onednn",
    "without_tf32",
]

# Comparisons in C++, which save time alone.
_guards: Any = importlib.import_module("torch._C._dynamo.guards") if versions.tried else None
#: Held while anything is traced or compiled: the tracer and the settings below are global.
TRACING = Lock()

# make_fx is the only nearly public way to see forward, backward and update as one graph.


def tracked_fake(node: torch.fx.Node) -> torch.Tensor:
    """Return the fake tensor (without data) of a node in the active trace.

    A tracer maps tensors to nodes, not nodes to tensors.
    """
    mode = get_proxy_mode()
    assert mode is not None, "no trace under way"
    with disable_proxy_modes_tracing():
        value = node.meta.get("val")
        if value is None:  # a constant that the tracer keeps
            tracer: Any = mode.tracer
            value = getattr(tracer.root, str(node.target))
        fake = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )
    return track_tensor_tree(
        fake, torch.fx.Proxy(node, mode.tracer), constant=None, tracer=mode.tracer
    )


def traced_node(tensor: torch.Tensor) -> torch.fx.Node | None:
    """Return the node of the active trace that produced ``tensor``, or None."""
    mode = get_proxy_mode()
    if mode is None or not isinstance(tensor, FakeTensor):
        return None
    slot = get_proxy_slot(tensor, mode.tracer, default=None)
    return None if slot is None else slot.proxy.node


def traced_nodes() -> Reversible[torch.fx.Node]:
    """Return the nodes of the active trace, in order; empty if none is active."""
    mode: Any = get_proxy_mode()
    return () if mode is None else mode.tracer.graph.nodes


@functools.cache
def is_of_the_tracer(path: str) -> bool:
    """Return whether stack traces omit a file of torch's tracer."""
    folders = [Path(torch.__file__).parent / name for name in ("fx", "export", "_higher_order_ops")]
    return path == "<string>" or any(map(Path(path).is_relative_to, folders))


def without_torch_function_modes() -> contextlib.AbstractContextManager[None]:
    """Disable torch function modes in a ``with`` block, for reading shapes."""
    return torch._C.DisableTorchFunction()


def mark_traced(phase: str) -> None:
    """Set the phase of nodes traced since the last call, in the entry that survives re-tracing."""
    for node in traced_nodes():
        node.meta.setdefault("custom", {}).setdefault("phase", phase)


def forward_pre_hooks(module: torch.nn.Module) -> dict[int, Callable[..., Any]]:
    """Return a module's pre-forward hooks; torch has a function to add them, none to list them."""
    untyped: Any = module
    return untyped._forward_pre_hooks


def children_by_name(module: torch.nn.Module) -> dict[str, torch.nn.Module | None]:
    """Return the direct children; ``named_children`` leaves out None and repeated modules."""
    return module._modules


@optional
@contextlib.contextmanager
def devices_shown(
    show: Callable[[torch.Tensor, torch.device], torch.device],
) -> Generator[None]:
    """Replace the ``device`` of fake tensors by the result of ``show``, in a ``with`` block.

    ``FakeTensor.device`` is a property of the class, which function modes do not intercept.
    """
    original: Any = vars(FakeTensor)["device"]
    thread = threading.get_ident()

    def device(tensor: torch.Tensor) -> torch.device:
        real = original.fget(tensor)
        return show(tensor, real) if threading.get_ident() == thread else real

    shown: Any = property(device)
    FakeTensor.device = shown
    try:
        yield
    finally:
        FakeTensor.device = original


@optional
@contextlib.contextmanager
def unchecked_distributions() -> Generator[None]:
    """Disable the argument checks of torch distributions in a ``with`` block.

    torch has a public function to set this, but none to read the old value.
    """
    distribution = torch.distributions.Distribution
    before = distribution._validate_args
    distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        distribution.set_default_validate_args(before)


@optional
@contextlib.contextmanager
def causal_masks_from(
    value_of: Callable[[torch.Tensor], torch.Tensor | None],
) -> Generator[None]:
    """Keep transformers from reading attention masks for causality, in a ``with`` block.

    torch compares the mask's values with a causal mask to choose a faster kernel. Where
    ``value_of`` returns the values it still does; else the mask is applied, with equal results.
    """
    from torch.nn.modules import transformer

    def detect(
        original: Any,
        mask: torch.Tensor | None,
        is_causal: bool | None = None,
        size: int | None = None,
    ) -> bool:
        if is_causal is not None or mask is None:
            return original(mask, is_causal, size)
        value = value_of(mask)
        if value is None:
            return False
        with outside_the_trace():
            return original(value, is_causal, size)

    with replaced((transformer, "_detect_is_causal_mask", detect)):
        yield


def checks_distributions() -> bool:
    """Return whether torch distributions check their arguments by default."""
    return torch.distributions.Distribution._validate_args


@contextlib.contextmanager
def distributions_check_by(check: Callable[[torch.Tensor], bool]) -> Generator[None]:
    """Let a function judge the masks of valid arguments of torch distributions, in a block."""

    def is_all_true(original: Any, valid: torch.Tensor) -> Any:
        caller = sys._getframe(2).f_globals.get("__name__")  # behind ``replaced``
        own = caller == "torch.distributions.distribution" and isinstance(valid, FakeTensor)
        return check(valid) if own else original(valid)

    with replaced((torch, "_is_all_true", is_all_true)):
        yield


@contextlib.contextmanager
def outside_the_trace() -> Generator[None]:
    """Compute with real tensors outside the active trace, in a ``with`` block."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with disable_proxy_modes_tracing(), unset_fake_temporarily(), torch.no_grad():
        yield


_HIGHER_ORDER = "higher_order"
_OPERATOR_NAME = re.compile(r"(?P<space>\w+)::(?P<name>\w+)(\.(?P<overload>\w+))?", re.ASCII)


def operator_name(operator: OpOverload | HigherOrderOperator) -> str:
    """Return an operator's qualified name, overload included, as ``find_operator`` takes it."""
    if isinstance(operator, HigherOrderOperator):
        return f"{_HIGHER_ORDER}::{operator.name()}"
    # The schema's own name: ``aten::add``, with an empty overload for the default one.
    return f"{operator._schema.name}.{operator._overloadname}"


def is_operator(value: object) -> TypeGuard[OpOverload | HigherOrderOperator]:
    """Return whether ``value`` is an operator of torch.ops, with which nodes of a graph compute."""
    return isinstance(value, OpOverload | HigherOrderOperator)


def overloads(packet: object) -> list[OpOverload]:
    """Return the overloads of an operator packet such as ``torch.ops.aten.add``, else none."""
    if not isinstance(packet, OpOverloadPacket):
        return []
    named = cast("Any", packet)
    return [getattr(named, name) for name in named.overloads()]


def schema_of(operator: OpOverload) -> torch.FunctionSchema:
    """Return an operator's schema: its arguments, results and which of them it writes."""
    return operator._schema


def memory_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage object, which views share, also without data."""
    return tensor.untyped_storage()._cdata


def find_operator(qualified: str) -> OpOverload | HigherOrderOperator | None:
    """Return the operator of a qualified name, or None; looks only in torch.ops."""
    match = _OPERATOR_NAME.fullmatch(qualified)
    if match is None:
        return None
    if match["space"] == _HIGHER_ORDER:
        importlib.import_module("torch._higher_order_ops")  # it registers them
    space = getattr(torch.ops, match["space"], None)
    if not isinstance(space, (type(torch.ops.aten), type(torch.ops.higher_order))):
        return None  # torch.ops has methods, too
    value: Any = getattr(space, match["name"], None)
    if match["overload"] and isinstance(value, OpOverloadPacket):
        value = getattr(cast("Any", value), match["overload"], None)
    return value if is_operator(value) else None


def kernel_of(operator: OpOverload) -> Callable[..., Any]:
    """Return the C++ callable behind an operator, which skips a Python call."""
    return operator._op


@functools.cache
def is_composite(operator: OpOverload) -> bool:
    """Return whether an operator is composite, so that tracing may decompose it.

    Composite operators with a separate CPU kernel stay: ``silu_backward``.
    """
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    own = has_kernel(operator.name(), torch._C.DispatchKey.CPU)
    return has_kernel(operator.name(), key) and not own


@optional
@contextlib.contextmanager
def code_when_run() -> Generator[None]:
    """Have traced graphs generate code at their first run, in a ``with`` block.

    By default torch generates code at every change: a fifth of a large model's compile time.
    """
    from torch.fx._lazy_graph_module import _use_lazy_graph_module

    with _use_lazy_graph_module(True):
        yield


def graph_module(
    root: torch.nn.Module | dict[str, Any], graph: torch.fx.Graph
) -> torch.fx.GraphModule:
    """Return a GraphModule with the constants of ``root`` that generates code at its first run."""
    from torch.fx._lazy_graph_module import _LazyGraphModule

    return _LazyGraphModule(root, graph)


@optional
@contextlib.contextmanager
def preserve_node_meta() -> Generator[None]:
    """Preserve nodes' source lines and phases when graphs are re-traced, in a ``with`` block."""
    from torch.fx import traceback as fx_traceback

    with fx_traceback.preserve_node_meta():
        yield


def cudnn_rnn(*arguments: Any) -> tuple[torch.Tensor, ...]:
    """Call ``aten._cudnn_rnn`` with its warnings as Python warnings.

    Called as an operator it prints that weights are not contiguous in memory.
    """
    functions: Any = importlib.import_module("torch._VF")
    return functions._cudnn_rnn(*arguments)


def convolution_with_activation() -> OpOverload | None:
    """Return the operator of convolution with fused activation; ``None`` without oneDNN."""
    if not torch.backends.mkldnn.is_available():
        return None
    return torch.ops.mkldnn._convolution_pointwise.default


def linear_with_bias() -> OpOverload | None:
    """Return the operator of a linear layer whose bias oneDNN adds; ``None`` without oneDNN.

    Arguments are x, weight, bias, and the name, scalars and algorithm of an activation.
    """
    if not torch.backends.mkldnn.is_available():
        return None
    return torch.ops.mkldnn._linear_pointwise.default


def packed_convolution_weight(
    weight: torch.Tensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    image: Sequence[int],
) -> torch.Tensor:
    """Return a convolution's weight in the order that oneDNN wants for images of one shape."""
    pack = torch.ops.mkldnn._reorder_convolution_weight
    return pack(weight, padding, stride, dilation, groups, image)


def packed_convolutions() -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
    """Return convolutions of packed weights: with an activation, and onto a tensor in place."""
    mkldnn = torch.ops.mkldnn
    return mkldnn._convolution_pointwise.default, mkldnn._convolution_pointwise_.binary


def without_torch_function() -> contextlib.AbstractContextManager[None]:
    """Have tensor subclasses compute and return plain tensors in a ``with`` block."""
    return torch._C.DisableTorchFunctionSubclass()


@contextlib.contextmanager
def without_log_of_fakes() -> Generator[None]:
    """Silence torch's logging of tracebacks of fake tensor errors in a ``with`` block."""
    log = logging.getLogger("torch._subclasses.fake_tensor")

    def is_no_exception(record: logging.LogRecord) -> bool:
        return not record.exc_info

    log.addFilter(is_no_exception)
    try:
        yield
    finally:
        log.removeFilter(is_no_exception)


def flatten(value: Any) -> tuple[list[Any], Any]:
    """Return the leaves of a nested value of containers, and its structure."""
    from torch.utils import _pytree

    return _pytree.tree_flatten(value, lambda each: isinstance(each, torch.Size))


def unflatten(leaves: Any, structure: Any) -> Any:
    """Return the nested value of a structure with given leaves."""
    from torch.utils import _pytree

    return _pytree.tree_unflatten(leaves, structure)


def hooks_of(tensor: torch.Tensor) -> list[list[int]]:
    """Return the ids of the hooks on a tensor's gradient, and after its accumulation."""
    of_tensor: Any = tensor
    kinds = (of_tensor._backward_hooks, of_tensor._post_accumulate_grad_hooks)
    return [list(kind or ()) for kind in kinds]


def comparison_with(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Return a function that compares as many tensors with these, but for their memory.

    It compares types, devices, shapes, strides and ``requires_grad``, and may return False for
    tensors that are alike.
    """
    if _guards is None:
        return lambda *others: False
    return _guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check


def versions_of(dictionaries: Sequence[Any]) -> Callable[[], list[Any]]:
    """Return a function whose results are equal only if no dictionary was written in between.

    They may differ all the same. Attributes of objects may be set without a write to ``__dict__``.
    """
    kinds = {*map(type, dictionaries)}
    if _guards is None or not kinds <= {dict, collections.defaultdict}:  # others have an order
        return lambda: [object()]
    full, empty = [d for d in dictionaries if d], [d for d in dictionaries if not d]
    version = _guards.dict_version
    return lambda: [object()] if any(empty) else [*map(version, full)]


def global_hooks() -> list[list[int]]:
    """Return the ids of the users' hooks that are called for every module and optimizer."""
    modules: Any = importlib.import_module("torch.nn.modules.module")
    optimizers: Any = importlib.import_module("torch.optim.optimizer")
    names = ("forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks")
    kinds = [getattr(modules, f"_global_{name}") for name in names]
    kinds += [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]
    return [[key for key, hook in kind.items() if not is_own(hook)] for kind in kinds]


def is_own(hook: Any) -> bool:
    """Return whether a hook is this project's, of a thread that traces."""
    return str(getattr(hook, "__module__", None)).startswith("abele.")
