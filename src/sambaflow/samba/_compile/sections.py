"""Capture of a model: the call of forward, and the outputs where backward starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

import sambaflow
from abele.capture import Captured, capture
from abele.capture.sections import Output, Sectioned, capture_from_outputs, sections
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from abele.trace.module_state import ModuleState, plain
from sambaflow.errors import GraphError
from sambaflow.samba._calls.structure import flat_tensors


def trace_model(
    module: torch.nn.Module,
    positional: Sequence[torch.Tensor],
    keywords: Mapping[str, torch.Tensor],
    rule: UpdateRule | None,
    loss_indices: Sequence[int] | None = None,
    *,
    fused_only: bool = False,
) -> Sectioned:
    """Capture a module with its loss, backward pass and update.

    Args:
        module: runs as it is: training mode or not, parameters of any floating type.
        positional: one batch, in the order of forward's parameters; only shapes and dtypes count.
        keywords: the same by name.
        rule: the optimizer; None captures forward alone.
        loss_indices: the outputs from which backward starts. By default those that are scalars or
            results of a criterion; without any, every output, whose gradients then come from the
            host.
        fused_only: only the whole step, no sections.

    Returns:
        ``forward``; for training also ``backward``, ``update`` and, where something is a loss,
        ``step``.

    Raises:
        GraphError: nothing to train, or ``loss_indices`` does not fit what forward returns.
        abele.AbeleError: forward cannot be traced; names the line.
    """
    names = tuple(keywords)

    def call(flat: list[torch.Tensor]) -> list[torch.Tensor]:
        count = len(flat) - len(names)
        result = module(*flat[:count], **dict(zip(names, flat[count:], strict=True)))
        outputs = list(flat_tensors(result))
        if not outputs:
            raise GraphError(
                f"forward of {type(module).__name__} returned no tensor, found "
                f"{type(result).__name__}. Return a tensor, or tuples, lists or dictionaries of "
                "tensors."
            )
        return outputs

    inputs = [plain(value) for value in (*positional, *keywords.values())]
    hidden = [str(path) for path in sambaflow.__path__]
    if rule is None:
        config = StepConfig(training=False)
        captured = capture(call, module, inputs, config, hidden_paths=hidden)
        return Sectioned(captured=captured, outputs=_inferred(captured), starts=())
    whole = capture_from_outputs(
        call,
        module,
        inputs,
        rule,
        lambda outputs: _starts(module, rule, outputs, loss_indices),
        hidden_paths=hidden,
    )
    return _with_sections(whole, loss_indices, fused_only=fused_only)


def _inferred(captured: Captured) -> tuple[Output, ...]:
    computed = iter(captured.programs[0].outputs)
    constants = captured.constants
    count = len(constants) + len(captured.programs[0].outputs)
    described = [constants[i] if i in constants else next(computed) for i in range(count)]
    return tuple(
        Output(shape=tuple(each.shape), dtype=each.dtype, differentiable=False, loss=False)
        for each in described
    )


def _with_sections(
    whole: Sectioned, loss_indices: Sequence[int] | None, *, fused_only: bool
) -> Sectioned:
    """Keep the programs that can run: the step where something is a loss, and its sections."""
    hosts = not (loss_indices or any(whole.outputs[i].loss for i in whole.starts))
    if fused_only and hosts:
        raise GraphError(
            "fused_only was asked for, but no output of forward is a loss, so that gradients "
            "come from the host. Return the loss from forward or leave fused_only unset."
        )
    programs = () if hosts else whole.captured.programs
    if not fused_only:
        programs += sections(whole)
    captured = dataclasses.replace(whole.captured, programs=programs)
    return dataclasses.replace(whole, captured=captured)


def _starts(
    module: torch.nn.Module,
    rule: UpdateRule,
    outputs: Sequence[Output],
    wanted: Sequence[int] | None,
) -> tuple[int, ...]:
    """Choose the outputs that backward starts from."""
    trained = {name for group in rule.groups for name in group.params}
    if not trained & ModuleState.of(module).trainable:
        raise GraphError(
            "The optimizers hold none of the model's parameters that require gradients. Make "
            "them from model.parameters() of the model that is compiled."
        )
    usable = tuple(i for i, output in enumerate(outputs) if output.differentiable)
    if wanted is not None:
        wrong = [i for i in wanted if i not in usable]
        if wrong or not wanted:
            raise GraphError(
                f"loss_indices {list(wanted)} was asked for, but backward can start from outputs "
                f"{list(usable)} of the {len(outputs)} that forward returns. Name some of those."
            )
        return tuple(wanted)
    if not usable:
        raise GraphError(
            "No output of forward depends on a parameter that the optimizers train, so there is "
            "nothing to train. Return the loss or the scores that the loss is made from, or "
            "compile for inference with optimizers=None."
        )
    return tuple(i for i in usable if outputs[i].loss) or usable
