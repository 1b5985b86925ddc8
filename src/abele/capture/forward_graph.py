"""Recording of a forward as a graph of operators that runs without the source.

The operators are recorded above autograd: a dropout is one node, so is a batch norm that writes its
statistics. So the graph behaves as forward where it runs: gradients on the host, a captured program
inside a trace, the same random numbers. In-place writes stay. State is passed in, constants are
stored with the graph.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import operator
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode

from abele import _torch, cpython
from abele.capture import Call, gradient_hooks, losses
from abele.capture.diagnose import explained
from abele.capture.forward import called, state_in_place
from abele.capture.losses import LossFinder
from abele.capture.recipe import Recipe, recipe_of
from abele.errors import CaptureError
from abele.program.aliasing import other_kind, own_constants
from abele.program.core import is_library
from abele.step.config import StepConfig
from abele.trace import scopes, tracer
from abele.trace.module_state import tensor_ids
from abele.trace.tracer import Named, Values

aten = torch.ops.aten

#: Key of the mark on a node whose value is a loss: the loss's name.
LOSS = "loss"

_Tensor: Any = torch.Tensor  # its methods have no types
_READS_DATA, _SETS_DATA = _Tensor.data.__get__, _Tensor.data.__set__
_HOOKS = (_Tensor.register_hook, _Tensor.register_post_accumulate_grad_hook)

Marks = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class ForwardGraph:
    """A forward recorded as a graph of operators.

    Attributes:
        graph: takes parameters, buffers and inputs, in this order, and returns forward's tensors.
        without_gradient: why gradients through the graph would be wrong; else empty.
    """

    graph: torch.fx.GraphModule
    without_gradient: str = ""


# -- recording -------------------------------------------------------------------------------


def record(
    call: Call,
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    *,
    hidden_paths: Sequence[str] = (),
) -> ForwardGraph:
    """Run forward once, on tensors without data, and record the operators that it calls.

    Raises:
        CaptureError: forward does something that a graph cannot represent.
        DataDependentError: forward reads a value.
    """
    recipe = recipe_of(call, module, inputs, StepConfig(training=False), None)
    named = recipe.model_slots
    reasons = list(gradient_hooks.on_parameters(recipe.state.originals))

    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        with _lines_noted(hidden_paths), _Watch(reasons):
            outputs, computed_losses = _called(recipe, Values(named, tensors))
        reasons.extend(_own_gradients([*outputs, *computed_losses]))
        return outputs

    with recipe.leftovers.mended():
        graph = _traced(function, named, recipe)
    return ForwardGraph(graph, "; ".join(dict.fromkeys(reasons)))


def _called(recipe: Recipe, values: Values) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Run forward in the active trace; return its outputs and its marked losses."""
    place, finder = state_in_place(recipe, values), LossFinder()
    with place as references, finder, explained(shows=True):
        outputs = called(recipe, values, references)
    for name, value in finder.losses:
        node = _torch.traced_node(value)
        if node is not None:
            node.meta["custom"] = {**node.meta.get("custom", {}), LOSS: name}
    return outputs, [value for _, value in finder.losses]


@contextlib.contextmanager
def _plain_tensors_kept(recipe: Recipe) -> Generator[None]:
    """Restore plain tensors that forward wrote to, at the end of a ``with`` block.

    A trace above autograd records such a write and also does it.
    """
    state = tensor_ids(recipe.state.module)
    contents = [
        (each, each._version, each.untyped_storage().clone())
        for each in {id(each): each for each in recipe.leftovers.tensors()}.values()
        if id(each) not in state and other_kind(each) is None
    ]
    try:
        yield
    finally:
        for tensor, version, content in contents:
            if tensor._version != version:
                tensor.untyped_storage().copy_(content)


def _traced(
    function: Callable[..., list[torch.Tensor]], named: Sequence[Named], recipe: Recipe
) -> torch.fx.GraphModule:
    mode = _torch.static_fakes()
    kept = _plain_tensors_kept(recipe)
    with kept, _torch.TRACING, cpython.uncollected(), mode, _torch.without_onednn():
        leaves = [tracer.fake_of(each, mode).requires_grad_(each.requires_grad) for each in named]
        with torch.enable_grad(), _torch.without_log_of_fakes(), _torch.code_when_run():
            graph = _torch.make_fx(function, pre_dispatch=True)(*leaves)
    for name, value in graph.state_dict().items():
        if isinstance(value, _torch.FakeTensor):
            users = [node for node in graph.graph.nodes if node.target == name]
            where = users[0].meta.get("stack_trace", "") if users else ""
            raise CaptureError(f"forward makes a tensor in a way that is not traced. {where}")
    own_constants(graph)
    _use_fresh_constants(graph.graph)
    for node in graph.graph.nodes:
        if node.op == "call_function":
            node.target = _kept_target(node)
        node.meta.pop("val", None)  # shapes follow from the arguments when it runs
    return graph


