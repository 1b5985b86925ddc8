"""IPU mode: poptorch runs forward, loss, backward and update as one program.

The published port wrapped its network and then called ``.to(device)`` on the wrapper. That gives
back the plain network, so it trained on the host and reported the host's speed as the device's.
Here every step asks whether it is about to go through the executor, counts those that did, and
the device's own count of updates has to agree.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import popdist
import popdist.poptorch
import poptorch
from cosmictagger.backends._base import (
    STATE,
    Backend,
    Computed,
    Proof,
    Settings,
    Targets,
    make_optimizer,
)
from cosmictagger.config.keys import OptimizerKind, Precision
from cosmictagger.errors import BackendError, InstanceError
from cosmictagger.measures import Loss
from cosmictagger.models import LossInForward
from cosmictagger.recording import logger

_INTERPRETING = "reference"  # the target whose programs are interpreted for ever
_SEED = 42  # the published port's
# What the device calls the state of a parameter.
_DEVICE_NAMES = {
    **{"step": "Step", "exp_avg": "Accl1", "exp_avg_sq": "Accl2"},
    **{"square_avg": "Accl1", "acc_delta": "Accl2", "sum": "Accl1"},
}
#: Subfolder of a run's folder for reports of compiled programs.
COMPUTE = "compute"
_EXECUTION = "autoReport.outputExecutionProfile"
_SCALING = "lossScaling_FLOAT"
# The kinds whose device state has a count of updates.
_COUNTED = (OptimizerKind.adam, OptimizerKind.lamb)


def _on_device(base: Any) -> Any:
    """Return a class of torch.optim whose state poptorch reads and writes by parameter name."""

    def start(self: Any, params: Any, loss_scaling: float | None = None, **values: Any) -> None:
        base.__init__(self, params, **values)
        self.loss_scaling = loss_scaling or 1.0
        variable = ["lr"] if loss_scaling is None else ["lr", "loss_scaling"]
        known = [*self.defaults, "loss_scaling"]
        self.variable_attrs = poptorch.optim.VariableAttributes(variable, known)

    # Of poptorch's module: it warns of subclasses elsewhere, whose steps would not run.
    names = {"__init__": start, "__module__": poptorch.optim.__name__}
    return type(base.__name__, (poptorch.optim.Optimizer, base), names)


class IpuBackend(Backend):
    """The IPU backend: poptorch executors for training and inference, with the loss inside.

    Args:
        network, loss, settings: see ``Backend``; the network is trained through its wrapper.

    Attributes:
        module: network and loss as one module.
        trainer: runs updates; None where nothing is trained.
        evaluator: runs forward and loss with the trainer's present weights.
    """

    precisions = (Precision.float32, Precision.float16)

    def __init__(self, network: nn.Module, loss: Loss, settings: Settings):
        super().__init__(network, loss, settings)
        self.half = settings.precision is Precision.float16
        if self.half:
            network.half()
        self.module = LossInForward(network, loss, mark=_mark)
        self._optimizer = make_optimizer(
            self.module,
            settings,
            {
                OptimizerKind.adam: poptorch.optim.Adam,
                OptimizerKind.rmsprop: poptorch.optim.RMSprop,
                OptimizerKind.sgd: poptorch.optim.SGD,
                OptimizerKind.adagrad: _on_device(torch.optim.Adagrad),
                OptimizerKind.adadelta: _on_device(torch.optim.Adadelta),
                OptimizerKind.lamb: poptorch.optim.LAMB,
            },
            loss_scaling=1024.0 if self.half else None,
        )
        self.trainer: Any = None
        self._interpreted = 0  # steps
        self._evaluated: object = None  # which programs run evaluation
        # Each wrapper keeps the mode that the module is in when it is wrapped.
        self.module.train()
        if self._optimizer is not None:
            self.trainer = poptorch.trainingModel(
                self.module, self._options(training=True), optimizer=self._optimizer
            )
        self.module.eval()
        self.evaluator: Any = poptorch.inferenceModel(self.module, self._options(training=False))

    def _options(self, *, training: bool) -> poptorch.Options:
        # Inference exchanges nothing: each instance evaluates its images by itself.
        options = self._placed() if training else poptorch.Options()
        # Every micro-batch's loss and scores come back, not those of the last one alone.
        options.outputMode(poptorch.OutputMode.All)
        # In a file of a job's output a moving bar is noise; the log says what was compiled.
        is_first = self.settings.instances.is_first
        options.showCompilationProgressBar(is_first and sys.stderr.isatty())
        if training:
            options.Training.gradientAccumulation(self.settings.accumulation)
            # Gradients of one pixel among millions are below the smallest half.
            options.Training.setAutomaticLossScaling(self.half)
        options.enableExecutableCaching(self.settings.executables)
        if self.settings.folder is not None:
            options.logDir(self.settings.folder)
            self._report(options, Path(self.settings.folder), training=training)
        return options

    def _report(self, options: poptorch.Options, folder: Path, *, training: bool) -> None:
        """Enable poptorch's reports of compiled programs, with operator timings if profiling."""
        if not training and not self.settings.instances.is_first:
            return  # each instance evaluates the same program
        options.modelName("training" if training else "inference")
        options.enableProfiling(str(folder / COMPUTE))
        present = options._Popart.options["engineOptions"]
        timed = "true" if self.settings.profile else "false"
        options._Popart.setEngineOptions({**present, _EXECUTION: timed})

    def _placed(self) -> poptorch.Options:
        """Return poptorch options with the replicas and rank of this instance."""
        if popdist.isPopdistEnvSet():
            options: poptorch.Options = popdist.poptorch.Options()
        else:
            options = poptorch.Options().replicationFactor(self.settings.replicas)
        if self.settings.instances.count * self.settings.replicas > 1:
            options.randomSeed(_SEED)  # a common one
        return options

    def _train(self, image: torch.Tensor, targets: Targets, rate: float) -> Computed:
        self._require_executor(self.trainer, "training")
        if not self.trainer.isCompiled():
            self.module.train()
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self.trainer.setOptimizer(self._optimizer)
        result = self._call(self.trainer, image, targets)
        self.training_steps += 1
        return result

    def _evaluate(self, image: torch.Tensor, targets: Targets) -> Computed:
        self._require_executor(self.evaluator, "evaluation")
        if not self.evaluator.isCompiled():
            self.module.eval()
        result = self._call(self.evaluator, image, targets)
        self.evaluation_steps += 1
        running = self.evaluator.build_record.running
        before, self._evaluated = self._evaluated, (running.interpreted, running.problem)
        if self.trainer is not None and self._evaluated != before:
            # Without updates, batches are counted.
            logger.info(f"Validation: {running.sentence().replace('update', 'batch')}")
        return result

    def _require_executor(self, executor: Any, kind: str) -> None:
        if not isinstance(executor, poptorch.PoplarExecutor):
            raise BackendError(
                f"A step of {kind} in IPU mode was about to run on the host: instead of poptorch's "
                f"executor there is a {type(executor).__name__}. Calling .to() or .cpu() on an "
                "executor gives back the plain network; leave the executor where it is."
            )

    def _call(self, executor: Any, image: torch.Tensor, targets: Targets) -> Computed:
        try:
            *outputs, loss = executor(image.half() if self.half else image, *targets)
        except popdist.Error as error:
            raise InstanceError(f"An update could not be made together: {error}") from error
        except poptorch.Error as error:
            raise BackendError(f"IPU mode cannot go on: {error}") from error
        if loss.requires_grad or not executor.isAttachedToDevice():
            raise BackendError(
                "A step in IPU mode came back with a graph of autograd, so it ran on the host."
            )
        record = executor.build_record
        self._interpreted += record.running.interpreted or record.target == _INTERPRETING
        count = len(self.loss.names)
        parts = outputs[-count:] if count > 1 else [loss]
        outputs = outputs[:-count] if count > 1 else outputs
        means = [each.float().mean() for each in (*parts, loss)]
        return Computed(tuple(outputs), means[:-1], means[-1])

    def proof(self) -> Proof:
        """Return the evidence of the device, from the training executor if there is one."""
        self._compare_counts()
        executor = self.evaluator if self._optimizer is None else self.trainer
        self._require_executor(executor, "training or evaluation")
        record = executor.build_record
        target = executor.target
        return self._proof(
            backend=f"poptorch{self._copies()}",
            target=target,
            on_gpu=target == "cuda",
            interpreted=self._interpreted,
            executable=executor.executable_hash,
            compile_seconds=record and sum(record.seconds.values(), record.running.compile_s or 0),
            programs=record
            and "from the cache: " * (record.cache == "hit") + record.running.sentence(),
        )

    def what_runs(self) -> object:
        """See ``Backend``."""
        executor = self.evaluator if self._optimizer is None else self.trainer
        record = executor.build_record
        return None if record is None else (record.running.interpreted, record.running.problem)

    def _copies(self) -> str:
        replicas, count = self.settings.replicas, self.settings.instances.count
        if self._optimizer is None or replicas * count == 1:
            return ""
        if count == 1:
            return f", {replicas} replicas"
        return f", {count} instances with {replicas} replica{'s' * (replicas > 1)} each"

    def _compare_counts(self) -> None:
        settings = self.settings.optimizer
        if settings is None or settings.name not in _COUNTED or not self.training_steps:
            return
        state = self._optimizer.state_dict()["ipu_state"] or {}
        counts = {int(value) for name, value in state.items() if name.startswith("Step___")}
        if not self.half:  # the device leaves out updates whose gradients overflow
            self._require_updates(counts)

    def _weights_loaded(self) -> None:
        for executor in (self.trainer, self.evaluator):
            if executor is not None and executor.isCompiled():
                executor.copyWeightsToDevice()

    def _optimizer_state(self) -> dict[str, Any]:
        settings = self.settings.optimizer
        if settings is None:
            return {}
        everything = self._optimizer.state_dict()
        tensors, done = everything["ipu_state"], self._updates_done()
        if tensors is None or not done:
            return {}
        states: dict[str, dict[str, torch.Tensor]] = {}
        for name, inner in self._names().items():
            states[name] = {"step": tensors.get(f"Step___{inner}", done).float().clone()}
            for key in STATE[settings.name]:
                states[name][key] = tensors[f"{_DEVICE_NAMES[key]}___{inner}"].clone()
        state: dict[str, Any] = {settings.name.name: states}
        if self.half:
            state["scaling"] = everything["ipu_param"][_SCALING].clone()
        return state

    def _load_scaling(self, scaling: Any) -> None:
        if self.half and isinstance(scaling, torch.Tensor):
            self._optimizer.set_state_dict({"ipu_state": {}, "ipu_param": {_SCALING: scaling}})

    def _load_optimizer_state(self, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        settings = self.settings.optimizer
        assert settings is not None  # Backend.load_state_dict has asked
        keys = STATE[settings.name]
        if settings.name in _COUNTED:
            keys = ("step", *keys)
        tensors = {
            f"{_DEVICE_NAMES[key]}___{inner}": state[name][key]
            for name, inner in self._names().items()
            if name in state
            for key in keys
        }
        self._optimizer.set_state_dict({"ipu_state": tensors, "ipu_param": None})
        self._count_updates_from(state)

    def _names(self) -> dict[str, str]:
        """Return a map of parameter names from the network to the module with the loss."""
        plain = {id(value): name for name, value in self.network.named_parameters()}
        return {plain[id(value)]: name for name, value in self.module.named_parameters()}

    def close(self) -> None:
        """Copy the weights to the host and free the executors."""
        for executor in (self.trainer, self.evaluator):
            if isinstance(executor, poptorch.PoplarExecutor):
                executor.destroy()


def _mark(loss: torch.Tensor) -> torch.Tensor:
    """Mark the loss for poptorch as the result to minimize."""
    return poptorch.identity_loss(loss, reduction="mean")
