"""Capture of a module, an update rule and one example micro-batch as programs.

Forward runs once, on tensors without data, inside one trace that goes on through the loss, the
backward pass and the update. What comes out is pure: state is written only by final ``copy_``.
No file of this folder knows any front-end: ``call`` hides how arguments are passed and returned.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch

from abele import _torch, cpython
from abele._torch import checks
from abele.capture import forward, gradient_hooks
from abele.capture.gradients import Gradients, MicroBatch, micro_batch
from abele.capture.recipe import Call, Recipe, recipe_of, traced
from abele.program import Program, Role
from abele.program.core import hide_frames
from abele.step import loss_scaling, reduction, replica_groups, update_rules
from abele.step.config import StepConfig
from abele.step.reduction import Write
from abele.step.replica_groups import ACCUMULATOR
from abele.step.update_rules import UpdateRule
from abele.trace import tracer
from abele.trace.tensor_names import Lookup
from abele.trace.tracer import Values


@dataclasses.dataclass(frozen=True, kw_only=True)
class Captured:
    """The captured programs of a model, with constants and tensor names.

    Attributes:
        programs: ``forward``; or ``step``; or ``accumulate`` and ``apply``; or those of
            ``capture_sections``.
        constants: outputs of forward that no program computes, by position.
        updated: parameters that receive gradients.
        tensor_names: names that ``anchors`` of ``capture`` may contain; see ``tensor_names``.
        loss: which output of the program of a micro-batch is the loss that is trained; None if
            none is.
    """

    programs: tuple[Program, ...]
    constants: Mapping[int, torch.Tensor]
    updated: tuple[str, ...] = ()
    tensor_names: tuple[str, ...] = ()
    loss: int | None = None

    @property
    def by_name(self) -> dict[str, Program]:
        """The captured programs by name."""
        return {program.name: program for program in self.programs}


@cpython.with_room
def capture(
    call: Call,
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    config: StepConfig,
    rule: UpdateRule | None = None,
    *,
    name_modules: bool = True,
    hidden_paths: Sequence[str] = (),
    anchors: Sequence[str] = (),
    origins: bool = False,
    given: Sequence[object] = (),
) -> Captured:
    """Capture one micro-batch of ``module`` as static programs.

    One capture at a time: others wait in their threads. A thread that runs other modules meanwhile
    is not disturbed; ``module`` itself must not run elsewhere, since it holds tensors without data.

    Args:
        call: runs forward on flat inputs and returns its flat tensor outputs.
        module: holds the parameters and buffers that ``call`` uses.
        inputs: one micro-batch, flat; only shapes and dtypes are used.
        config: decides between one whole step and accumulate + apply.
        rule: the optimizer; needed for training.
        name_modules: nodes record the path of their module.
        hidden_paths: fragments of file paths that are not reported as the user's source.
        anchors: names of tensors that programs return behind their outputs.
        origins: nodes of backward carry what is known of their operation of forward; see
            ``origins``.
        given: objects that ``call`` passes to forward besides the inputs. No tensor without data
            is left in objects reachable from these or from ``module``.

    Raises:
        CaptureError: an anchor's name does not exist; a hook that no program can run.
        DataDependentError: forward reads a value (``.item()``, ``if tensor``).
        LossError: training, and not exactly one final loss.
        ReassignedError: forward replaces a parameter or buffer.
    """
    with tracing():
        recipe = recipe_of(
            call,
            module,
            inputs,
            config,
            rule,
            name_modules=name_modules,
            origins=origins,
            given=given,
        )
        with recipe.leftovers.mended():
            captured = traced(functools.partial(_captured, anchors=anchors), recipe)
    for program in captured.programs:
        hide_frames(program, hidden_paths)
    return captured


@contextlib.contextmanager
def tracing() -> Generator[None]:
    """Lock capture, so that one thread at a time reads and traces a module.

    Raises:
        TorchVersionError: torch is newer than those tried and lacks what captures need.
    """
    checks.require_capture()
    with _torch.TRACING, cpython.uncollected():
        yield


_Trace = Callable[..., tuple[Program, Any]]
_Traced = tuple[tuple[Program, ...], "_Result"]


@dataclasses.dataclass(frozen=True)
class Scaled:
    """Gradient counts and the scale limit of a micro-batch, for an automatic loss scale.

    Attributes:
        elements: number of examined gradient elements.
        largest: upper limit of the scale.
    """

    elements: int = 0
    largest: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Result:
    """Results of tracing a micro-batch, besides its program."""

    constants: Mapping[int, torch.Tensor]
    updated: tuple[str, ...] = ()
    scaled: Scaled = dataclasses.field(default_factory=Scaled)
    loss: int | None = None


def _captured(recipe: Recipe, anchors: Sequence[str]) -> Captured:
    lookup = Lookup(anchors)
    trace = functools.partial(tracer.trace, mode=_torch.static_fakes(), lookup=lookup)
    if recipe.config.training:
        gradient_hooks.check(recipe.state.module, recipe.state.originals)
        whole = recipe.config.micro_batches_per_update == 1
        programs, result = (_step if whole else _accumulate_and_apply)(recipe, trace, lookup)
    else:
        programs, result = _forward(recipe, trace)
    lookup.check()
    return Captured(
        programs=programs,
        constants={i: value.detach().clone() for i, value in result.constants.items()},
        updated=result.updated,
        tensor_names=lookup.names,
        loss=result.loss,
    )


def _forward(recipe: Recipe, trace: _Trace) -> _Traced:
    def body(values: Values) -> tuple[list[torch.Tensor], _Result]:
        result = forward.inference(recipe, values)
        return result.outputs, _Result(constants=result.constants)

    program, result = trace("forward", body, recipe.model_slots)
    return (program,), result


def _step(recipe: Recipe, trace: _Trace, lookup: Lookup) -> _Traced:
    def body(values: Values) -> tuple[list[torch.Tensor], _Result]:
        batch, result = _micro_batch(recipe, values, lookup)
        update(recipe, values, batch.gradients, result.scaled)
        return batch.forward.outputs, result

    slots = recipe.model_slots + recipe.update_slots + recipe.counters
    program, result = trace("step", body, slots)
    return (program,), result


def _accumulate_and_apply(recipe: Recipe, trace: _Trace, lookup: Lookup) -> _Traced:
    def body(values: Values) -> tuple[list[torch.Tensor], _Result]:
        batch, result = _micro_batch(recipe, values, lookup)
        accumulate(recipe, values, batch.gradients)
        return batch.forward.outputs, result

    slots = recipe.model_slots + recipe.accumulators(recipe.trained) + recipe.counters
    # The loss is scaled where backward starts; the other hyper-parameters act in apply.
    slots += [item for item in recipe.hyper_slots if item.name == "loss_scaling"]
    program, result = trace("accumulate", body, slots)
    return (program, _apply(recipe.per_group(), trace, result)), result


def _apply(recipe: Recipe, trace: _Trace, result: _Result) -> Program:
    updated = replica_groups.names_in(result.updated, recipe.config.replica_groups)

    def body(values: Values) -> tuple[list[torch.Tensor], None]:
        apply(recipe, values, updated, result.scaled)
        return [], None

    slots = [item for item in recipe.params if item.name in updated]
    slots += recipe.accumulators(updated) + recipe.update_slots + recipe.counters
    return trace("apply", body, slots)[0]


def _micro_batch(recipe: Recipe, values: Values, lookup: Lookup) -> tuple[MicroBatch, _Result]:
    batch = micro_batch(recipe, values)
    lookup.note_gradients(batch.gradients)
    return batch, _Result(
        constants=batch.forward.constants,
        updated=tuple(batch.gradients),
        scaled=count_saturated(recipe, values, batch),
        loss=batch.loss,
    )


def _writer(recipe: Recipe) -> Write:
    return reduction.writer(stochastic=recipe.config.stochastic_rounding)


def count_saturated(recipe: Recipe, values: Values, batch: MicroBatch) -> Scaled:
    """Count gradient elements near overflow, for an automatic loss scale."""
    settings = recipe.rule.automatic_scaling
    if settings is None:
        return Scaled()
    grads = batch.gradients.values()
    counter = values.of(Role.COUNTER)[loss_scaling.SATURATED]
    loss_scaling.count_saturated(grads, counter, settings)
    return Scaled(loss_scaling.elements(grads), batch.largest_scale)


def accumulate(recipe: Recipe, values: Values, grads: Gradients) -> None:
    """Trace the addition of a micro-batch's gradients to the accumulators."""
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
    """Trace the update of parameters from the accumulators, which are then zeroed."""
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
    """Trace the update of parameters and optimizer state from gradients; see ``apply``."""
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
    """Undo overflowed updates and adapt the scale, if the loss scale is automatic."""
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