def _use_fresh_constants(graph: torch.fx.Graph) -> None:
    """Remove in-place detaches of ``torch.tensor``, which a trace of the graph refuses."""
    for node in graph.nodes:
        if node.target is aten.detach_.default:
            copied = node.args[0]
            if isinstance(copied, torch.fx.Node) and copied.target is aten.lift_fresh_copy.default:
                node.replace_all_uses_with(copied)
                graph.erase_node(node)


def _kept_target(node: torch.fx.Node) -> Any:
    target: Any = node.target
    if _torch.is_operator(target) or target is operator.getitem:
        return target
    name = getattr(target, "__name__", str(target))
    if name == "_set_grad_enabled":
        return torch.set_grad_enabled
    what = "opens torch.autocast" if "autocast" in name else f"calls {name}"
    raise CaptureError(f"forward {what}, which a graph of operators does not hold.")


class _Watch(TorchFunctionMode):
    """A dispatch mode for ``.data`` and gradient hooks, which no operator represents."""

    def __init__(self, reasons: list[str]):
        super().__init__()
        self._reasons = reasons

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func == _READS_DATA:
            return args[0].detach()  # the same values in the same memory, and traced
        if func == _SETS_DATA:
            raise CaptureError("forward assigns to .data of a tensor. Use copy_() instead.")
        if func in _HOOKS:
            self._reasons.append("forward registers a hook on a gradient")
        return func(*args, **(kwargs or {}))


def _own_gradients(values: Sequence[torch.Tensor]) -> Iterator[str]:
    """Yield names of functions with a backward in Python, which a graph cannot represent."""
    for current in losses.autograd_functions(values):
        name = type(current).__name__.removesuffix("Backward")
        # Operators that Python registers bring their backward with them, in a class of this name.
        if isinstance(current, BackwardCFunction) and not name.startswith("GeneratedBackwardFor_"):
            yield f"forward uses the autograd.Function {name}"


class _lines_noted(_torch.Interception):  # noqa: N801 - reads as what it does
    """A mode that records the user's source line on traced nodes."""

    def __init__(self, hidden: Sequence[str]):
        self._hidden = hidden

    def __enter__(self) -> _lines_noted:
        super().__enter__()
        self.intercept(self._call, self._created)
        return self

    def _call(self, function: Any, args: Any, kwargs: Any, run: Callable[..., Any]) -> Any:
        return run(function, args, kwargs)

    def _created(self, node: torch.fx.Node) -> None:
        frame = inspect.currentframe()
        while frame is not None:
            code = frame.f_code
            hidden = any(fragment in code.co_filename for fragment in self._hidden)
            if not hidden and code.co_name == "forward" and not is_library(code.co_filename):
                where = f'File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}'
                node.meta["stack_trace"] = where
                return
            frame = frame.f_back


# -- running ---------------------------------------------------------------------------------


def run(
    forward: ForwardGraph,
    tensors: Sequence[torch.Tensor],
    marks_of: Callable[[Marks], Marks] = dict,
) -> list[torch.Tensor]:
    """Call the operators of a graph, on real tensors or inside a trace.

    Args:
        forward: from ``record`` or a file.
        tensors: parameters, buffers and inputs in the order of ``record``; buffers are written.
        marks_of: maps recorded marks to the marks of traced nodes.
    """
    with scopes.replaying() as continue_at, torch.set_grad_enabled(torch.is_grad_enabled()):
        return _Calls(forward.graph, continue_at, marks_of).run(*tensors)


class _Calls(torch.fx.Interpreter):
    def __init__(
        self,
        graph: torch.fx.GraphModule,
        continue_at: Callable[[Marks, str | None], None],
        marks_of: Callable[[Marks], Marks],
    ):
        super().__init__(graph)
        self._continue_at, self._marks_of = continue_at, marks_of
        self._outer = torch.is_grad_enabled()

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.target is torch.set_grad_enabled:
            # Recorded with gradients on: leaving a ``no_grad`` goes back to what is around forward.
            return torch.set_grad_enabled(bool(n.args[0]) and self._outer)
        if isinstance(n.target, _torch.HigherOrderOperator):
            _torch.prepare_control_flow()
        custom = n.meta.get("custom")
        if custom is None:
            return super().run_node(n)
        marks = dict(custom)
        loss = marks.pop(LOSS, None)
        self._continue_at(self._marks_of(marks), n.meta.get("stack_trace"))
        value = super().run_node(n)
        if loss is not None:
            losses.mark_loss(value, loss)
        return value
