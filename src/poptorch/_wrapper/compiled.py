"""A model compiled for the arguments of its first call, and the state shared inside a wrapper."""

import copy
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from abele import _torch
from abele.compilation.build import BuildRecord, build
from abele.compilation.cache import ExecutableCache
from abele.compilation.executable import Announce, Executable
from abele.compilation.start import Start
from abele.pipeline import PipelineRunner, pipelined
from abele.program import Program, Role
from abele.runtime.device_registry import Attachment
from abele.runtime.observers import Observer
from abele.runtime.session import Session
from abele.step import batching
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from abele.targets.base import COMPILED
from abele.trace.module_state import ModuleState, tensor_ids
from poptorch import processes, profiling
from poptorch._error import error
from poptorch._forward import structure
from poptorch._forward.arguments import Binder, Bound, Recorded, synthetic_inputs
from poptorch._forward.blocks import placed
from poptorch._forward.structure import Deliver, delivery, to_host
from poptorch._logging import logger
from poptorch._wrapper import translate
from poptorch._wrapper.capture import Forward, Traced, around_capture
from poptorch._wrapper.pipelines import PipelineReport, pipelining
from poptorch._wrapper.progress import CompilationProgress
from poptorch.options import Options

# Types that a device of this programming model does not have, and what stands in for them. A model
# whose own weights are of such a type computes in it all the same.
_DEMOTED = {torch.float64: torch.float32, torch.bfloat16: torch.float32}
_Tensors = Mapping[str, torch.Tensor]
Build = Callable[..., tuple[Executable, BuildRecord]]

_warned_of_own_builds = False
_Tensor = torch.Tensor


# -- arguments ---------------------------------------------------------------------------------


class Inputs:
    """Converts the arguments of a wrapper's call to the program's input tensors.

    Attributes:
        recorded: the first call's arguments.
        device: device to copy tensors to; the host until the device is known.
    """

    def __init__(self, bound: Bound, module: torch.nn.Module):
        weights = {value.dtype for value in ModuleState.of(module).params.values()}
        self.recorded = Recorded(bound, tensor_ids(module))
        self.device = torch.device("cpu")
        self._demoted = {kind: to for kind, to in _DEMOTED.items() if kind not in weights}
        self._plain = self._plain_leaves()
        alike = [torch.empty(s, dtype=d, device="cpu") for d, s in self._plain or ()]
        self._are_alike = _torch.comparison_with(alike)
        self._warned: set[str] = set()
        if any(isinstance(value, dict) for value in (*bound.positional, *bound.keywords.values())):
            logger.warning("Dictionary inputs are only partially supported.")

    def _plain_leaves(self) -> tuple[tuple[torch.dtype, torch.Size], ...] | None:
        leaves = self.recorded.plain
        if leaves is None or any(leaf.dtype in self._demoted for leaf in leaves):
            return None
        return tuple((leaf.dtype, leaf.shape) for leaf in leaves)

    def matches(self, args: tuple) -> bool:
        """Return whether all arguments are contiguous host tensors as in the first call."""
        plain = self._plain
        if plain is None or len(args) != len(plain):
            return False
        if self._are_alike(*args):  # of strides that are no others for a size of one
            return True
        # A loop, not all(...): this runs at every call, and a generator costs half a microsecond.
        for tensor, (dtype, shape) in zip(args, plain):  # noqa: B905 - it takes 0.2 us
            if not (
                type(tensor) is _Tensor
                and tensor.dtype is dtype
                and tensor.shape == shape
                and tensor.is_cpu
                and not tensor.requires_grad
                and tensor.is_contiguous()
            ):
                return False
        return True

    def on_device(self, bound: Bound) -> list[torch.Tensor]:
        """Return a call's tensors on the device, in dtypes that devices support.

        Raises:
            poptorch.Error: one is complex or not dense.
        """
        return [self._to_device(tensor) for tensor in self.recorded.tensors(bound)]

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype.is_complex:
            raise error(f"Complex inputs are not supported, found one of {tensor.dtype}.")
        structure.require_dense(tensor)
        if tensor.requires_grad:
            self._warn_once("An input tensor has requires_grad=True; it is detached.")
        if not tensor.is_contiguous():
            self._warn_once("A non-contiguous input tensor is made contiguous at every call.")
        dtype = self._demoted.get(tensor.dtype, tensor.dtype)
        if tensor.dtype is torch.bfloat16 and dtype is not tensor.dtype:
            self._warn_once(
                "A bfloat16 input becomes float32 at every call, as in PopTorch: no weight of the "
                "model is bfloat16. To compute in bfloat16, call model.bfloat16() before wrapping, "
                "or x.bfloat16() in forward."
            )
        return tensor.detach().to(device=self.device, dtype=dtype).contiguous()

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text)


