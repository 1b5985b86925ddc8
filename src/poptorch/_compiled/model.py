"""One compiled model: what it was compiled for, its session, and how calls pass through it."""

import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from abele.capture import Captured, capture
from abele.compile.build import BuildRecord, build
from abele.compile.cache import ExecutableCache
from abele.compile.executable import Executable
from abele.pipeline import pipelined
from abele.program import Program, Role, Slot
from abele.runtime.clock import CallRecord
from abele.runtime.session import Session
from abele.step import batching
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from abele.targets import Target
from abele.trace.module_state import ModuleState, tensor_ids
from abele.warn import warn_user
from poptorch import profiling
from poptorch._compiled import call_times, hooks, translate
from poptorch._compiled.call_times import Counters
from poptorch._compiled.pipelines import may_pipeline, pipelining
from poptorch._compiled.precision import WeightsFollowActivations
from poptorch._compiled.progress import CompilationProgress
from poptorch._error import error
from poptorch._forward import recomputation
from poptorch._forward.ipu_tensors import on_ipu
from poptorch._forward.placement import placed
from poptorch._forward.running import running_on_ipu
from poptorch._forward.tracing import Tracing
from poptorch._logging import logger
from poptorch._operators.cpu_op import CapturedCalls
from poptorch._operators.slicing import TensorSlices
from poptorch._process import distributed
from poptorch._values import structure
from poptorch._values.arguments import Bound, Recorded
from poptorch._values.results import to_host
from poptorch._values.synthetic import synthetic_inputs
from poptorch.options import Options

# Types that a device of this programming model does not have, and what stands in for them. A model
# whose own weights are of such a type computes in it all the same.
_DEMOTED = {torch.float64: torch.float32, torch.bfloat16: torch.float32}
_HOST = torch.device("cpu")


