"""One compiled model: what it was compiled for, its session, and how calls pass through it."""

import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from abele import batching
from abele.build import BuildRecord, build
from abele.cache import ExecutableCache
from abele.capture import Captured, capture
from abele.config import StepConfig
from abele.module_state import ModuleState
from abele.program import Role
from abele.runtime.session import Session
from abele.targets import Target
from abele.update_rules import UpdateRule
from poptorch import _arguments as arguments
from poptorch._arguments import Bound, Leaf
from poptorch._error import error
from poptorch._logging import logger
from poptorch._progress import CompilationProgress
from poptorch.ops import running_on_ipu
from poptorch.options import Options

# Types that a device of this programming model does not have, and what stands in for them.
_INPUT_TYPES = {torch.float64: torch.float32, torch.bfloat16: torch.float32}
_OUTPUT_TYPES = {torch.float64: torch.float32, torch.int64: torch.int32}


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
        self.config, self.module, self.rule = config, module, rule
        self._warned_contiguous = False
        self._record_arguments(bound)
        rows = self._flatten(bound)
        examples = [self._micro_batch(tensor, i) for i, tensor in enumerate(rows)]
        with CompilationProgress(options._show_compilation_progress_bar) as progress:
            progress.update("capture", 0.01)
            started = time.perf_counter()
            self.captured = self._capture(examples)
            captured_s = time.perf_counter() - started
            executable, self.record = build(
                self.captured.programs,
                config,
                target=target,
                cache=_cache(options),
                log_folder=options.log_dir,
                progress=progress.update,
            )
            self.record.seconds["capture"] = captured_s
            progress.update("load", 0.99)
            self.session = self._start(executable)
        self._mutated_inputs = [i for i, slot in enumerate(self._model_inputs()) if slot.mutated]

    # -- compiling -------------------------------------------------------------------------

    def _record_arguments(self, bound: Bound) -> None:
        self._names = bound.names
        self._positional = tuple(map(arguments.record, bound.positional))
        self._keywords = {k: arguments.record(v) for k, v in bound.keywords.items()}
        plain = not self._keywords and all(isinstance(p, Leaf) for p in self._positional)
        self._plain: tuple[Leaf, ...] | None = self._positional if plain else None
        if any(isinstance(value, dict) for value in bound.positional):
            logger.warning("Dictionary inputs are only partially supported.")

    def _micro_batch(self, tensor: torch.Tensor, index: int) -> torch.Tensor:
        if tensor.numel() == 0:
            raise error(
                f"Input tensor {index} has no elements (shape {list(tensor.shape)}), "
                "which is not supported. Pass at least one row."
            )
        rows = tensor.shape[0] if tensor.dim() else 1
        size = batching.micro_batch_size(rows, self.config, f"input {index}")
        return tensor.narrow(0, 0, size) if tensor.dim() else tensor

    def _capture(self, examples: list[torch.Tensor]) -> Captured:
        captured = capture(self._call_forward, self.module, examples, self.config, self.rule)
        if self.config.replicas > 1 and self.config.broadcast_buffers:
            self._refuse_written_buffers(captured)
        for value in captured.constants.values():
            warnings.warn(
                f"Output expected to be on the IPU but is on {value.device.type}: it does not "
                "depend on any input and is returned as a constant.",
                stacklevel=5,
            )
        return captured

    def _call_forward(self, flat: list[torch.Tensor]) -> list[torch.Tensor]:
        values = iter(flat)
        positional = [arguments.rebuild(spec, values) for spec in self._positional]
        keywords = {k: arguments.rebuild(spec, values) for k, spec in self._keywords.items()}
        with running_on_ipu():
            result = self.module(*positional, **keywords)
        self._outputs = arguments.record(result)
        return list(arguments.tensors(result, self._outputs))

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

    def _start(self, executable: Any) -> Session:
        state = ModuleState.of(self.module)
        optimizer_state = {}
        if self.rule is not None:
            for name, values in self.rule.initial_state(state.params).items():
                optimizer_state |= {f"{name}.{key}": value for key, value in values.items()}
        return Session(
            executable,
            self.config,
            state.params,
            state.buffers,
            optimizer_state,
            self.rule.hyper() if self.rule is not None else {},
        )

    def _model_inputs(self) -> list:
        slots = self.captured.programs[0].inputs
        return [slot for slot in slots if slot.role is Role.INPUT]

    # -- running ---------------------------------------------------------------------------

    def matches(self, args: tuple) -> bool:
        """Whether a call brings plain contiguous tensors exactly like the first one's."""
        plain = self._plain
        if plain is None or len(args) != len(plain):
            return False
        return all(
            type(tensor) is torch.Tensor
            and tensor.shape == leaf.shape
            and tensor.dtype is leaf.dtype
            and leaf.dtype not in _INPUT_TYPES
            and not tensor.requires_grad
            and tensor.is_contiguous()
            for tensor, leaf in zip(args, plain, strict=True)
        )

    def run_plain(self, args: tuple) -> Any:
        """Runs a call for which ``matches`` holds."""
        device = self.session.device
        # Without a copy where the tensors are on the device already; compiled code may keep
        # the list, so it is ours.
        return self._run([tensor.to(device) for tensor in args], args)

    def run(self, bound: Bound) -> Any:
        """Validates a call's arguments and runs it.

        Raises:
            poptorch.Error: the arguments differ from those of the first call.
        """
        self._check_same(bound)
        return self._run(self._flatten(bound), list(self._tensors_of(bound)))

    def _run(self, flat: list[torch.Tensor], originals: Any) -> Any:
        outputs = self.session.step(flat)
        for index in self._mutated_inputs:
            if flat[index].data_ptr() != originals[index].data_ptr():
                with torch.no_grad():
                    originals[index].copy_(flat[index])
        return arguments.rebuild(self._outputs, self._results(outputs))

    def _results(self, outputs: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        constants = self.captured.constants
        computed = iter(outputs)
        for index in range(len(outputs) + len(constants)):
            yield constants[index] if index in constants else _to_host(next(computed))

    def _check_same(self, bound: Bound) -> None:
        arguments.check_count(len(self._positional), len(bound.positional))
        for name, spec, value in zip(self._names, self._positional, bound.positional, strict=True):
            arguments.check_same(spec, arguments.record(value), name)
        arguments.check_keys(tuple(self._keywords), tuple(bound.keywords), "keyword arguments")
        for name, spec in self._keywords.items():
            arguments.check_same(spec, arguments.record(bound.keywords[name]), name)

    def _tensors_of(self, bound: Bound) -> Iterator[torch.Tensor]:
        for spec, value in zip(self._positional, bound.positional, strict=True):
            yield from arguments.tensors(value, spec)
        for name, spec in self._keywords.items():
            yield from arguments.tensors(bound.keywords[name], spec)

    def _flatten(self, bound: Bound) -> list[torch.Tensor]:
        device = self.session.device if hasattr(self, "session") else torch.device("cpu")
        return [self._to_device(tensor, device) for tensor in self._tensors_of(bound)]

    def _to_device(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        if tensor.dtype.is_complex:
            raise error(f"Complex inputs are not supported, found one of {tensor.dtype}.")
        if tensor.requires_grad:
            logger.warning("An input tensor has requires_grad=True; it is detached.")
        if not tensor.is_contiguous() and not self._warned_contiguous:
            self._warned_contiguous = True
            logger.warning("A non-contiguous input tensor is made contiguous at every call.")
        dtype = _INPUT_TYPES.get(tensor.dtype, tensor.dtype)
        return tensor.detach().to(device=device, dtype=dtype).contiguous()


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    dtype = _OUTPUT_TYPES.get(tensor.dtype, tensor.dtype)
    if dtype is not tensor.dtype or tensor.device.type != "cpu":
        tensor = tensor.to("cpu", dtype)
    tensor.backward = _refuse_backward
    tensor.__getstate__ = dict  # so that the line above is not pickled with the tensor
    return tensor


def _refuse_backward(*args: Any, **kwargs: Any) -> None:
    del args, kwargs
    raise error(
        "backward() was called on a result of a wrapped model. Results carry no gradient history: "
        "a model wrapped by poptorch.trainingModel runs backward and the optimizer inside the "
        "call. Remove backward() and optimizer.step()."
    )


def _cache(options: Options) -> ExecutableCache | None:
    path = options._Popart.options.get("cachePath")
    enabled = options._Popart.options.get("enableEngineCaching")
    return ExecutableCache(path) if path and enabled else None


def summary(record: BuildRecord) -> str:
    """One line: which target runs, which executable, where it came from."""
    took = sum(record.seconds.values())
    origin = "loaded from the cache" if record.cache == "hit" else "made"
    return (
        f"abele: target {record.target}, executable {record.executable[:12]}, "
        f"{origin} in {took:.1f} s"
    )