def micro_batch(rows: Sequence[torch.Tensor], config: StepConfig) -> list[torch.Tensor]:
    """Return the first micro-batch of each input tensor of a call.

    Raises:
        BatchError: the rows do not divide into micro-batches.
        poptorch.Error: a tensor has no elements.
    """
    return [_first(tensor, config, index) for index, tensor in enumerate(rows)]


def _first(tensor: torch.Tensor, config: StepConfig, index: int) -> torch.Tensor:
    if tensor.numel() == 0:
        shape = list(tensor.shape)
        if shape[0] == 0:
            remedy = "Pass at least one row."
        else:
            remedy = (
                f"It has rows, but dimension {shape.index(0)} is 0. Leave it out of the call, and "
                "make it in forward where forward needs it: torch.zeros(...)."
            )
        raise error(
            f"Input tensor {index} has no elements (shape {shape}), which is not supported. "
            f"{remedy}"
        )
    rows = tensor.shape[0] if tensor.dim() else 1
    size = batching.micro_batch_size(rows, config, f"input {index}")
    return tensor.narrow(0, 0, size) if tensor.dim() else tensor


def _refuse_shared(flat: Sequence[torch.Tensor], written: Sequence[int]) -> None:
    """Raise an error if an input that the program writes shares memory with another input."""
    storages = [tensor.untyped_storage().data_ptr() for tensor in flat]
    for index in written:
        if storages.count(storages[index]) > 1:
            raise error(
                f"Input tensor {index} is changed in forward and shares its memory with "
                "another input of the same call. Pass a clone of it."
            )


# -- a compiled model --------------------------------------------------------------------------


class Origin(Protocol):
    """Protocol of a file that provides programs and executable instead of the module."""

    def traced(self, trace: Callable[[], Traced]) -> Traced:
        """Return the file's captured programs; ``trace`` captures the module for comparison."""
        ...

    def built(
        self, programs: Sequence[Program], config: StepConfig, **settings: Any
    ) -> tuple[Executable, BuildRecord]:
        """Return an executable of programs; ``settings`` are those of ``abele.build``."""
        ...


