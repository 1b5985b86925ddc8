"""From a module to the programs of a PEF: the whole step, and its sections.

Forward runs twice on tensors without data: once to see what it returns and which of that is a loss,
once inside one trace that goes on through backward, from a gradient per loss that is an input, and
the update. The sections are cut out of that one trace, so that they compute the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import sambaflow
from abele import _torch, passes
from abele.capture import Captured
from abele.capture.diagnose import explained
from abele.capture.losses import LossFinder
from abele.capture.portable import portable_functions
from abele.program import Program, Role
from abele.program.printing import hide_frames
from abele.step import update_rules
from abele.step.update_rules import UpdateRule
from abele.trace import scopes, tracer
from abele.trace.module_state import ModuleState, plain, substituted
from abele.trace.tensor_names import Lookup
from abele.trace.tracer import Named, Values
from sambaflow.errors import GraphError
from sambaflow.samba._compile.cut import cut
from sambaflow.samba._session.structure import flat_tensors

STEP, FORWARD, BACKWARD, UPDATE = "step", "forward", "backward", "update"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """One tensor that forward returns.

    Attributes:
        shape: its shape.
        dtype: its element type.
        differentiable: it depends on a trained parameter.
        loss: it is a scalar, or the result of a criterion of torch.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    differentiable: bool
    loss: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traced:
    """What a model became.

    Attributes:
        captured: its programs: ``forward``; for training also ``backward``, ``update`` and, where
            something is a loss, ``step``.
        outputs: what forward returns, flat.
        losses: positions of the outputs that backward starts from.
    """

    captured: Captured
    outputs: tuple[Output, ...]
    losses: tuple[int, ...]


def gradient_of_output(index: int) -> str:
    """The input slot for the gradient of an output."""
    return f"output_gradient{index}"


def gradient_of(parameter: str) -> str:
    """The output slot for the gradient of a parameter."""
    return f"gradient.{parameter}"


def trace_model(
    module: torch.nn.Module,
    positional: Sequence[torch.Tensor],
    keywords: Mapping[str, torch.Tensor],
    rule: UpdateRule | None,
    loss_indices: Sequence[int] | None = None,
    *,
    fused_only: bool = False,
) -> Traced:
    """Captures a module with its loss, backward pass and update.

    Args:
        module: runs as it is: training mode or not, parameters of any floating type.
        positional: one batch, in the order of forward's parameters; only shapes and dtypes count.
        keywords: the same by name.
        rule: the optimizer; None captures forward alone.
        loss_indices: the outputs from which backward starts. By default those that are scalars or
            results of a criterion; without any, every output, whose gradients then come from the
            host.
        fused_only: only the whole step, no sections.

    Raises:
        GraphError: nothing to train, or ``loss_indices`` does not fit what forward returns.
        abele.AbeleError: forward cannot be traced; names the line.
    """
    with _torch.TRACING:
        return _Tracing(module, positional, keywords, rule).run(loss_indices, fused_only)


