"""Tracing of forward, its loss and backward in one trace.

Forward may write into values that autograd saves for backward:

    y = relu(x); y.mul_(2)   ->   y = relu(x); saved = clone(y); z = mul(y, 2)

Plain PyTorch refuses such a backward, because y is overwritten. Compilers differentiate programs
without writes, and so does this module: backward gets copies from before the write.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from abele import _torch
from abele.capture import forward, gradient_hooks, losses
from abele.capture.diagnose import explained
from abele.capture.forward import Forward, References, state_in_place
from abele.capture.losses import LossFinder
from abele.capture.origins import backward_origins
from abele.capture.recipe import CopiesNeeded, Recipe
from abele.capture.replacements import recurrent_layers
from abele.errors import CaptureError
from abele.program import Role, node_argument
from abele.program.aliasing import base, written
from abele.step import loss_scaling, reduction
from abele.trace.tracer import Values
from abele.warn import user_line

Gradients = Mapping[str, torch.Tensor]

_Tensor: Any = torch.Tensor  # its attributes have no types
_CHANGES_TRAINING = (_Tensor.requires_grad_, _Tensor.requires_grad.__set__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """The traced forward, loss and gradients of a micro-batch.

    Attributes:
        forward: what forward returned.
        gradients: of the loss, by parameter; scaled.
        largest_scale: upper limit of the loss scale.
        loss: index of the loss in forward's outputs; None if another form of it is returned.
    """

    forward: Forward
    gradients: Gradients
    largest_scale: float
    loss: int | None


def gradients_of(
    recipe: Recipe, heads: Sequence[torch.Tensor], seeds: Sequence[torch.Tensor], values: Values
) -> dict[str, torch.Tensor]:
    """Compute gradients of some tensors by the trained parameters that they depend on.

    Raises:
        CaptureError: backward leads through a reentrant checkpoint.
        CopiesNeeded: forward writes into a value that backward needs.
        StepsNeeded: a recurrent layer as one operator would have other gradients than torch's.
    """
    params = values.of(Role.PARAMETER)
    # Forward may freeze some, as plain PyTorch's steps would have them frozen from then on.
    names = [name for name in recipe.trained if params[name].requires_grad]
    leaves = [params[name] for name in names]
    for name, leaf in zip(names, leaves, strict=True):
        original = recipe.state.originals[name]
        gradient_hooks.register(leaf, original, name, recipe.loss_scale(values))
    refuse_reentrant_checkpoints(heads)
    _require_only_readers(heads)
    with explained(), writes_noticed(copies=recipe.saved_copies):
        grads: Any = torch.autograd.grad(heads, leaves, seeds, allow_unused=True) if names else ()
    return {n: g.detach() for n, g in zip(names, grads, strict=True) if g is not None}


def _require_only_readers(heads: Sequence[torch.Tensor]) -> None:
    nodes = map(_torch.traced_node, heads)
    graph = next((node.graph for node in nodes if node is not None), None)
    if graph is not None:
        recurrent_layers.require_only_readers(graph)


@contextlib.contextmanager
def differentiable(recipe: Recipe, values: Values) -> Generator[References]:
    """Replace state by traced tensors that need gradients, in a ``with`` block."""
    # Until backward is done: activation checkpointing runs parts of forward again there.
    hooks = gradient_hooks.checked_modules(recipe.state.modules)
    frozen = _FrozenParameters(recipe, values)
    copies = copied(wanted=recipe.saved_copies)
    with torch.enable_grad(), frozen, state_in_place(recipe, values) as references, hooks, copies:
        yield references


class _FrozenParameters(TorchFunctionMode):
    """A mode that refuses to unfreeze a parameter that was frozen at the capture."""

    def __init__(self, recipe: Recipe, values: Values):
        super().__init__()
        params = values.of(Role.PARAMETER)
        frozen = {each for group in recipe.rule.groups for each in group.params}
        frozen -= {*recipe.trained}
        self._names = {id(params[name]): name for name in frozen if name in params}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = self._names.get(id(args[0])) if func in _CHANGES_TRAINING else None
        if name is not None and args[0].requires_grad:
            raise CaptureError(
                f"forward makes {name} trainable, at {user_line()}, which was frozen when the "
                f"program was captured. Call {name}.requires_grad_() before the model is wrapped."
            )
        return result


def micro_batch(recipe: Recipe, values: Values) -> MicroBatch:
    """Trace forward and the backward of its only loss.

    Raises:
        LossError: not exactly one final loss.
    """
    origins = backward_origins(wanted=recipe.origins)
    with differentiable(recipe, values) as references, origins as following:
        with LossFinder() as finder:
            result = forward.run(recipe, values, references)
        name, loss = finder.final()
        _torch.mark_traced("forward")
        trained = _trained_nodes(recipe, values)
        losses.warn_of_other_losses(name, loss, result.returned, trained)
        gradients, largest_scale = {}, 1.0
        if loss.requires_grad and recipe.trained:
            # A loss without reduction means the sum of its elements: a seed of ones.
            seed = torch.ones_like(loss) * _seed_factor(recipe, values)
            largest_scale = loss_scaling.limit(loss)
            with following(loss):
                gradients = gradients_of(recipe, [loss], [seed], values)
        if not gradients:
            losses.warn_of_no_gradient(name, loss, trained)
    _torch.mark_traced("backward")
    at = _returned_at(loss, result)
    return MicroBatch(
        forward=result,
        gradients=gradients,
        largest_scale=largest_scale,
        loss=at,
    )


def _returned_at(loss: torch.Tensor, result: Forward) -> int | None:
    """Return the position of a tensor among the outputs that the program computes."""
    computed = [each for i, each in enumerate(result.returned) if i not in result.constants]
    return next((i for i, each in enumerate(computed) if each is loss), None)


def _trained_nodes(recipe: Recipe, values: Values) -> set[torch.fx.Node]:
    params = values.of(Role.PARAMETER)
    nodes = {_torch.traced_node(params[each]) for each in recipe.trained}
    return {node for node in nodes if node is not None}


def _seed_factor(recipe: Recipe, values: Values) -> float | torch.Tensor:
    scale, divisor = recipe.loss_scale(values), reduction.loss_divisor(recipe.config)
    return scale / divisor if divisor > 1 else scale


# The backward of reentrant checkpoints calls backward and leaves gradients on parameters. A program
# has one backward: some of these checkpoints would fail in it, and others would not train.
_NAME = "CheckpointFunctionBackward"


def refuse_reentrant_checkpoints(heads: Sequence[torch.Tensor]) -> None:
    """Raise CaptureError for a reentrant checkpoint in the graph of some tensors."""
    for function in losses.autograd_functions(heads):
        if function.name() == _NAME:
            raise CaptureError(
                "forward uses torch.utils.checkpoint with use_reentrant=True, which "
                "calls backward inside backward; a program has one. Pass use_reentrant=False: the "
                "numbers are the same."
            )


# Phrases of torch's errors; see tests/unit/capture/test_saved_values.py.
_CHANGED = "modified by an inplace operation"


@contextlib.contextmanager
def writes_noticed(*, copies: bool) -> Generator[None]:
    """Translate torch's error about overwritten saved values while backward is traced.

    Args:
        copies: backward has copies already.

    Raises:
        CopiesNeeded: torch says so, and there are none.
    """
    try:
        yield
    except RuntimeError as error:
        if _CHANGED in str(error) and not copies:
            raise CopiesNeeded from None
        raise


@contextlib.contextmanager
def copied(*, wanted: bool) -> Generator[None]:
    """Have autograd save copies of traced values in a ``with`` block, against later writes.

    On leaving, when backward is traced, only copies of values that are written to are left.
    """
    if not wanted:
        yield
        return
    copies: list[torch.fx.Node] = []

    def copy(value: torch.Tensor) -> torch.Tensor:
        if not isinstance(value, _torch.FakeTensor):
            return value
        result = value.clone()
        node = _torch.traced_node(result)
        copies.extend([] if node is None else [node])
        return result

    with torch.autograd.graph.saved_tensors_hooks(copy, lambda value: value):
        yield
    _remove_needless(copies)


def _remove_needless(copies: list[torch.fx.Node]) -> None:
    """Replace saved copies of memory that no later node writes by that memory itself."""
    needless = set(copies)
    changed: set[torch.fx.Node] = set()
    for node in reversed(copies[0].graph.nodes) if copies else ():
        changed.update(base(target) for target in written(node))
        if node in needless and base(node_argument(node, 0)) not in changed:
            node.target, node.kwargs = torch.ops.aten.alias.default, {}
