"""Base class of backends: training and evaluation steps on a device, and proof of the device."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from abele import processor
from cosmictagger.config.keys import ComputeMode, Optimizer, OptimizerKind, Precision
from cosmictagger.data.loader import Batch
from cosmictagger.errors import BackendError, ConfigError
from cosmictagger.instances import Instances
from cosmictagger.measures import COSMIC_ONLY, Loss, parted, total

Logits = tuple[torch.Tensor, ...]
Targets = tuple[torch.Tensor, ...]
"""Labels of pixels, then with heads the events' labels and the vertices."""

EAGER = "eager"  # the target of what no compiler has seen

# Per-parameter state of each optimizer, besides its count of steps.
STATE: Mapping[OptimizerKind, tuple[str, ...]] = {
    OptimizerKind.adam: ("exp_avg", "exp_avg_sq"),
    OptimizerKind.rmsprop: ("square_avg",),
    OptimizerKind.sgd: (),
    OptimizerKind.adagrad: ("sum",),
    OptimizerKind.adadelta: ("square_avg", "acc_delta"),
    OptimizerKind.lamb: ("exp_avg", "exp_avg_sq"),
}
CONSTANTS: Mapping[OptimizerKind, Mapping[str, Any]] = {
    OptimizerKind.adam: {"betas": (0.9, 0.999), "eps": 1e-8},
    OptimizerKind.rmsprop: {"eps": 1e-4},
    OptimizerKind.sgd: {},
    OptimizerKind.adagrad: {"eps": 1e-10},
    OptimizerKind.adadelta: {"eps": 1e-6},
    OptimizerKind.lamb: {
        "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0, "max_weight_norm": 10.0,
        "bias_correction": False,
    },
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class StepResult:
    """Loss, logits and timings of one training or evaluation step.

    Attributes:
        loss: 0-d float32, the mean over micro-batches; None where there were no labels.
        logits: three of [B, 3, H, W], one per plane, on the host.
        seconds: of forward, loss, backward and optimizer, where these are apart: CPU mode.
        event_label: logits [B, 4] of the head for it; None without one.
        vertex: three of [B, 3, h, w] of the head for it, one per plane; None without one.
        parts: the terms of the loss by name, likewise means; empty without heads or labels.
    """

    loss: torch.Tensor | None
    logits: Logits
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    event_label: torch.Tensor | None = None
    vertex: Logits | None = None
    parts: Mapping[str, torch.Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Computed:
    """Outputs and loss of one batch on a device, before the outputs are taken apart.

    Attributes:
        outputs: of the network, on the host.
        parts: the terms of the loss; the loss alone where there is one term.
        loss: their sum.
        seconds: see ``StepResult``.
    """

    outputs: Logits
    parts: Sequence[torch.Tensor]
    loss: torch.Tensor
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Proof:
    """Evidence of the compute device on which the training and evaluation steps ran.

    Attributes:
        mode: the compute mode that was asked for.
        backend: what runs it.
        target: what the steps were compiled for, or ``eager``.
        device: in words.
        precision: of the network.
        executable: hash of the program of a step; None where there is no program.
        compile_seconds: how long making or loading it took; None likewise.
        training_steps: those that the device made, counted where it is called.
        evaluation_steps: likewise.
        interpreted_steps: those of both that ran as in plain PyTorch, operator by operator.
        compiled_steps: the other ones, which ran with compiled kernels.
        programs: which programs run now, and why, in words; None where there are none.
    """

    mode: str
    backend: str
    target: str | None
    device: str
    precision: str
    executable: str | None
    compile_seconds: float | None
    training_steps: int
    evaluation_steps: int
    interpreted_steps: int
    compiled_steps: int
    programs: str | None = None

    def line(self) -> str:
        """Return the evidence of the device as one line for the banner and the log."""
        if self.executable is not None:
            executable = (
                f"executable {self.executable[:16]}, made in {self.compile_seconds or 0:.1f} s"
                f"{f'; {self.programs}' if self.programs else ''}"
            )
        elif self.target == EAGER:
            executable = "no executable: interpreted by PyTorch"
        elif self.compile_seconds is not None:
            executable = f"compiled within the first step, which took {self.compile_seconds:.1f} s"
        else:
            executable = "executable: at the first step"
        return (
            f"Mode {self.mode}: {self.backend}, target {self.target or 'to be chosen'}, "
            f"{self.precision}, on {self.device}; {executable}"
        )

    def counts(self) -> str:
        """Return how many training and evaluation steps ran on the device, as text."""
        return (
            f"{self.training_steps} training and {self.evaluation_steps} evaluation steps went "
            f"through it, {self.interpreted_steps} interpreted and {self.compiled_steps} with "
            "compiled kernels"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a backend besides network and loss: device, precision, batch, optimizer.

    Attributes:
        mode: where to run.
        precision: in which number format.
        micro_batch: images of one pass forward.
        optimizer: how weights change; None where nothing is trained.
        compile: plain PyTorch only: compile the network.
        channels_last: plain PyTorch only: layout of convolutions in memory.
        folder: where compiled programs and logs of compilers may go.
        replicas: IPU mode only: copies of the network in this process.
        instances: the processes that make each update together.
        broadcast_buffers: plain PyTorch only: all use the first instance's statistics.
        profile: IPU mode only: time the operators once the run is over.
        executables: IPU mode only: folder of compiled programs that runs share; None for none.
    """

    mode: ComputeMode = ComputeMode.CPU
    precision: Precision = Precision.float32
    micro_batch: int = 1
    optimizer: Optimizer | None = None
    compile: bool = False
    channels_last: bool = False
    folder: str | None = None
    replicas: int = 1
    instances: Instances = dataclasses.field(default_factory=Instances)
    broadcast_buffers: bool = True
    profile: bool = False
    executables: str | None = None

    @property
    def images(self) -> int:
        """Images per update of this instance."""
        return self.micro_batch * self.replicas * self.accumulation

    @property
    def accumulation(self) -> int:
        """Number of micro-batches whose gradients are accumulated for one update."""
        return 1 if self.optimizer is None else self.optimizer.gradient_accumulation


class Backend(abc.ABC):
    """Trains and evaluates one network on one device.

    Args:
        network: float32, on the host; trained in place or through copies, see ``state_dict``.
        loss: of its outputs, heads included.
        settings: device, precision and optimizer.

    Attributes:
        training_steps: updates that went through the device.
        evaluation_steps: passes without update that went through it.
    """

    precisions = tuple(Precision)  # of the device
    _optimizer: Any  # made by the device's class; None if nothing is trained

    def __init__(self, network: nn.Module, loss: Loss, settings: Settings):
        if settings.precision not in self.precisions:
            raise ConfigError(
                f"run.precision={settings.precision.name} was asked for; {settings.mode.name} mode "
                f"has {' and '.join(each.name for each in self.precisions)}."
            )
        self.network, self.loss, self.settings = network, loss, settings
        self.training_steps = self.evaluation_steps = 0
        self._updates_before = 0  # by the checkpoint's run, less the training steps until then

    def train_step(self, batch: Batch, rate: float) -> StepResult:
        """Run one training step on ``settings.images`` images of each instance."""
        images = self.settings.images
        if self.settings.optimizer is None:
            raise BackendError("This backend was made without an optimizer, so it cannot train.")
        targets = self._targets(batch)
        if len(batch) != images or targets is None:
            raise BackendError(
                f"A training step takes {images} images with {self._wanted}, found {len(batch)} "
                f"{'without' if targets is None else 'with'} {self._wanted}."
            )
        return self._result(self._train(batch.image, targets, rate))

    def evaluate_step(self, batch: Batch) -> StepResult:
        """Return logits, and the loss if there are labels, without updating weights or statistics.

        Args:
            batch: of any size up to ``micro_batch``; programs of fixed size are fed the last event
                again, and what comes of that is left out.
        """
        count, size = len(batch), self.settings.micro_batch
        if not 0 < count <= size:
            raise BackendError(f"An evaluation takes 1 to {size} images, found {count}.")
        targets = self._targets(batch)
        filled = self._no_targets(batch.image) if targets is None else targets
        computed = self._evaluate(
            padded(batch.image, size), tuple(padded(each, size) for each in filled)
        )
        outputs = tuple(each[:count] for each in computed.outputs)
        if targets is None:
            return dataclasses.replace(self._result(computed, outputs), loss=None, parts={})
        if count < size:
            with torch.no_grad():
                parts = self.loss.parts(outputs, *targets)
            computed = Computed(outputs, parts, total(parts))
        return self._result(computed, outputs)

    @property
    def _wanted(self) -> str:
        names = {"label": "labels", "event_label": "event labels", "vertex": "vertices"}
        return ", ".join(names[each] for each in self.loss.targets)

    def _targets(self, batch: Batch) -> Targets | None:
        """Return what the loss compares with; None unless the batch has all of it."""
        found = tuple(getattr(batch, name) for name in self.loss.targets)
        return None if any(each is None for each in found) else found

    def _no_targets(self, image: torch.Tensor) -> Targets:
        """Return targets of the right shapes, for programs that compute a loss nobody reads."""
        count, planes = image.shape[:2]
        empty = {
            "label": torch.zeros_like(image).long(),
            "event_label": torch.full((count,), COSMIC_ONLY),
            "vertex": torch.zeros(count, planes, 2),
        }
        return tuple(empty[name] for name in self.loss.targets)

    def _result(self, computed: Computed, outputs: Logits | None = None) -> StepResult:
        """Return a step's result; ``outputs`` in place of the computed ones."""
        logits, event_label, vertex = parted(computed.outputs if outputs is None else outputs)
        named = dict(zip(self.loss.names, computed.parts, strict=True))
        return StepResult(
            computed.loss,
            tuple(logits),
            computed.seconds,
            event_label,
            vertex,
            named if len(named) > 1 else {},
        )

    def share_statistics(self) -> None:
        """Broadcast the first instance's batch statistics to all instances, for evaluation.

        An update needs none of them, so this changes no weights.
        """
        instances = self.settings.instances
        if instances.count > 1:
            buffers = dict(self.network.named_buffers())
            mine = {name: value.detach().cpu() for name, value in buffers.items()}
            for name, value in instances.tensors_from_first("statistics", mine).items():
                buffers[name].copy_(value)

    @abc.abstractmethod
    def _train(self, image: torch.Tensor, targets: Targets, rate: float) -> Computed: ...

    @abc.abstractmethod
    def _evaluate(self, image: torch.Tensor, targets: Targets) -> Computed: ...

    @abc.abstractmethod
    def proof(self) -> Proof:
        """Return the evidence, known so far, of the device that ran the steps."""

    def what_runs(self) -> object:
        """Return a value that changes when other programs run than before; cheap."""
        return self.training_steps + self.evaluation_steps > 0

    def _proof(self, *, on_gpu: bool, interpreted: int | None, **values: Any) -> Proof:
        """Return the proof; steps are ``interpreted``, None: all of them."""
        steps = self.training_steps + self.evaluation_steps
        interpreted = steps if interpreted is None else interpreted
        return Proof(
            mode=self.settings.mode.name,
            device=torch.cuda.get_device_name() if on_gpu else processor.name(),
            precision=self.settings.precision.name,
            training_steps=self.training_steps,
            evaluation_steps=self.evaluation_steps,
            interpreted_steps=interpreted,
            compiled_steps=steps - interpreted,
            **values,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return weights and optimizer state on the host, the same for every backend.

        Returns:
            ``state_dict``: the network's tensors by name. ``optimizer``: kind, and per parameter
            its state by name, ``{"adam": {"fc.weight": {"step": ..., "exp_avg": ...}}}``; with
            half precision also ``scaling``, the factor on the loss.
        """
        weights = {k: v.detach().cpu().clone() for k, v in self.network.state_dict().items()}
        return {"state_dict": weights, "optimizer": self._optimizer_state()}

    def load_state_dict(self, content: Mapping[str, Any]) -> None:
        """Load weights and optimizer state of any backend; only weights without ``optimizer``."""
        self.network.load_state_dict(content["state_dict"])
        self._weights_loaded()
        state, settings = content.get("optimizer"), self.settings.optimizer
        if not state or settings is None:
            return
        if "param_groups" in state:
            state = _by_name(state, self.network)
        if state and settings.name.name not in state:
            raise BackendError(
                f"The checkpoint was trained with {next(iter(state))}, this run asks for "
                f"mode.optimizer.name={settings.name.name}. Use the same, or name the checkpoint "
                "with mode.weights_location to go on with its weights alone."
            )
        if state:
            self._load_optimizer_state(state[settings.name.name])
            self._load_scaling(state.get("scaling"))

    def _weights_loaded(self) -> None:  # noqa: B027  not every device has a copy
        """Copy loaded weights to the device."""

    def _optimizer_state(self) -> dict[str, Any]:
        """Return a torch optimizer's state by kind and parameter name; empty before an update."""
        settings, done = self.settings.optimizer, self._updates_done()
        if settings is None or not done:
            return {}
        states: dict[str, dict[str, torch.Tensor]] = {}
        for name, value in self.network.named_parameters():
            state = self._optimizer.state.get(value, {})
            if state or not STATE[settings.name]:  # or it has never had a gradient
                states[name] = {"step": torch.as_tensor(state.get("step", done)).float().cpu()}
                states[name] |= {key: state[key].cpu().clone() for key in STATE[settings.name]}
        return {settings.name.name: states} if states else {}

    def _updates_done(self) -> torch.Tensor:
        """Return the number of updates of the run, for optimizers that count none."""
        return torch.tensor(float(self._updates_before + self.training_steps))

    def _load_optimizer_state(self, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Load state by parameter name into a torch optimizer."""
        assert self.settings.optimizer is not None  # load_state_dict has asked
        keys = STATE[self.settings.optimizer.name]
        # Clones, because torch would go on with the very tensors that are given.
        indexed = {
            i: {
                "step": torch.as_tensor(state[name]["step"]).float().clone(),
                **{key: state[name][key].clone() for key in keys},
            }
            for i, (name, _) in enumerate(self.network.named_parameters())
            if keys and name in state
        }
        groups = self._optimizer.state_dict()["param_groups"]
        loaded = {"state": indexed, "param_groups": groups}
        # Not the method of poptorch.optim.LAMB, which takes the state of a device.
        torch.optim.Optimizer.load_state_dict(self._optimizer, loaded)
        self._count_updates_from(state)

    def _count_updates_from(self, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        done = max((int(each["step"]) for each in state.values()), default=0)
        self._updates_before = done - self.training_steps

    def _require_updates(self, counts: set[int]) -> None:
        """Raise unless the device's count of updates equals the host's."""
        expected = self._updates_before + self.training_steps
        if counts != {expected}:
            raise BackendError(
                f"{expected} updates were asked for in {self.settings.mode.name} mode, but the "
                f"device has made {sorted(counts)}. Start the run again from its latest checkpoint."
            )

    def _load_scaling(self, scaling: Any) -> None:  # noqa: B027  not every backend scales
        """Restore the saved loss scale, if any."""

    def close(self) -> None:  # noqa: B027  not every device has to be given back
        """Release the device held by the backend."""


def _by_name(state: Mapping[str, Any], network: nn.Module) -> dict[str, Any]:
    """Convert a ``torch.optim`` state dict from parameter indices to parameter names."""
    names = [name for name, _ in network.named_parameters()]
    by_name = {names[int(index)]: value for index, value in state["state"].items()}
    found = {
        key for each in by_name.values() for key, value in each.items() if value is not None
    } - {"step"}
    kinds = [kind for kind, keys in STATE.items() if keys and set(keys) == found]
    if OptimizerKind.lamb in kinds:  # its state has the names of Adam's
        is_adam = all("amsgrad" in group for group in state["param_groups"])
        kinds = [OptimizerKind.adam if is_adam else OptimizerKind.lamb]
    return {kinds[0].name: by_name} if by_name and kinds else {}


def make_optimizer(
    network: nn.Module, settings: Settings, kinds: Mapping[OptimizerKind, Any], **more: Any
) -> Any:
    """Create the optimizer of the configured kind; None if nothing is trained."""
    if settings.optimizer is None:
        return None
    kind, decay = settings.optimizer.name, settings.optimizer.weight_decay
    values = {**CONSTANTS[kind], **({"weight_decay": decay} if decay else {}), **more}
    # The rate comes with each step, and so changes without another compilation.
    return kinds[kind](network.parameters(), lr=1.0, **values)


def padded(rows: torch.Tensor, size: int) -> torch.Tensor:
    """Pad a tensor to ``size`` rows by repeating its last row."""
    missing = size - len(rows)
    return rows if not missing else torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])])


def micro_batches(settings: Settings, *tensors: torch.Tensor) -> Iterator[Sequence[torch.Tensor]]:
    """Split tensors along the batch into micro-batches."""
    return zip(*(tensor.split(settings.micro_batch) for tensor in tensors), strict=True)


def joined(parts: Sequence[Logits]) -> Logits:
    """Concatenate the outputs of micro-batches along the batch, on the host."""
    return tuple(torch.cat(planes).detach().cpu() for planes in zip(*parts, strict=True))