class CompiledModel:
    """A module compiled for the arguments of one call.

    Args:
        module: the module to run; its parameters and buffers are the initial state.
        bound: the arguments of the first call.
        config: how a call consumes its batch.
        rule: the optimizer, for training.
        options: cache folder, log folder and whether a bar is shown.
        origin: file with the programs, if they are not captured.
        start: how the first calls run, if the module is captured.
        announce: called with a sentence when other programs run than before.
        observers: of compilation and of the session, in addition to profiling channels.

    Attributes:
        config: the step configuration.
        inputs: conversion of arguments to tensors.
        forward: captures the model's forward.
        captured: the captured programs before any pass.
        outputs: the structure of a call's results.
        placement: block of each operator.
        pipelining: the stages, or why there are none.
        record: origin of the executable.
        session: runs the executable.
        is_synthetic: whether calls run on synthetic inputs.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        bound: Bound,
        config: StepConfig,
        rule: UpdateRule | None,
        options: Options,
        origin: Origin | None = None,
        start: Start = Start.WAIT,
        announce: Announce = lambda text: None,
        observers: Sequence[Observer] = (),
    ):
        batching.check_output_period(config)
        options._Popart.check_keys()
        self.config, self.inputs = config, Inputs(bound, module)
        rows = self.inputs.on_device(bound)
        self.forward = Forward(module, self.inputs.recorded, config, rule, options)
        with CompilationProgress(options._show_compilation_progress_bar, observers) as progress:
            progress.on_stage("capture", 0.01)
            captured_s = self._capture(micro_batch(rows, config), rule, options, origin)
            # Pipeline stages start compiled.
            start = start if self.pipelining.cut is None else Start.WAIT
            from_module = functools.partial(build, start=start, announce=announce)
            make = from_module if origin is None else origin.built
            executable, self.record = self._built(make, options, progress)
            self.record.seconds["capture"] = captured_s
            _warn_of_own_builds(options, self.record)
            progress.on_stage("load", 0.99)
            self.session = self._session(executable, module, rule, observers)
            if origin is None and self.session.is_unproven:  # else they are not the user's values
                progress.on_stage("compare with interpreted programs", 0.99)
                self.session.prove(rows)
        if not self.session.replays:  # which takes batches to the device by itself
            self.inputs.device = self.session.device
        slots = [slot for slot in self.captured.programs[0].inputs if slot.role is Role.INPUT]
        self._written_inputs = [index for index, slot in enumerate(slots) if slot.mutated]
        self._synthetic = synthetic_inputs(options, rows, self.session.device)
        self.is_synthetic = self._synthetic is not None
        has_constants = bool(self.captured.constants)
        self._deliver: Deliver = self._to_user if has_constants else delivery(self.outputs)
        # Whether arguments may be passed to the session unchanged.
        self._is_direct = (
            (self.session.device.type == "cpu" or self.session.replays)
            and not self.is_synthetic
            and not self._written_inputs
            and not self.forward.host_calls.functions
        )

    def _capture(
        self,
        examples: list[torch.Tensor],
        rule: UpdateRule | None,
        options: Options,
        origin: Origin | None,
    ) -> float:
        """Capture the programs and divide them into pipeline stages; return the seconds taken."""
        config, started = self.config, time.perf_counter()

        def trace() -> Traced:
            return self.forward.trace(examples)

        event = profiling.channel_of(config.training).tracepoint("graphPreprocessing")
        with around_capture(), event:
            traced = trace() if origin is None else origin.traced(trace)
        self.captured, self.outputs = traced.captured, traced.outputs
        self.placement = placed(self.captured.programs, options, training=config.training)
        self.pipelining = pipelining(self.captured, self.placement, options, config)
        took = time.perf_counter() - started
        processes.agree(self.captured, config, rule, examples)
        return took

    def _built(
        self, make: Build, options: Options, progress: CompilationProgress
    ) -> tuple[Executable, BuildRecord]:
        """Compile the captured programs, or the programs of the pipeline stages."""
        cut, captured = self.pipelining.cut, self.captured.programs
        return make(
            captured if cut is None else (*cut.programs, *captured[1:]),
            self.config,
            cache=_cache(options),
            # By default among temporary files: nobody asked for a file in the current folder.
            log_folder=None if options.log_dir == os.curdir else options.log_dir,
            progress=progress.on_stage,
            gather=processes.gather_of(self.config),
        )

    def _session(
        self,
        executable: Executable,
        module: torch.nn.Module,
        rule: UpdateRule | None,
        observers: Sequence[Observer],
    ) -> Session:
        config, cut = self.config, self.pipelining.cut
        session = Session(
            executable,
            config,
            *_initial_state(module, rule),
            self.forward.anchors,
            processes.collective_of(config),
            plan=None if cut is None else pipelined(cut),
            observers=(*profiling.call_observers(config.training), *observers),
            loss=self.captured.loss,
        )
        if session.exchange is not None:
            session.add_observer(processes.SameEpoch(session.exchange))
        return session

    def micro_batch(self) -> list[torch.Tensor]:
        """Return zero tensors with the shapes and dtypes of one micro-batch's inputs."""
        slots = self.captured.programs[0].inputs
        return [torch.zeros(s.shape, dtype=s.dtype) for s in slots if s.role is Role.INPUT]

    # -- running ---------------------------------------------------------------------------

    def run_plain(self, args: tuple) -> Any:
        """Run the model on tensors that ``inputs.matches``, without validating them again."""
        started = time.perf_counter_ns()
        if self._is_direct:  # what matches is on the host already, or goes to the device there
            return self.session.call(args, started, self._deliver)
        device = self.inputs.device
        return self._run([tensor.to(device) for tensor in args], args, started)

    def run(self, bound: Bound) -> Any:
        """Validate a call's arguments against the first call's and run the model.

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
            _refuse_shared(flat, self._written_inputs)
            deliver = functools.partial(self._with_written_inputs, flat, originals)
        host_calls = self.forward.host_calls
        if not host_calls.functions:
            return self.session.call(flat, started, deliver)
        with host_calls.in_use():
            return self.session.call(flat, started, deliver)

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

    def _to_user(self, outputs: list[torch.Tensor]) -> Any:
        return structure.rebuild(self.outputs, self._with_constants(outputs))

    def _with_constants(self, outputs: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        constants, computed = self.captured.constants, map(to_host, outputs)
        for index in range(len(outputs) + len(constants)):
            yield constants[index].clone() if index in constants else next(computed)

    # -- afterwards ------------------------------------------------------------------------

    def pipeline_report(self) -> PipelineReport:
        """Return a report of the pipeline stages, with the latest call's times if pipelined."""
        runner = self.session.runner
        if not isinstance(runner, PipelineRunner):
            return PipelineReport(self.pipelining)
        return PipelineReport(self.pipelining, runner.threads, runner.measured)


