"""Capture of a step whose backward starts from outputs with gradients as inputs.

It is traced as a whole, then cut into sections (forward, backward and update) that a caller runs
one by one, so the sections together compute what the whole computes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from abele import _torch, passes
from abele.capture import forward, gradient_hooks
from abele.capture.core import Captured, Scaled, tracing, update
from abele.capture.diagnose import explained
from abele.capture.forward import state_in_place
from abele.capture.gradients import differentiable, gradients_of
from abele.capture.losses import LossFinder
from abele.capture.recipe import Call, Recipe, recipe_of, traced
from abele.program import (
    Program,
    Role,
    ancestors,
    has_effect,
    is_getitem,
    node_argument,
    returned_nodes,
    writes,
)
from abele.program.core import hide_frames
from abele.program.cut import Parts, cut, draws
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from abele.trace import tracer
from abele.trace.tensor_names import Lookup
from abele.trace.tracer import Named, Values

#: The name of the program before it is cut.
STEP = "step"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """A tensor that forward returns.

    Attributes:
        dtype: its element type.
        differentiable: whether it depends on a trained parameter.
        loss: it is differentiable, and a scalar or the result of a criterion of torch.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    differentiable: bool
    loss: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sectioned:
    """A captured model and the data shared by its sections.

    Attributes:
        captured: its programs.
        outputs: what forward returns, constants included.
        starts: positions of the outputs that backward starts from; none for inference.
    """

    captured: Captured
    outputs: tuple[Output, ...]
    starts: tuple[int, ...]


def gradient_of_output(index: int) -> str:
    """Name the input slot for the gradient of an output."""
    return f"output_gradient{index}"


def gradient_of(parameter: str) -> str:
    """Name the output slot for the gradient of a parameter."""
    return f"gradient.{parameter}"


def capture_from_outputs(
    call: Call,
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    rule: UpdateRule,
    choose: Callable[[Sequence[Output]], Sequence[int]],
    *,
    hidden_paths: Sequence[str] = (),
) -> Sectioned:
    """Capture a step that starts backward from outputs of forward.

    Forward runs twice: first without a trace, which is much faster, to see what it returns.

    Args:
        call: as for ``capture``.
        module: as for ``capture``.
        inputs: as for ``capture``.
        rule: the optimizer.
        choose: returns the positions of one or more differentiable outputs.
        hidden_paths: as for ``capture``.

    Returns:
        One program, ``step``: the outputs of forward, then the gradients of parameters.

    Raises:
        CaptureError: a hook that no program can run.
        DataDependentError: forward reads a value.
        ReassignedError: forward replaces a parameter or buffer.
    """
    config = StepConfig(training=True)
    with tracing():
        recipe = _only_trained(recipe_of(call, module, inputs, config, rule))
        gradient_hooks.check(module, recipe.state.originals)
        with recipe.leftovers.mended():
            outputs = _examined(recipe)
        starts = tuple(choose(outputs))
        with recipe.leftovers.mended():
            trace = functools.partial(_step, outputs=outputs, starts=starts)
            step, constants, updated = traced(trace, recipe)
    hide_frames(step, hidden_paths)
    captured = Captured(
        programs=(step,),
        constants={i: value.detach().clone() for i, value in constants.items()},
        updated=updated,
    )
    return Sectioned(captured=captured, outputs=outputs, starts=starts)


def _only_trained(recipe: Recipe) -> Recipe:
    """Drop the gradients of parameters that the update rule does not update."""
    trained = set(recipe.trained)
    params = [dataclasses.replace(p, requires_grad=p.name in trained) for p in recipe.params]
    return dataclasses.replace(recipe, params=tuple(params))


def _examined(recipe: Recipe) -> tuple[Output, ...]:
    mode, slots = _torch.static_fakes(), recipe.model_slots
    with mode, _torch.without_log_of_fakes(), torch.enable_grad():
        fakes = [tracer.fake_of(each, mode).requires_grad_(each.requires_grad) for each in slots]
        values = Values(slots, fakes)
        place, finder = state_in_place(recipe, values), LossFinder()
        with place as references, finder, explained():
            outputs = forward.called(recipe, values, references)
    criteria = {id(value) for _, value in finder.losses}
    return tuple(
        Output(
            shape=tuple(value.shape),
            dtype=value.dtype,
            differentiable=value.requires_grad,
            loss=value.requires_grad and (value.dim() == 0 or id(value) in criteria),
        )
        for value in outputs
    )


_Beside = tuple[Mapping[int, torch.Tensor], tuple[str, ...]]


