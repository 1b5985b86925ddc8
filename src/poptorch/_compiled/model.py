"""A compiled model: its arguments and configuration, its session, and its calls."""

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from abele.compile.executable import Announce
from abele.compile.start import Start
from abele.pipeline import pipelined
from abele.program import Program, Role
from abele.runtime.clock import CallRecord
from abele.runtime.observers import Observer
from abele.runtime.session import Session
from abele.step import batching
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from abele.targets import Target
from abele.trace.module_state import ModuleState
from poptorch import profiling
from poptorch._compiled import call_times, inputs
from poptorch._compiled.call_times import Counters
from poptorch._compiled.compilation import FromModule, Origin, compilation
from poptorch._compiled.forward import Forward
from poptorch._compiled.inputs import Inputs
from poptorch._compiled.progress import CompilationProgress
from poptorch._forward import structure
from poptorch._forward.arguments import Bound, synthetic_inputs
from poptorch._forward.structure import Deliver, delivery, to_host
from poptorch._process import distributed
from poptorch.options import Options

_Tensors = Mapping[str, torch.Tensor]


class CompiledModel:
    """A module compiled for the arguments of one call.

    Args:
        module: what is run; its parameters and buffers are the initial state.
        bound: the arguments of the first call.
        config: how a call consumes its batch.
        rule: the optimizer, for training.
        options: cache folder, log folder and whether a bar is shown.
        target: the target to use instead of choosing one.
        origin: where the programs come from, if not out of the module.
        start: how the first calls run, if programs come out of the module.
        announce: told in words when other programs run than before.
        observers: of building and of the session, beside those of profiling channels.

    Attributes:
        config: as given.
        inputs: what calls bring.
        forward: the model's, as it is captured.
        captured: its programs before any pass.
        outputs: the structure of what a call returns.
        placement: which block each operator belongs to.
        pipelining: the stages, or why there are none.
        record: how the executable was made.
        session: runs it.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        bound: Bound,
        config: StepConfig,
        rule: UpdateRule | None,
        options: Options,
        target: Target | None = None,
        origin: Origin | None = None,
        start: Start = Start.WAIT,
        announce: Announce = lambda text: None,
        observers: Sequence[Observer] = (),
    ):
        batching.check_output_period(config)
        options._Popart.check_keys()
        self.config, self.inputs = config, Inputs(bound, module)
        rows = self.inputs.on_device(bound)
        examples = inputs.micro_batch(rows, config)
        self.forward = Forward(module, self.inputs.recorded, config, rule, options)
        with CompilationProgress(options._show_compilation_progress_bar, observers) as progress:
            made = compilation(
                self.forward,
                examples,
                config,
                rule,
                origin or FromModule(start, announce),
                target=target,
                progress=progress,
            )
            self.captured, self.outputs, self.record = made.captured, made.outputs, made.record
            self.placement, self.pipelining = made.placement, made.pipelining
            progress.on_stage("load", 0.99)
            plan = None if made.pipelining.cut is None else pipelined(made.pipelining.cut)
            self.session = Session(
                made.executable,
                config,
                *_initial_state(module, rule),
                self.forward.anchors,
                distributed.collective_of(config),
                plan=plan,
                observers=(*profiling.call_observers(config.training), *observers),
                loss=made.captured.loss,
            )
            distributed.observe(self.session)
            if origin is None and self.session.is_unproven:  # else they are not the user's values
                progress.on_stage("compare with interpreted programs", 0.99)
                self.session.prove(rows)
        if not self.session.replays:  # which takes batches to the device by itself
            self.inputs.device = self.session.device
        self._written_inputs = _written_inputs(made.captured.programs[0])
        self._synthetic = synthetic_inputs(options, rows, self.session.device)
        self._deliver: Deliver = self._delivery()
        self._is_direct = self._needs_nothing_else()

    def micro_batch(self) -> list[torch.Tensor]:
        """Tensors like the inputs of one micro-batch, with any values."""
        slots = self.captured.programs[0].inputs
        return [torch.zeros(s.shape, dtype=s.dtype) for s in slots if s.role is Role.INPUT]

    def _delivery(self) -> Deliver:
        """Return what makes a call's results of the program's."""
        return self._to_user if self.captured.constants else delivery(self.outputs)

    def _needs_nothing_else(self) -> bool:
        """Return whether arguments may be passed to the session unchanged."""
        return (
            (self.session.device.type == "cpu" or self.session.replays)
            and self._synthetic is None
            and not self._written_inputs
            and not self.forward.host_calls.functions
        )

    # -- running ---------------------------------------------------------------------------

    def run_plain(self, args: tuple) -> Any:
        """Run a call that ``inputs.matches``."""
        started = time.perf_counter_ns()
        if self._is_direct:  # what matches is on the host already, or goes to the device there
            return self.session.call(args, started, self._deliver)
        device = self.inputs.device
        return self._run([tensor.to(device) for tensor in args], args, started)

    def run(self, bound: Bound) -> Any:
        """Validate a call's arguments and run it.

        Raises:
            poptorch.Error: the arguments differ from those of the first call.
        """
        started = time.perf_counter_ns()
        recorded = self.inputs.recorded
        recorded.check(bound)
        return self._run(self.inputs.on_device(bound), list(recorded.tensors(bound)), started)

    def _run(
        self, flat: list[torch.Tensor], originals: Sequence[torch.Tensor], started: int
    ) -> Any:
        if self._synthetic is not None:
            flat = originals = self._synthetic
        deliver = self._deliver
        if self._written_inputs:
            inputs.refuse_shared(flat, self._written_inputs)
            deliver = functools.partial(self._with_written_inputs, flat, originals)
        host_calls = self.forward.host_calls
        if not host_calls.functions:
            return self.session.call(flat, started, deliver)
        with host_calls.in_use():
            return self.session.call(flat, started, deliver)

    def _to_user(self, outputs: list[torch.Tensor]) -> Any:
        return structure.rebuild(self.outputs, self._results(outputs))

    def _with_written_inputs(
        self,
        flat: list[torch.Tensor],
        originals: Sequence[torch.Tensor],
        outputs: list[torch.Tensor],
    ) -> Any:
        for index in self._written_inputs:
            if flat[index].data_ptr() != originals[index].data_ptr():
                with torch.no_grad():
                    originals[index].copy_(flat[index])
        return self._deliver(outputs)

    def _results(self, outputs: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        constants = self.captured.constants
        computed = map(to_host, outputs)
        if not constants:
            return computed
        return iter(
            [
                constants[index].clone() if index in constants else next(computed)
                for index in range(len(outputs) + len(constants))
            ]
        )

    # -- afterwards ------------------------------------------------------------------------

    @property
    def was_stopped(self) -> bool:
        """True if the latest run failed after it had begun."""
        return self.session.was_stopped

    @property
    def last_call(self) -> CallRecord | None:
        """Times of the parts of the last call; None before it."""
        return self.session.last_call

    def perf_counters(self) -> Counters | None:
        """Return the times of the last call by kind, tensor and transfer; None before it."""
        call = self.last_call
        if call is None:
            return None
        model = self.captured.programs[0]
        num_inputs = sum(slot.role is Role.INPUT for slot in model.inputs)
        num_outputs = sum(slot.role is Role.OUTPUT for slot in model.outputs)
        if self._synthetic is not None:
            return call_times.no_transfers(num_inputs, num_outputs)
        return call_times.counters(call, self.config, num_inputs, num_outputs)

    def anchored(self, name: str) -> torch.Tensor | None:
        """Return the values of an anchored tensor in the last call, on the host."""
        value = self.session.anchored(name)
        return None if value is None else to_host(value)


def _written_inputs(program: Program) -> list[int]:
    """Return the positions of inputs that a program writes."""
    slots = [slot for slot in program.inputs if slot.role is Role.INPUT]
    return [index for index, slot in enumerate(slots) if slot.mutated]


def _initial_state(
    module: torch.nn.Module, rule: UpdateRule | None
) -> tuple[_Tensors, _Tensors, _Tensors, dict[str, float]]:
    """Parameters, buffers, optimizer state and hyper-parameters, as a session takes them."""
    state = ModuleState.of(module)
    if rule is None:
        return state.params, state.buffers, {}, {}
    return state.params, state.buffers, rule.initial_state(state.params), rule.hyper()
