"""The part of a trace after backward: gradients are summed, or change the parameters."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Sequence

import torch

from abele import _torch
from abele.capture.gradients import Gradients, MicroBatch
from abele.capture.recipe import Recipe
from abele.program import Role
from abele.step import loss_scaling, reduction, update_rules
from abele.step.reduction import Write
from abele.step.replica_groups import ACCUMULATOR
from abele.trace.tracer import Values


@dataclasses.dataclass(frozen=True)
class Scaled:
    """Facts about a micro-batch for an automatic loss scale.

    Attributes:
        elements: of gradients that were looked at.
        largest: upper limit of the scale.
    """

    elements: int = 0
    largest: float = 1.0


def _writer(recipe: Recipe) -> Write:
    return reduction.writer(stochastic=recipe.config.stochastic_rounding)


def count_saturated(recipe: Recipe, values: Values, batch: MicroBatch) -> Scaled:
    """Count gradients that overflow soon, where the loss scale adapts itself."""
    settings = recipe.rule.automatic_scaling
    if settings is None:
        return Scaled()
    grads = batch.gradients.values()
    counter = values.of(Role.COUNTER)[loss_scaling.SATURATED]
    loss_scaling.count_saturated(grads, counter, settings)
    return Scaled(loss_scaling.elements(grads), batch.largest_scale)


def accumulate(recipe: Recipe, values: Values, grads: Gradients) -> None:
    """Add the gradients of a micro-batch to their sums."""
    config, write = recipe.config, _writer(recipe)
    sums = values.of(Role.ACCUMULATOR)
    counted = values.of(Role.COUNTER).get(reduction.COUNTED)
    with torch.no_grad():
        for name, grad in grads.items():
            total = sums[f"{ACCUMULATOR}{name}"]
            if counted is not None and name in config.replica_groups:
                reduction.accumulate_share(total, grad, config, write)
            elif not config.adds_here:
                reduction.replace(total, grad, write)
            else:
                reduction.accumulate(total, grad, counted, write)
        if counted is not None:
            counted.add_(1)
    _torch.mark_traced("update")


def apply(recipe: Recipe, values: Values, updated: Sequence[str], scaled: Scaled) -> None:
    """Update parameters from sums of gradients, and empty these."""
    sums = values.of(Role.ACCUMULATOR)
    reduced = {
        name: reduction.reduced(sums[f"{ACCUMULATOR}{name}"], recipe.config) for name in updated
    }
    update(recipe, values, reduced, scaled)
    counted = values.of(Role.COUNTER).get(reduction.COUNTED)
    # What is replaced need not be emptied.
    emptied = sums if recipe.config.adds_here else {}
    with torch.no_grad():
        for total in emptied.values():
            total.zero_()
        if counted is not None:
            counted.zero_()
    _torch.mark_traced("update")


def update(recipe: Recipe, values: Values, grads: Gradients, scaled: Scaled) -> None:
    """Update parameters and the optimizer's state from gradients; see ``apply``."""
    state: dict[str, dict[str, torch.Tensor]] = {item.name: {} for item in recipe.params}
    for name, value in values.of(Role.OPTIMIZER_STATE).items():
        param, key = name.rsplit(".", 1)
        state[param][key] = value
    params, hyper = values.of(Role.PARAMETER), values.of(Role.HYPER)
    following = _following_scale(recipe, values, grads, scaled)
    with torch.no_grad(), following:
        update_rules.apply(recipe.rule, params, grads, state, hyper, _writer(recipe))
    _torch.mark_traced("update")


@contextlib.contextmanager
def _following_scale(
    recipe: Recipe, values: Values, grads: Gradients, scaled: Scaled
) -> Generator[None]:
    """Undo unsound updates and move the scale, where the loss scale adapts itself."""
    settings = recipe.rule.automatic_scaling
    if settings is None or not scaled.elements:
        yield
        return
    written = {name: values.of(Role.PARAMETER)[name] for name in grads}
    for name, value in values.of(Role.OPTIMIZER_STATE).items():
        if name.rpartition(".")[0] in grads:
            written[name] = value
    with loss_scaling.only_if_finite(grads.values(), written.values()):
        yield
    elements = scaled.elements * recipe.config.micro_batches_per_update
    scale, counters = values.of(Role.HYPER)["loss_scaling"], values.of(Role.COUNTER)
    loss_scaling.follow(scale, counters, settings, elements, scaled.largest)
