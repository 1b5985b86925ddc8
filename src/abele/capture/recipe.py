"""The inputs of a trace: forward with its training step as slots and settings.

A recipe is immutable. Its trace returns a program, and values that the next program needs.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch

from abele.capture.leftovers import Leftovers
from abele.capture.origins import are_wanted
from abele.errors import CaptureError
from abele.ops.recurrent import StepsNeeded
from abele.program import Role
from abele.step import loss_scaling, reduction, replica_groups
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from abele.trace.module_state import ModuleState
from abele.trace.tracer import Named, Values

_Result = TypeVar("_Result")

Call = Callable[[list[torch.Tensor]], list[torch.Tensor]]


class CopiesNeeded(Exception):
    """An exception: forward writes to a saved value, so backward has to be traced with copies."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """The inputs of a trace: a forward, its state as slots and its update rule.

    Attributes:
        call: runs forward on flat inputs and returns its flat tensor outputs.
        state: the module and what it holds.
        inputs: one micro-batch as slots.
        config: how one call consumes its batch.
        rule: the optimizer; without groups where nothing is trained.
        module_names: paths recorded on nodes, by module.
        origins: nodes of backward carry what is known of their operation of forward.
        leftovers: the user's objects as they were before forward ran.
        whole_layers: recurrent layers are one operator, see ``traced``.
        saved_copies: backward gets copies of what autograd saves, see ``gradients``.
    """

    call: Call
    state: ModuleState
    params: tuple[Named, ...]
    buffers: tuple[Named, ...]
    inputs: tuple[Named, ...]
    config: StepConfig
    rule: UpdateRule
    module_names: Mapping[torch.nn.Module, str]
    origins: bool
    leftovers: Leftovers
    whole_layers: bool = True
    saved_copies: bool = False

    @property
    def model_slots(self) -> list[Named]:
        """The input slots of forward: parameters, buffers and inputs."""
        return [*self.params, *self.buffers, *self.inputs]

    @property
    def trained(self) -> list[str]:
        """Names of the parameters that get gradients where the loss depends on them."""
        grouped = {name for group in self.rule.groups for name in group.params}
        return [p.name for p in self.params if p.requires_grad and p.name in grouped]

    @property
    def hyper_slots(self) -> list[Named]:
        """The slots of hyper-parameters that may change between calls."""
        return [
            Named(name, Role.HYPER, torch.tensor(value, dtype=torch.float64))
            for name, value in self.rule.hyper().items()
        ]

    @property
    def counters(self) -> list[Named]:
        """The slots of counters that programs update."""
        names = [reduction.COUNTED] if reduction.runs_as_mean(self.config) else []
        if self.rule.automatic_scaling is not None:
            names += loss_scaling.COUNTERS
        # One tensor each: the same one twice would become the same slot.
        return [Named(n, Role.COUNTER, torch.zeros((), dtype=torch.float64)) for n in names]

    @property
    def update_slots(self) -> list[Named]:
        """The slots of optimizer state and hyper-parameters."""
        trained = set(self.trained)
        # Only layouts count here, and to write the state of a large model takes time and memory.
        params = {item.name: torch.empty_like(item.value, device="meta") for item in self.params}
        devices = {item.name: item.value.device for item in self.params}
        state = [
            Named(slot, Role.OPTIMIZER_STATE, torch.empty_like(value, device=devices[param]))
            for slot, value in self.rule.initial_state(params).items()
            if (param := slot.rpartition(".")[0]) in trained
        ]
        return state + self.hyper_slots

    def accumulators(self, names: Sequence[str]) -> list[Named]:
        """Return slots for the gradient sums of some parameters."""
        dtype = self.rule.accumulator_dtype
        params = {item.name: item.value for item in self.params}
        return [
            Named(
                f"{replica_groups.ACCUMULATOR}{name}",
                Role.ACCUMULATOR,
                torch.empty_like(params[name], dtype=dtype),
            )
            for name in names
        ]

    def loss_scale(self, values: Values) -> float | torch.Tensor:
        """Return the loss scale: a number, or a traced slot."""
        if self.rule.loss_scaling_variable:
            return values.of(Role.HYPER)["loss_scaling"]
        return self.rule.loss_scaling

    def per_group(self) -> Recipe:
        """Return the recipe with one parameter per replica group for each per-replica parameter."""
        groups = self.config.replica_groups
        if not groups:
            return self
        params = [
            # Different tensors, because tracing knows a tensor by its identity.
            dataclasses.replace(item, name=name, value=torch.empty_like(item.value))
            for item in self.params
            for name in replica_groups.names_in([item.name], groups)
        ]
        expanded = [
            dataclasses.replace(group, params=tuple(replica_groups.names_in(group.params, groups)))
            for group in self.rule.groups
        ]
        rule = dataclasses.replace(self.rule, groups=tuple(expanded))
        return dataclasses.replace(self, params=tuple(params), rule=rule)


def traced(trace: Callable[[Recipe], _Result], recipe: Recipe) -> _Result:
    """Call ``trace`` with a recipe, and again if its backward needs other settings.

    Recurrent layers are one operator each, or steps if they have to be. Values that backward needs
    are copied only if forward writes into one of them. A trace that is repeated draws the random
    numbers of Python and numpy that the first one drew, as if there had been one.
    """
    python, numpys = random.getstate(), np.random.get_state(legacy=False)
    for _ in range(2):
        # Errors of a later trace are not shown as consequences of an earlier one.
        try:
            return trace(recipe)
        except StepsNeeded:
            recipe = dataclasses.replace(recipe, whole_layers=False)
        except CopiesNeeded:
            recipe = dataclasses.replace(recipe, saved_copies=True)
        random.setstate(python)
        np.random.set_state(numpys)
    return trace(recipe)


def recipe_of(
    call: Call,
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    config: StepConfig,
    rule: UpdateRule | None,
    *,
    name_modules: bool = True,
    origins: bool = False,
    given: Sequence[object] = (),
) -> Recipe:
    """Read a module and create the recipe of its capture.

    Raises:
        CaptureError: training without a rule; a module whose state no program can hold.
    """
    if config.training and rule is None:
        raise CaptureError("A training program needs an update rule, found none. Pass one.")
    state = ModuleState.of(module)
    params = [
        Named(
            n,
            Role.PARAMETER,
            # Forward sees one group's value; only its shape matters here.
            torch.empty_like(v[0]) if n in config.replica_groups else v,
            n in state.trainable,
        )
        for n, v in state.params.items()
    ]
    return Recipe(
        call=call,
        state=state,
        params=tuple(params),
        buffers=tuple(Named(n, Role.BUFFER, v) for n, v in state.buffers.items()),
        inputs=tuple(Named(f"input{i}", Role.INPUT, v) for i, v in enumerate(inputs)),
        config=config,
        rule=rule or UpdateRule(kind="sgd", groups=()),
        module_names={m: path for path, m in state.modules.items()} if name_modules else {},
        origins=origins or config.trap_exceptions or are_wanted(),
        leftovers=Leftovers(module, *given),
    )
