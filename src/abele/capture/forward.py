"""Tracing of the user's forward on traced state, and its outputs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from abele import _torch
from abele._torch.contexts import counted_as_parameters
from abele._torch.dynamo import compiled_functions_run_plainly
from abele.capture import losses
from abele.capture.diagnose import explained
from abele.capture.recipe import Recipe
from abele.capture.replacements.portable import portable_functions
from abele.program import Role
from abele.trace import scopes
from abele.trace.decompositions import constant_value
from abele.trace.module_state import in_place_of, substituted
from abele.trace.plain_tensors import written_stand_in
from abele.trace.tracer import Values


class References(TorchFunctionMode):
    """A torch function mode that replaces the user's parameters by traced tensors.

    While forward is captured its modules hold tensors of the trace. A list such as
    ``self.weights = [self.fc.weight]``, a dictionary or a closure still holds the user's own.
    """

    def __init__(self, instead: Mapping[int, torch.Tensor]):
        super().__init__()
        self._instead = instead

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a torch function with traced tensors in place of parameters."""
        named: dict[str, Any] = kwargs or {}
        named = {name: self.resolved(value) for name, value in named.items()}
        return func(*map(self.resolved, args), **named)

    def resolved(self, value: Any) -> Any:
        """Return a nested value with parameters and buffers replaced by traced tensors."""
        if isinstance(value, torch.Tensor):
            return self._instead.get(id(value), value)
        if type(value) in (list, tuple):
            return type(value)(map(self.resolved, value))
        return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forward:
    """The tensors returned by the traced forward.

    Attributes:
        returned: the returned tensors with autograd history.
        outputs: returned tensors that the program computes, without history.
        constants: the values of all other returned tensors, by position.
    """

    returned: Sequence[torch.Tensor]
    outputs: list[torch.Tensor]
    constants: Mapping[int, torch.Tensor]


@contextlib.contextmanager
def state_in_place(recipe: Recipe, values: Values) -> Generator[References]:
    """Replace the module's state by traced tensors in a ``with`` block."""
    traced = values.of(Role.PARAMETER), values.of(Role.BUFFER)
    references = References(in_place_of(recipe.state, *traced))
    with (
        counted_as_parameters(traced[0].values()),
        substituted(recipe.state, *traced, constant_value),
    ):
        yield references


def called(recipe: Recipe, values: Values, references: References) -> list[torch.Tensor]:
    """Call forward on traced or other state, within a trace if one is active.

    Errors are torch's; callers open ``explained``.
    """
    inputs = values.of(Role.INPUT)
    with (
        references,
        scopes.recording(recipe.module_names),
        portable_functions(
            training=recipe.config.training, whole_layers=recipe.whole_layers, widens=True
        ),
        compiled_functions_run_plainly(),
    ):
        outputs = recipe.call([inputs[item.name] for item in recipe.inputs])
        return [references.resolved(output) for output in outputs]


def run(recipe: Recipe, values: Values, references: References) -> Forward:
    """Trace forward with its state as traced tensors."""
    with explained():
        returned = called(recipe, values, references)
    losses.warn_of_lost_state(recipe.leftovers.reassigned())
    recipe.leftovers.mend(constant_value, state=False)
    constants: dict[int, torch.Tensor] = {}
    outputs: list[torch.Tensor] = []
    for index, output in enumerate(returned):
        known = None if _torch.traced_node(output) else constant_value(output)
        if known is not None:
            constants[index] = known
        else:
            # None for traced ones; else forward wrote into it what depends on an input.
            stand_in = written_stand_in(output)
            outputs.append((output if stand_in is None else stand_in).detach())
    return Forward(returned=returned, outputs=outputs, constants=constants)


def inference(recipe: Recipe, values: Values) -> Forward:
    """Trace forward alone, without gradients."""
    with torch.no_grad(), state_in_place(recipe, values) as references:
        result = run(recipe, values, references)
    _torch.mark_traced("forward")
    return result