class CompiledModel:
    """A module compiled for the arguments of one call.

    Args:
        module: what is run; its parameters and buffers are the initial state.
        bound: the arguments of the first call.
        config: how a call consumes its batch.
        rule: the optimizer, for training.
        options: cache folder, log folder and whether a bar is shown.
        target: the target to use instead of choosing one.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        bound: Bound,
        config: StepConfig,
        rule: UpdateRule | None,
        options: Options,
        target: Target | None = None,
    ):
        batching.check_output_period(config)
        options._Popart.check_keys()
        self.config, self.module, self.rule = config, module, rule
        self.device = _HOST
        self.anchors = translate.anchors(options)
        self.hidden_paths = translate.hidden_paths(options)
        own = {value.dtype for value in ModuleState.of(module).params.values()}
        self._demoted = {kind: to for kind, to in _DEMOTED.items() if kind not in own}
        self._warned: set[str] = set()
        self._host_calls = CapturedCalls(module)
        self._recomputes = recomputation.is_on(options, training=config.training)
        self._recorded = Recorded(bound, tensor_ids(module))
        rows, examples = self._examples(bound)
        with CompilationProgress(options._show_compilation_progress_bar) as progress:
            progress.update("capture", 0.01)
            started = time.perf_counter()
            self.tracing = Tracing(options)
            trace = profiling.channel_of(config.training)
            with hooks.around_capture(), trace.tracepoint("graphPreprocessing"):
                self.captured = self._capture(examples, options._module_namescope_enabled)
            self.placement = placed(self.captured.programs, options, training=config.training)
            self.pipelining = pipelining(self.captured, self.placement, options, config)
            captured_s = time.perf_counter() - started
            self._agree(examples)
            executable, self.record = self._build(
                target=target,
                cache=_cache(options),
                log_folder=options.log_dir,
                progress=progress.update,
            )
            self.record.seconds["capture"] = captured_s
            _warn_of_own_builds(options)
            progress.update("load", 0.99)
            self.session = self._start(executable)
        self.device = self.session.device
        self._written_inputs = [i for i, slot in enumerate(self._input_slots()) if slot.mutated]
        self._synthetic = synthetic_inputs(options, rows, self.device)

    # -- compiling -------------------------------------------------------------------------

    def _micro_batch(self, tensor: torch.Tensor, index: int) -> torch.Tensor:
        if tensor.numel() == 0:
            raise error(
                f"Input tensor {index} has no elements (shape {list(tensor.shape)}), "
                "which is not supported. Pass at least one row."
            )
        rows = tensor.shape[0] if tensor.dim() else 1
        size = batching.micro_batch_size(rows, self.config, f"input {index}")
        return tensor.narrow(0, 0, size) if tensor.dim() else tensor

    def _capture(self, examples: list[torch.Tensor], name_modules: bool) -> Captured:
        with self._host_calls.capturing(), recomputation.marking(self._recomputes):
            captured = capture(
                self._call_forward,
                self.module,
                examples,
                self.config,
                self.rule,
                name_modules=name_modules,
                hidden_paths=self.hidden_paths,
                anchors=[anchor.tensor for anchor in self.anchors],
                origins=may_pipeline(self.tracing.options, self.config),
                given=self._recorded.rebuild(examples),
            )
        if self.config.replicas > 1 and self.config.broadcast_buffers:
            self._refuse_written_buffers(captured)
        self._warn_scaling(captured)
        for value in captured.constants.values():
            warn_user(
                f"Output expected to be on the IPU but is on {value.device.type}: it does not "
                "depend on any input and is returned as a constant.",
                UserWarning,
            )
        return captured

    def _warn_scaling(self, captured: Captured) -> None:
        if self.rule is None or self.rule.automatic_scaling is None:
            return
        slots = captured.programs[0].inputs
        if torch.float16 not in {slot.dtype for slot in slots if slot.name in captured.updated}:
            logger.warning("Automatic loss scaling has no effect: no trained parameter is half.")

    def _call_forward(self, flat: list[torch.Tensor]) -> list[torch.Tensor]:
        self._outputs, results = self.call(
            self.module, flat, self.tracing, training=self.config.training
        )
        return results

    def call(
        self,
        module: torch.nn.Module,
        flat: Sequence[torch.Tensor],
        tracing: Tracing,
        *,
        training: bool,
    ) -> tuple[structure.Structure, list[torch.Tensor]]:
        """Runs a forward that is captured: one that finds itself on a device.

        Args:
            module: the model, or one whose forward takes the same arguments.
            flat: the tensors of one micro-batch.
            tracing: for annotations inside forward.
            training: what it is captured for.

        Returns:
            The structure of the results, and their tensors.
        """
        positional, keywords = self._recorded.rebuild(flat)
        with (
            running_on_ipu(training=training),
            WeightsFollowActivations(),
            tracing.open(),
            on_ipu(),
            TensorSlices(),
        ):
            result = module(*positional, **keywords)
        return structure.taken_apart(result)

    def micro_batch(self) -> list[torch.Tensor]:
        """Tensors like the inputs of one micro-batch, with any values."""
        return [torch.zeros(slot.shape, dtype=slot.dtype) for slot in self._input_slots()]

    def _refuse_written_buffers(self, captured: Captured) -> None:
        normalisations = {
            name
            for name, child in self.module.named_modules()
            if isinstance(child, torch.nn.modules.batchnorm._BatchNorm)
        }
        for slot in captured.programs[0].inputs:
            owner = slot.name.rpartition(".")[0]
            if slot.role is Role.BUFFER and slot.mutated and owner not in normalisations:
                raise error(
                    "PopTorch does not support broadcasting buffers, and forward writes to buffer "
                    f"{slot.name} in {self.config.replicas} replicas. Call "
                    "options.broadcastBuffers(False) to give each replica its own."
                )

    def _agree(self, examples: list[torch.Tensor]) -> None:
        """With other processes: all have the same before anybody compiles for a long time."""
        collective = distributed.collective_of(self.config)
        if collective is not None:
            facts = distributed.facts(self.captured, self.config, self.rule, examples)
            collective.agree("the model and its options", facts)

    def _build(self, **settings: Any) -> tuple[Executable, BuildRecord]:
        return build(self._programs(), self.config, **settings)

    def _programs(self) -> tuple[Program, ...]:
        """What is made runnable: the captured programs, or the parts of a pipeline."""
        found = self.captured.programs
        cut = self.pipelining.cut
        return found if cut is None else (*cut.programs, *found[1:])

    def _start(self, executable: Executable) -> Session:
        state = ModuleState.of(self.module)
        optimizer_state = {}
        if self.rule is not None:
            for name, values in self.rule.initial_state(state.params).items():
                optimizer_state |= {f"{name}.{key}": value for key, value in values.items()}
        hyper = self.rule.hyper() if self.rule is not None else {}
        cut = self.pipelining.cut
        return Session(
            executable,
            self.config,
            state.params,
            state.buffers,
            optimizer_state,
            hyper,
            self.anchors,
            distributed.collective_of(self.config),
            plan=None if cut is None else pipelined(cut),
            observers=profiling.call_observers(self.config.training),
        )

    def _input_slots(self) -> list[Slot]:
        slots = self.captured.programs[0].inputs
        return [slot for slot in slots if slot.role is Role.INPUT]

    @property
    def recorded(self) -> Recorded:
        """The arguments it was compiled for."""
        return self._recorded

    @property
    def outputs(self) -> structure.Structure:
        """What a call returns."""
        return self._outputs

    # -- running ---------------------------------------------------------------------------

    def matches(self, args: tuple) -> bool:
        """Whether a call brings plain contiguous tensors exactly like the first one's."""
        plain = self._recorded.plain
        if plain is None or len(args) != len(plain):
            return False
        # A loop, not all(...): this runs at every call, and a generator costs half a microsecond.
        for tensor, leaf in zip(args, plain, strict=True):
            if not (
                type(tensor) is torch.Tensor
                and tensor.dtype is leaf.dtype
                and tensor.shape == leaf.shape
                and leaf.dtype not in self._demoted
                and not tensor.requires_grad
                and tensor.is_contiguous()
            ):
                return False
        return True

    def run_plain(self, args: tuple) -> Any:
        """Runs a call for which ``matches`` holds."""
        started = time.perf_counter_ns()
        device = self.device
        return self._run([tensor.to(device) for tensor in args], args, started)

    def run(self, bound: Bound) -> Any:
        """Validates a call's arguments and runs it.

        Raises:
            poptorch.Error: the arguments differ from those of the first call.
        """
        started = time.perf_counter_ns()
        self._recorded.check(bound)
        return self._run(self._flatten(bound), list(self._recorded.tensors(bound)), started)

    def _run(
        self, flat: list[torch.Tensor], originals: Sequence[torch.Tensor], started: int
    ) -> Any:
        if self._synthetic is not None:
            flat = originals = self._synthetic
        if self._written_inputs:
            self._refuse_shared_inputs(flat)
        deliver = self._to_user
        if self._written_inputs:
            deliver = functools.partial(self._with_written_inputs, flat, originals)
        if not self._host_calls.functions:
            return self.session.call(flat, started, deliver)
        with self._host_calls.in_use():
            return self.session.call(flat, started, deliver)

    def _to_user(self, outputs: list[torch.Tensor]) -> Any:
        return structure.rebuild(self._outputs, self._results(outputs))

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
        return self._to_user(outputs)

    @property
    def was_stopped(self) -> bool:
        """Whether the latest run came to an error after it had begun."""
        return self.session.was_stopped

    @property
    def last_call(self) -> CallRecord | None:
        """When the parts of the last call happened; None before it."""
        return self.session.last_call

    def perf_counters(self) -> Counters | None:
        """The times of the last call by kind, tensor and transfer; None before it."""
        call = self.last_call
        if call is None:
            return None
        model = self.captured.programs[0]
        inputs = len(self._input_slots())
        outputs = sum(slot.role is Role.OUTPUT for slot in model.outputs)
        if self._synthetic is not None:
            return call_times.no_transfers(inputs, outputs)
        return call_times.counters(call, self.config, inputs, outputs)

    def anchored(self, name: str) -> torch.Tensor | None:
        """The values that an anchored tensor had in the last call, on the host."""
        value = self.session.anchored(name)
        return None if value is None else to_host(value)

    def _refuse_shared_inputs(self, flat: list[torch.Tensor]) -> None:
        """A program writes to its inputs one by one, so a written one must not be passed twice."""
        storages = [tensor.untyped_storage().data_ptr() for tensor in flat]
        for index in self._written_inputs:
            if storages.count(storages[index]) > 1:
                raise error(
                    f"Input tensor {index} is changed in forward and shares its memory with "
                    "another input of the same call. Pass a clone of it."
                )

    def _results(self, outputs: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        constants = self.captured.constants
        if not constants:
            return map(to_host, outputs)
        computed = map(to_host, outputs)
        return iter(
            [
                constants[index].clone() if index in constants else next(computed)
                for index in range(len(outputs) + len(constants))
            ]
        )

    def _examples(self, bound: Bound) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The first call's inputs, and one micro-batch of them."""
        if any(isinstance(value, dict) for value in (*bound.positional, *bound.keywords.values())):
            logger.warning("Dictionary inputs are only partially supported.")
        rows = self._flatten(bound)
        return rows, [self._micro_batch(tensor, i) for i, tensor in enumerate(rows)]

    def _flatten(self, bound: Bound) -> list[torch.Tensor]:
        return [self._to_device(tensor) for tensor in self._recorded.tensors(bound)]

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype.is_complex:
            raise error(f"Complex inputs are not supported, found one of {tensor.dtype}.")
        structure.require_dense(tensor)
        if tensor.requires_grad:
            self._warn_once("An input tensor has requires_grad=True; it is detached.")
        if not tensor.is_contiguous():
            self._warn_once("A non-contiguous input tensor is made contiguous at every call.")
        dtype = self._demoted.get(tensor.dtype, tensor.dtype)
        return tensor.detach().to(device=self.device, dtype=dtype).contiguous()

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text)


def _cache(options: Options) -> ExecutableCache | None:
    path = options._Popart.options.get("cachePath")
    enabled = options._Popart.options.get("enableEngineCaching")
    if path and enabled:
        return ExecutableCache(path)
    return None


def _warn_of_own_builds(options: Options) -> None:
    place = options.Distributed
    alone = place.numProcesses == 1 or place.processId > 0
    if not alone and _cache(options) is None:
        logger.warning(
            "%d processes compile the same model, each for itself. Call "
            "options.enableExecutableCaching(folder) or set POPTORCH_CACHE_DIR to let one compile "
            "for all.",
            place.numProcesses,
        )