def _step(
    recipe: Recipe, outputs: Sequence[Output], starts: Sequence[int]
) -> tuple[Program, Mapping[int, torch.Tensor], tuple[str, ...]]:
    """Trace a step that starts from outputs; return it, constant outputs and updated parameters."""
    seeds = [
        Named(
            gradient_of_output(i),
            Role.INPUT,
            torch.empty(outputs[i].shape, dtype=outputs[i].dtype),
        )
        for i in starts
    ]

    def body(values: Values) -> tuple[list[torch.Tensor], _Beside]:
        upstream = [values.of(Role.INPUT)[seed.name] for seed in seeds]
        with differentiable(recipe, values) as references:
            result = forward.run(recipe, values, references)
            _torch.mark_traced("forward")
            heads = [result.returned[i] for i in starts]
            gradients = gradients_of(recipe, heads, upstream, values)
        _torch.mark_traced("backward")
        update(recipe, values, gradients, Scaled())
        returned = [*result.outputs, *gradients.values()]
        return returned, (result.constants, tuple(gradients))

    slots = [*recipe.model_slots, *seeds, *recipe.update_slots]
    step, (constants, updated) = tracer.trace(STEP, body, slots, _torch.static_fakes(), Lookup())
    return _with_named_gradients(step, updated), constants, updated


def _with_named_gradients(step: Program, updated: Sequence[str]) -> Program:
    first = len(step.outputs) - len(updated)
    named = [
        dataclasses.replace(slot, name=gradient_of(name))
        for slot, name in zip(step.outputs[first:], updated, strict=True)
    ]
    return step.replace(outputs=(*step.outputs[:first], *named)).verify()


FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


def sections(sectioned: Sectioned) -> tuple[Program, ...]:
    """Cut a step into the programs ``forward``, ``backward`` and ``update``.

    An input of a section that is neither state nor an input of the step is an output of that name
    of an earlier section. The results of forward belong to the caller; ``update`` reads the
    gradients that ``backward`` returned.
    """
    (step,) = sectioned.captured.programs
    step = passes.run(step)  # without nodes that say nothing, less crosses the cuts
    results = len(step.outputs) - len(sectioned.captured.updated)
    seeds = [gradient_of_output(i) for i in sectioned.starts]
    parts = cut(
        step,
        _assigned(step, results, seeds),
        (FORWARD, BACKWARD, UPDATE),
        shared={i: step.outputs[i].name for i in range(results, len(step.outputs))},
        homes=dict.fromkeys(seeds, 1),
    )
    return tuple(part.program for part in parts if part.program is not None)


def _assigned(step: Program, results: int, seeds: Sequence[str]) -> Parts:
    """Assign every operation of a step to the first section that needs it."""
    nodes = [n for n in step.graph.graph.nodes if n.op not in ("placeholder", "output")]
    returned = returned_nodes(step.graph)
    late = {
        node
        for node, slot in zip(step.placeholders(), step.inputs, strict=True)
        if slot.role is Role.INPUT and slot.name in seeds
    }
    for node in nodes:
        if late.intersection(node.all_input_nodes):
            late.add(node)
    forward_nodes = _needed(step, nodes, returned[:results], late)
    backward_nodes = _needed(step, nodes, returned[results:], ())
    parts = {n: 0 if n in forward_nodes else 1 if n in backward_nodes else 2 for n in nodes}
    for index, node in enumerate(returned):  # placeholders may be returned, too
        parts.setdefault(node, 0 if index < results else 1)
    return parts


def _needed(
    step: Program,
    nodes: Sequence[torch.fx.Node],
    results: Sequence[torch.fx.Node],
    late: Collection[torch.fx.Node],
) -> set[torch.fx.Node]:
    """Collect the operations of a section: its results' inputs, side effects and ordered ones.

    Args:
        step: the whole step.
        nodes: its operations.
        results: what the section returns.
        late: operations that a later section computes.
    """
    slots = dict(zip(step.placeholders(), step.inputs, strict=True))
    roots = {
        node
        for node in nodes
        if node not in late
        and (
            draws(node)
            or has_effect(node)
            # A buffer or an input; parameters belong to the update.
            or (writes(node) and slots[node_argument(node, 0)].role in (Role.BUFFER, Role.INPUT))
        )
    }
    roots |= set(results)
    needed = roots | ancestors(*roots)
    # A result of several values goes where its producer is.
    return needed | {n for n in nodes if is_getitem(n) and node_argument(n, 0) in needed}