def _cache(options: Options) -> ExecutableCache | None:
    path = options._Popart.options.get("cachePath")
    enabled = options._Popart.options.get("enableEngineCaching")
    return ExecutableCache(path) if path and enabled else None


def _warn_of_own_builds(options: Options, record: BuildRecord) -> None:
    """Warn once per process if several processes compile the same model without a shared cache."""
    global _warned_of_own_builds
    place = options.Distributed
    alone = place.numProcesses == 1 or place.processId > 0
    running = record.running
    compiles = running.manner == COMPILED and running.start is not Start.INTERPRET
    if compiles and not alone and _cache(options) is None and not _warned_of_own_builds:
        _warned_of_own_builds = True
        logger.warning(
            "%d processes compile the same model, each for itself. Call "
            "options.enableExecutableCaching(folder) or set POPTORCH_CACHE_DIR to let one compile "
            "for all.",
            place.numProcesses,
        )


def _initial_state(
    module: torch.nn.Module, rule: UpdateRule | None
) -> tuple[_Tensors, _Tensors, _Tensors, dict[str, float]]:
    """Return a session's initial parameters, buffers, optimizer state and hyper-parameters."""
    state = ModuleState.of(module)
    if rule is None:
        return state.params, state.buffers, {}, {}
    return state.params, state.buffers, rule.initial_state(state.params), rule.hyper()


# -- a wrapped model ---------------------------------------------------------------------------


class WrappedModel:
    """The state of one wrapper that its parts share: module, options, compiled model.

    Args:
        model: the module whose forward runs.
        user_module: the user's module, which has the weights.
        options: frozen options of the wrapper.
        training: whether a call trains.

    Attributes:
        module: a shallow copy of the model, so that attributes that forward sets on ``self`` are
            stored here and not on the user's object.
        binder: binds the arguments of a call to forward's parameters.
        config: how a call consumes its batch.
        per_replica_params: the user's groups of replicas for parameters that differ between them.
        compiled: None before compiling and after destroying.
        attachment: the hold of the device; None while it is not taken.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        user_module: torch.nn.Module,
        options: Options,
        *,
        training: bool,
    ):
        self.user_module, self.module = user_module, copy.copy(model)
        self.options, self.training = options, training
        self.binder = Binder(self.module.forward)
        self.per_replica_params: dict[str, tuple] = {}
        self.compiled: CompiledModel | None = None
        self.attachment: Attachment | None = None
        self.read_options()

    def read_options(self) -> None:
        """Derive the step configuration from the options, which may change before compiling."""
        self.config = translate.to_config(self.options, training=self.training)

    def get_compiled(self) -> CompiledModel:
        """Return the compiled model of this wrapper.

        Raises:
            poptorch.Error: the model has not been compiled, or has been destroyed.
        """
        if self.compiled is None:
            raise error("Model has not been compiled or has been destroyed.")
        return self.compiled

    @property
    def session(self) -> Session:
        """The session of the compiled model.

        Raises:
            poptorch.Error: not compiled.
        """
        return self.get_compiled().session

    def take_device(self) -> None:
        """Mark the wrapper's device as in use, also for ``gc-monitor``; idempotent."""
        if self.attachment is not None:
            return
        compiled = self.get_compiled()
        self.attachment = Attachment(self, compiled.record.target, compiled.session.device)
        if self.attachment.problem is not None:
            logger.debug(self.attachment.problem)

    def give_device_up(self) -> None:
        """Mark the wrapper's device as free; idempotent."""
        if self.attachment is not None:
            self.attachment.end()
            self.attachment = None