class _Tracing:
    def __init__(
        self,
        module: torch.nn.Module,
        positional: Sequence[torch.Tensor],
        keywords: Mapping[str, torch.Tensor],
        rule: UpdateRule | None,
    ):
        self.module, self.rule = module, rule
        self.state = ModuleState.of(module)
        self.names = tuple(keywords)
        self.mode = _torch.static_fakes()
        grouped = {n for group in rule.groups for n in group.params} if rule else set()
        self.trained = [n for n in self.state.params if n in grouped and n in self.state.trainable]
        self.model = [
            Named(n, Role.PARAMETER, v, n in self.trained) for n, v in self.state.params.items()
        ]
        self.model += [Named(n, Role.BUFFER, v) for n, v in self.state.buffers.items()]
        values = [plain(v) for v in (*positional, *keywords.values())]
        self.model += [Named(f"input{i}", Role.INPUT, v) for i, v in enumerate(values)]
        self.constants: dict[int, torch.Tensor] = {}
        self.updated: tuple[str, ...] = ()

    def run(self, loss_indices: Sequence[int] | None, fused_only: bool) -> Traced:
        outputs = self._examine()
        if self.rule is None:
            programs = [self._trace(FORWARD, self._inference, self.model)]
            return self._traced(programs, outputs, ())
        if not self.trained:
            raise GraphError(
                "The optimizers hold none of the model's parameters that require gradients. Make "
                "them from model.parameters() of the model that is compiled."
            )
        losses = _losses(outputs, loss_indices)
        step = self._training(outputs, losses)
        hosts = not (loss_indices or any(outputs[i].loss for i in losses))
        programs = [] if hosts else [step]
        if fused_only and hosts:
            raise GraphError(
                "fused_only was asked for, but no output of forward is a loss, so that gradients "
                "come from the host. Return the loss from forward or leave fused_only unset."
            )
        if not fused_only:
            programs += self._sections(step, losses)
        return self._traced(programs, outputs, losses)

    def _traced(
        self, programs: Sequence[Program], outputs: tuple[Output, ...], losses: tuple[int, ...]
    ) -> Traced:
        for program in programs:
            hide_frames(program, [str(path) for path in sambaflow.__path__])
        captured = Captured(
            programs=tuple(programs),
            constants={i: value.detach().clone() for i, value in self.constants.items()},
            updated=self.updated,
        )
        return Traced(captured=captured, outputs=outputs, losses=losses)

    # -- forward -----------------------------------------------------------------------------

    def _call(self, values: Values) -> list[torch.Tensor]:
        flat = list(values.of(Role.INPUT).values())
        flat = flat[: sum(item.role is Role.INPUT for item in self.model)]
        count = len(flat) - len(self.names)
        keywords = dict(zip(self.names, flat[count:], strict=True))
        paths = {child: path for path, child in self.module.named_modules()}
        with (
            explained(),
            scopes.recording(paths),
            portable_functions(training=self.rule is not None),
        ):
            result = self.module(*flat[:count], **keywords)
        outputs = list(flat_tensors(result))
        if not outputs:
            raise GraphError(
                f"forward of {type(self.module).__name__} returned no tensor, found "
                f"{type(result).__name__}. Return a tensor, or tuples, lists or dictionaries of "
                "tensors."
            )
        return outputs

    def _substituted(self, values: Values):
        return substituted(self.state, values.of(Role.PARAMETER), values.of(Role.BUFFER))

    def _examine(self) -> tuple[Output, ...]:
        """What forward returns; run without a trace, which is much faster."""
        with self.mode, _torch.without_log_of_fakes(), torch.enable_grad():
            fakes = [self.mode.from_tensor(item.value) for item in self.model]
            for item, fake in zip(self.model, fakes, strict=True):
                fake.requires_grad_(item.requires_grad)
            values = Values(self.model, fakes)
            with self._substituted(values), LossFinder() as finder:
                outputs = self._call(values)
        criteria = {id(value) for _, value in finder.found}
        return tuple(
            Output(
                shape=tuple(value.shape),
                dtype=value.dtype,
                differentiable=value.requires_grad,
                loss=value.requires_grad and (value.dim() == 0 or id(value) in criteria),
            )
            for value in outputs
        )

    def _inference(self, values: Values) -> list[torch.Tensor]:
        with torch.no_grad(), self._substituted(values):
            outputs = self._call(values)
        _torch.mark_traced("forward")
        return self._computed(outputs)

    def _computed(self, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Those that the trace computes; the others are constants."""
        for index, value in enumerate(outputs):
            if _torch.traced_node(value) is None:
                self.constants[index] = value
        return [v.detach() for i, v in enumerate(outputs) if i not in self.constants]

    # -- training ----------------------------------------------------------------------------

    def _training(self, outputs: Sequence[Output], losses: tuple[int, ...]) -> Program:
        rule = self.rule
        assert rule is not None
        slots = list(self.model)
        slots += [
            Named(
                gradient_of_output(i),
                Role.INPUT,
                torch.empty(outputs[i].shape, dtype=outputs[i].dtype),
            )
            for i in losses
        ]
        params = {n: self.state.params[n] for n in self.trained}
        whole = {item.name: item.value for item in self.model if item.role is Role.PARAMETER}
        for name, values in rule.initial_state(whole).items():
            if name in params:
                slots += [
                    Named(f"{name}.{key}", Role.OPTIMIZER_STATE, value)
                    for key, value in values.items()
                ]
        slots += [
            Named(name, Role.HYPER, torch.tensor(value, dtype=torch.float64))
            for name, value in rule.hyper().items()
        ]
        step = self._trace(STEP, lambda values: self._step(values, losses), slots)
        return _named_gradients(step, self.updated)

    def _step(self, values: Values, losses: tuple[int, ...]) -> list[torch.Tensor]:
        params = values.of(Role.PARAMETER)
        with torch.enable_grad(), self._substituted(values):
            outputs = self._call(values)
            computed = self._computed(outputs)
            _torch.mark_traced("forward")
            found = torch.autograd.grad(
                [outputs[i] for i in losses],
                [params[name] for name in self.trained],
                [values.of(Role.INPUT)[gradient_of_output(i)] for i in losses],
                allow_unused=True,
            )
        grads = {
            name: value.detach()
            for name, value in zip(self.trained, found, strict=True)
            if value is not None
        }
        self.updated = tuple(grads)
        _torch.mark_traced("backward")
        self._update(values, grads)
        return [*computed, *grads.values()]

    def _update(self, values: Values, grads: Mapping[str, torch.Tensor]) -> None:
        assert self.rule is not None
        state: dict[str, dict[str, torch.Tensor]] = {n: {} for n in self.state.params}
        for name, value in values.of(Role.OPTIMIZER_STATE).items():
            param, key = name.rsplit(".", 1)
            state[param][key] = value
        with torch.no_grad():
            update_rules.apply(
                self.rule, values.of(Role.PARAMETER), grads, state, values.of(Role.HYPER)
            )
        _torch.mark_traced("update")

    def _sections(self, step: Program, losses: tuple[int, ...]) -> list[Program]:
        results = len(step.outputs) - len(self.updated)
        late = [gradient_of_output(i) for i in losses]
        step = passes.run(step)  # without nodes that say nothing, less crosses the cuts
        forward, rest = cut(step, results, late, (FORWARD, "rest"))
        backward, update = cut(rest, len(self.updated), (), (BACKWARD, UPDATE), owned=False)
        return [forward, backward, update]

    def _trace(self, name: str, body: Any, slots: list[Named]) -> Program:
        program, _ = tracer.trace(
            name, lambda values: (body(values), None), slots, self.mode, Lookup(())
        )
        return program


def _named_gradients(step: Program, updated: Sequence[str]) -> Program:
    first = len(step.outputs) - len(updated)
    named = [
        dataclasses.replace(slot, name=gradient_of(name))
        for slot, name in zip(step.outputs[first:], updated, strict=True)
    ]
    return step.replace(outputs=(*step.outputs[:first], *named)).verify()


def _losses(outputs: Sequence[Output], wanted: Sequence[int] | None) -> tuple[int, ...]:
    """From which outputs backward starts."""
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
