"""Capture: module + update rule + one example micro-batch + configuration -> programs.

Forward runs once, on tensors without data, inside one trace that goes on through the loss, the
backward pass and the update. What comes out is pure: state is written only by final ``copy_``.
This file must not know any front-end: ``call`` hides how arguments are passed and returned.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from abele import _torch, garbage
from abele._torch.dynamo import compiled_functions_run_plainly
from abele._torch.parameters import counted_as_parameters
from abele.capture import gradient_hooks, loss_traps
from abele.capture.diagnose import explained
from abele.capture.leftovers import Leftovers
from abele.capture.losses import LossFinder
from abele.capture.origins import backward_origins
from abele.capture.portable import portable_functions
from abele.capture.references import References
from abele.errors import CaptureError
from abele.program import Program, Role
from abele.program.printing import hide_frames
from abele.step import loss_scaling, reduction, replica_groups, rounding, update_rules
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from abele.trace import scopes, tracer
from abele.trace.constants import constant_value
from abele.trace.module_state import ModuleState, in_place_of, substituted
from abele.trace.plain_tensors import written_stand_in
from abele.trace.tensor_names import Lookup
from abele.trace.tracer import Named, Values

Call = Callable[[list[torch.Tensor]], list[torch.Tensor]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Captured:
    """What capture found.

    Attributes:
        programs: ``forward``; or ``step``; or ``accumulate`` and ``apply``.
        constants: values forward returned that no program computes, by position.
        updated: parameters that receive gradients.
        tensor_names: what ``capture`` takes as ``anchors``; see ``tensor_names``.
    """

    programs: tuple[Program, ...]
    constants: Mapping[int, torch.Tensor]
    updated: tuple[str, ...] = ()
    tensor_names: tuple[str, ...] = ()

    @property
    def by_name(self) -> dict[str, Program]:
        """The programs under their names."""
        return {program.name: program for program in self.programs}


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
    """Captures one micro-batch of ``module`` as static programs.

    One capture at a time: others wait in their threads. A thread that runs other modules meanwhile
    is not disturbed; ``module`` itself must not run elsewhere, since it holds tensors without data.

    Args:
        call: runs forward on flat inputs and returns its flat tensor outputs.
        module: holds the parameters and buffers that ``call`` uses.
        inputs: one micro-batch, flat; only shapes and dtypes are used.
        config: decides between one whole step and accumulate + apply.
        rule: the optimizer; needed for training.
        name_modules: nodes remember the path of the module that made them.
        hidden_paths: fragments of paths of files that are never named as the user's line.
        anchors: names of tensors that programs return behind their outputs.
        origins: nodes of backward carry what is known of their operation of forward; see
            ``origins``.
        given: objects that ``call`` hands to forward beside the inputs. In these, in ``module`` and
            in what can be reached from them no tensor without data is left.

    Raises:
        CaptureError: an anchor's name does not exist; a hook that no program can run.
        DataDependentError: forward reads a value (``.item()``, ``if tensor``).
        LossError: training, and not exactly one final loss.
        ReassignedError: forward replaces a parameter or buffer.
    """
    names = {child: path for path, child in module.named_modules()} if name_modules else {}
    lookup = Lookup(anchors)
    with _torch.TRACING, garbage.uncollected():
        state = ModuleState.of(module)
        made = _Capture(call, state, inputs, config, rule, names, lookup)
        made.origins = origins or config.trap_exceptions
        made.leftovers = Leftovers(module, *given)
        try:
            captured = made.run()
            made.returned = ()
        finally:  # backward leaves some, too, and so does a forward that fails
            made.leftovers.mend(lambda tensor: None)
    for program in captured.programs:
        hide_frames(program, hidden_paths)
    return captured


class _Capture:
    """The state of one capture: fake tensors in, traced programs out."""

    def __init__(
        self,
        call: Call,
        state: ModuleState,
        inputs: Sequence[torch.Tensor],
        config: StepConfig,
        rule: UpdateRule | None,
        module_names: Mapping[torch.nn.Module, str],
        lookup: Lookup,
    ):
        if config.training and rule is None:
            raise CaptureError("A training program needs an update rule, found none. Pass one.")
        self.call, self.state, self.config = call, state, config
        self.module_names, self.lookup = module_names, lookup
        self.rule = rule or UpdateRule(kind="sgd", groups=())
        self.mode = _torch.static_fakes()
        self.params = [
            # Forward sees one group's value; only its shape matters here.
            Named(
                n,
                Role.PARAMETER,
                torch.empty_like(v[0]) if n in config.replica_groups else v,
                config.training and n in state.trainable,
            )
            for n, v in state.params.items()
        ]
        self.buffers = [Named(n, Role.BUFFER, v) for n, v in state.buffers.items()]
        self.inputs = [Named(f"input{i}", Role.INPUT, v) for i, v in enumerate(inputs)]
        self.references = References({})
        self.constants: dict[int, torch.Tensor] = {}
        self.updated: tuple[str, ...] = ()
        self.origins = False
        self.leftovers = Leftovers()
        self.returned: Sequence[torch.Tensor] = ()  # as forward made them, with their history
        self.watched, self.largest_scale = 0, 1.0  # for an automatic loss scale
        self.write = rounding.writer(stochastic=config.stochastic_rounding)

    def run(self) -> Captured:
        if self.config.training:
            gradient_hooks.check(self.state.module, self.state.originals)
        if not self.config.training:
            programs = [self._trace("forward", self._forward, self._model_slots())]
        elif self.config.micro_batches_per_update == 1:
            slots = self._model_slots() + self._update_slots() + self._counters()
            programs = [self._trace("step", self._step, slots)]
        else:
            slots = self._model_slots() + self._accumulators(self._trainable_names())
            slots += self._counters()
            # The loss is scaled where backward starts; the other hyper-parameters act in apply.
            slots += [item for item in self._hyper_slots() if item.name == "loss_scaling"]
            programs = [self._trace("accumulate", self._accumulate, slots)]
            apply = self._per_group()
            updated = [p for p in apply.params if p.name in apply.updated]
            slots = updated + apply._accumulators(apply.updated) + apply._update_slots()
            slots += apply._counters()
            programs.append(apply._trace("apply", apply._apply, slots))
        self.lookup.check()
        return Captured(
            programs=tuple(programs),
            constants={i: value.detach().clone() for i, value in self.constants.items()},
            updated=self.updated,
            tensor_names=self.lookup.names,
        )

    def _per_group(self) -> _Capture:
        """The same capture, with a per-replica parameter's values as parameters of their own."""
        groups = self.config.replica_groups
        if not groups:
            return self
        other = copy.copy(self)
        other.params = [
            # Different tensors, because tracing knows a tensor by its identity.
            dataclasses.replace(item, name=name, value=torch.empty_like(item.value))
            for item in self.params
            for name in replica_groups.names_in([item.name], groups)
        ]
        other.updated = tuple(replica_groups.names_in(self.updated, groups))
        expanded = [
            dataclasses.replace(group, params=tuple(replica_groups.names_in(group.params, groups)))
            for group in self.rule.groups
        ]
        other.rule = dataclasses.replace(self.rule, groups=tuple(expanded))
        return other

    # -- the slots of each program ---------------------------------------------------------

    def _model_slots(self) -> list[Named]:
        return self.params + self.buffers + self.inputs

    def _trainable_names(self) -> list[str]:
        grouped = {name for group in self.rule.groups for name in group.params}
        return [p.name for p in self.params if p.requires_grad and p.name in grouped]

    def _accumulators(self, names: Sequence[str]) -> list[Named]:
        dtype = self.rule.accumulator_dtype
        params = self._param_values()
        return [
            Named(
                f"accumulator.{name}",
                Role.ACCUMULATOR,
                torch.zeros_like(params[name], dtype=dtype),
            )
            for name in names
        ]

    def _counters(self) -> list[Named]:
        names = [reduction.COUNTED] if reduction.runs_as_mean(self.config) else []
        if self.rule.automatic_scaling is not None:
            names += loss_scaling.COUNTERS
        # One tensor each: the same one twice would become the same slot.
        return [Named(n, Role.COUNTER, torch.zeros((), dtype=torch.float64)) for n in names]

    def _param_values(self) -> dict[str, torch.Tensor]:
        return {item.name: item.value for item in self.params}

    def _update_slots(self) -> list[Named]:
        named = []
        trainable = set(self._trainable_names())
        for param, values in self.rule.initial_state(self._param_values()).items():
            if param not in trainable:
                continue
            named += [
                Named(f"{param}.{key}", Role.OPTIMIZER_STATE, value)
                for key, value in values.items()
            ]
        return named + self._hyper_slots()

    def _hyper_slots(self) -> list[Named]:
        return [
            Named(name, Role.HYPER, torch.tensor(value, dtype=torch.float64))
            for name, value in self.rule.hyper().items()
        ]

    # -- what is traced --------------------------------------------------------------------

    def _forward(self, values: Values) -> list[torch.Tensor]:
        with torch.no_grad(), self._substituted(values):
            outputs = self._call_model(values)
        _torch.mark_traced("forward")
        return outputs

    @contextlib.contextmanager
    def _substituted(self, values: Values) -> Iterator[None]:
        traced = values.of(Role.PARAMETER), values.of(Role.BUFFER)
        self.references = References(in_place_of(self.state, *traced))
        with counted_as_parameters(traced[0].values()), substituted(self.state, *traced):
            yield

    def _call_model(self, values: Values) -> list[torch.Tensor]:
        with (
            explained(),
            self.references,
            scopes.recording(self.module_names),
            portable_functions(training=self.config.training),
            compiled_functions_run_plainly(),
        ):
            outputs = self.call(list(values.of(Role.INPUT).values()))
            outputs = [self.references.resolved(output) for output in outputs]
        loss_traps.warn_of_lost_state(self.leftovers.reassigned())
        self.leftovers.mend(constant_value, state=False)
        self.returned = outputs
        traced = []
        for index, output in enumerate(outputs):
            known = None if _torch.traced_node(output) else constant_value(output)
            if known is not None:
                self.constants[index] = known
            else:
                # None for traced ones; else forward wrote into it what depends on an input.
                stand_in = written_stand_in(output)
                traced.append((output if stand_in is None else stand_in).detach())
        return traced

    def _gradients(self, values: Values) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        # Open until backward is done: activation checkpointing runs parts of forward again there.
        origins = backward_origins(wanted=self.origins)
        hooks = gradient_hooks.checked_modules(self.state.modules)
        with torch.enable_grad(), self._substituted(values), hooks, origins as following:
            with LossFinder() as finder:
                outputs = self._call_model(values)
            name, loss = finder.final()
            _torch.mark_traced("forward")
            trained = self._trained_nodes(values)
            loss_traps.warn_of_other_losses(name, loss, self.returned, trained)
            with following(loss):
                found = self._backward(loss, values)
            if not found:
                loss_traps.warn_of_no_gradient(name, loss, trained)
        self.updated = tuple(found)
        self.lookup.note_gradients(found)
        _torch.mark_traced("backward")
        return outputs, found

    def _trained_nodes(self, values: Values) -> set[torch.fx.Node]:
        params = values.of(Role.PARAMETER)
        nodes = {_torch.traced_node(params[each]) for each in self._trainable_names()}
        return {node for node in nodes if node is not None}

    def _backward(self, loss: torch.Tensor, values: Values) -> dict[str, torch.Tensor]:
        names = self._trainable_names()
        params = values.of(Role.PARAMETER)
        grads: Sequence[torch.Tensor | None] = [None] * len(names)
        if loss.requires_grad and names:
            leaves = [params[name] for name in names]
            for name, leaf in zip(names, leaves, strict=True):
                gradient_hooks.register(leaf, self.state.originals[name], name, self._scale(values))
            # A loss without reduction means the sum of its elements: a seed of ones.
            seed = torch.ones_like(loss) * self._loss_scale(values)
            self.largest_scale = loss_scaling.limit(loss)
            with explained():
                grads = torch.autograd.grad(loss, leaves, seed, allow_unused=True)
        return {n: g.detach() for n, g in zip(names, grads, strict=True) if g is not None}

    def _scale(self, values: Values) -> float | torch.Tensor:
        if self.rule.loss_scaling_variable:
            return values.of(Role.HYPER)["loss_scaling"]
        return self.rule.loss_scaling

    def _loss_scale(self, values: Values) -> float | torch.Tensor:
        scale, divisor = self._scale(values), reduction.loss_divisor(self.config)
        return scale / divisor if divisor > 1 else scale

    def _step(self, values: Values) -> list[torch.Tensor]:
        outputs, grads = self._gradients(values)
        self._count_saturated(values, grads)
        self._update(values, grads)
        return outputs

    def _accumulate(self, values: Values) -> list[torch.Tensor]:
        outputs, grads = self._gradients(values)
        self._count_saturated(values, grads)
        sums = values.of(Role.ACCUMULATOR)
        counted = values.of(Role.COUNTER).get(reduction.COUNTED)
        with torch.no_grad():
            for name, grad in grads.items():
                total = sums[f"accumulator.{name}"]
                if counted is not None and name in self.config.replica_groups:
                    reduction.accumulate_share(total, grad, self.config, self.write)
                elif not self.config.adds_here:
                    reduction.replace(total, grad, self.write)
                else:
                    reduction.accumulate(total, grad, counted, self.write)
            if counted is not None:
                counted.add_(1)
        _torch.mark_traced("update")
        return outputs

    def _apply(self, values: Values) -> list[torch.Tensor]:
        sums = values.of(Role.ACCUMULATOR)
        grads = {
            name: reduction.reduced(sums[f"accumulator.{name}"], self.config)
            for name in self.updated
        }
        self._update(values, grads)
        counted = values.of(Role.COUNTER).get(reduction.COUNTED)
        # What is replaced need not be emptied.
        emptied = list(sums.values()) if self.config.adds_here else []
        with torch.no_grad():
            for total in (*emptied, *([] if counted is None else [counted])):
                total.zero_()
        _torch.mark_traced("update")
        return []

    def _update(self, values: Values, grads: Mapping[str, torch.Tensor]) -> None:
        state: dict[str, dict[str, torch.Tensor]] = {item.name: {} for item in self.params}
        for name, value in values.of(Role.OPTIMIZER_STATE).items():
            param, key = name.rsplit(".", 1)
            state[param][key] = value
        params, hyper = values.of(Role.PARAMETER), values.of(Role.HYPER)
        with torch.no_grad(), self._following_scale(values, grads):
            update_rules.apply(self.rule, params, grads, state, hyper, self.write)
        _torch.mark_traced("update")

    def _count_saturated(self, values: Values, grads: Mapping[str, torch.Tensor]) -> None:
        settings, counters = self.rule.automatic_scaling, values.of(Role.COUNTER)
        if settings is not None:
            saturated = counters[loss_scaling.SATURATED]
            loss_scaling.count_saturated(grads.values(), saturated, settings)
            self.watched = loss_scaling.elements(grads.values())

    @contextlib.contextmanager
    def _following_scale(self, values: Values, grads: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """With an automatic loss scale: unsound updates are undone, then the scale moves."""
        settings = self.rule.automatic_scaling
        if settings is None or not self.watched:
            yield
            return
        written = {name: values.of(Role.PARAMETER)[name] for name in grads}
        for name, value in values.of(Role.OPTIMIZER_STATE).items():
            if name.rpartition(".")[0] in grads:
                written[name] = value
        with loss_scaling.only_if_finite(grads.values(), written.values()):
            yield
        elements = self.watched * self.config.micro_batches_per_update
        scale, counters = values.of(Role.HYPER)["loss_scaling"], values.of(Role.COUNTER)
        loss_scaling.follow(scale, counters, settings, elements, self.largest_scale)

    # -- tracing ---------------------------------------------------------------------------

    def _trace(self, name: str, body: Callable, named: list[Named]) -> Program:
        return tracer.trace(name, body, named, self.mode, self.lookup)
