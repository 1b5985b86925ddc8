"""RDU backend: sambaflow runs the network on the device, and the host computes the loss.

Forward runs first; the gradients of the host's loss go back for backward and update. One compiled
file (PEF) holds these sections; a file that an earlier launch left is used again as long as it is
of the same program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

import poptorch.optim
from cosmictagger.backends._base import (
    Backend,
    Computed,
    Proof,
    Settings,
    Targets,
    make_optimizer,
)
from cosmictagger.config.keys import OptimizerKind, Precision
from cosmictagger.errors import BackendError, ConfigError
from cosmictagger.measures import Loss, total
from sambaflow import samba
from sambaflow.errors import PefError, SambaError

_T = TypeVar("_T")
_TYPES = {Precision.float32: torch.float32, Precision.bfloat16: torch.bfloat16}


class RduBackend(Backend):
    """The RDU backend: a training session and an inference session of one network.

    Args:
        network, loss, settings: see ``Backend``; ``settings.folder`` takes the compiled files.
    """

    precisions = tuple(_TYPES)

    def __init__(self, network: nn.Module, loss: Loss, settings: Settings):
        super().__init__(network, loss, settings)
        if settings.accumulation != 1:
            raise ConfigError(
                f"mode.optimizer.gradient_accumulation={settings.accumulation} was asked for; RDU "
                "mode updates after every batch. Use 1, and a larger run.minibatch_size."
            )
        self.dtype = _TYPES[settings.precision]
        samba.from_torch_model_(network.to(self.dtype))
        self._optimizer = make_optimizer(
            network,
            settings,
            {
                OptimizerKind.adam: samba.optim.Adam,
                OptimizerKind.rmsprop: torch.optim.RMSprop,
                OptimizerKind.sgd: samba.optim.SGD,
                OptimizerKind.adagrad: torch.optim.Adagrad,
                OptimizerKind.adadelta: torch.optim.Adadelta,
                OptimizerKind.lamb: poptorch.optim.LAMB,
            },
        )
        self.trainer = samba.SambaSession()
        self.evaluator = samba.SambaSession()
        self._seconds: float | None = None
        # Whether the device has weights that the host or the evaluator have not seen.
        self._host_is_old = self._evaluator_is_old = False

    def compile(self, image_size: tuple[int, int]) -> Path:
        """Compile the training program without running it.

        Returns:
            The PEF file, which a launch with the same ``output_dir`` will use.
        """
        self.network.train()
        return self._with_errors_of_mode(
            lambda: self._compile(self._inputs(image_size), training=True)
        )

    def _inputs(self, image_size: tuple[int, int]) -> tuple[torch.Tensor, ...]:
        shape = (self.settings.micro_batch, 3, *image_size)
        return (samba.from_torch_tensor(torch.zeros(shape, dtype=self.dtype), "image", 0),)

    def _compile(self, inputs: tuple[torch.Tensor, ...], *, training: bool) -> Path:
        name = "train" if training else "evaluate"
        session = self.trainer if training else self.evaluator
        path = session.compile(
            self.network,
            inputs,
            self._optimizer if training else None,
            name=name,
            config_dict={"output_folder": str(self._folder), "pef_name": name},
            inference=not training,
        )
        return Path(path)

    @property
    def _folder(self) -> Path:
        return Path(self.settings.folder or ".") / "pef"

    def _ready(self, image: torch.Tensor, *, training: bool) -> samba.SambaSession:
        """Return a session with its program loaded and the network's current weights."""
        session = self.trainer if training else self.evaluator
        if not isinstance(session, samba.SambaSession):
            raise BackendError(
                "A step in RDU mode was about to run on the host: instead of a session of "
                f"sambaflow there is a {type(session).__name__}."
            )
        if session.graph is None:
            self._to_host()
            self.network.train(training)
            self._with_errors_of_mode(lambda: self._load(session, image, training=training))
        return session

    def _load(self, session: samba.SambaSession, image: torch.Tensor, *, training: bool) -> None:
        inputs = self._inputs((image.shape[2], image.shape[3]))
        optimizer = self._optimizer if training else None
        name = "train" if training else "evaluate"
        pef = self._folder / name / f"{name}.pef"
        started = time.perf_counter()
        try:
            session.trace_graph(self.network, inputs, optimizer, pef=pef)
        except PefError:  # there is none, or it is of another program
            pef = self._compile(inputs, training=training)
            session.trace_graph(self.network, inputs, optimizer, pef=pef)
        if training or self._optimizer is None:
            self._seconds = time.perf_counter() - started

    def _train(self, image: torch.Tensor, targets: Targets, rate: float) -> Computed:
        session = self._ready(image, training=True)
        inputs = {"image": image.to(self.dtype)}

        def step() -> Computed:
            results = session.run(inputs, section_types=["fwd"])
            outputs = tuple(samba.to_torch(each).float().requires_grad_() for each in results)
            parts = self.loss.parts(outputs, *targets)
            loss = total(parts)
            loss.backward()
            session.run(
                inputs,
                grad_of_outputs=[each.grad.to(self.dtype) for each in outputs],  # type: ignore[union-attr]
                section_types=["bckwd", "opt"],
                hyperparam_dict={"lr": rate},
            )
            return Computed(
                tuple(each.detach() for each in outputs),
                [each.detach() for each in parts],
                loss.detach(),
            )

        result = self._with_errors_of_mode(step)
        self._host_is_old = self._evaluator_is_old = True
        self.training_steps += 1
        return result

    def _evaluate(self, image: torch.Tensor, targets: Targets) -> Computed:
        session = self._ready(image, training=False)
        if self._evaluator_is_old:
            self._to_host()
            session.to_device()
            self._evaluator_is_old = False
        results = self._with_errors_of_mode(lambda: session.run({"image": image.to(self.dtype)}))
        outputs = tuple(samba.to_torch(each).float() for each in results)
        self.evaluation_steps += 1
        with torch.no_grad():
            parts = self.loss.parts(outputs, *targets)
        return Computed(outputs, parts, total(parts))

    def _with_errors_of_mode(self, do: Callable[[], _T]) -> _T:
        try:
            return do()
        except SambaError as error:
            raise BackendError(f"RDU mode cannot go on: {error}") from error

    def _to_host(self) -> None:
        if self._host_is_old:
            self.trainer.to_cpu(self.network, self._optimizer)
            self._host_is_old = False

    def proof(self) -> Proof:
        """Return the evidence of the device, from the training session if there is one."""
        self._compare_counts()
        session = self.evaluator if self._optimizer is None else self.trainer
        report = None if session.graph is None else session.report
        return self._proof(
            backend="sambaflow",
            target=None if report is None else report.target,
            on_gpu=report is not None and report.target == "cuda",
            interpreted=None if report is not None and report.origin == "interpreted" else 0,
            executable=None if report is None else report.executable,
            compile_seconds=self._seconds,
        )

    def _compare_counts(self) -> None:
        state = self.trainer.optim_dict
        counts = {int(value) for name, value in state.items() if name.endswith(".step")}
        if counts:
            self._require_updates(counts)

    def state_dict(self) -> dict[str, Any]:
        """Return weights and optimizer state, copied from the device to the host."""
        self._to_host()
        return super().state_dict()

    def _weights_loaded(self) -> None:
        self._host_is_old, self._evaluator_is_old = False, True
        if self.trainer.graph is not None:
            self.trainer.to_device()

    def _load_optimizer_state(self, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        super()._load_optimizer_state(state)
        if self.trainer.graph is not None:
            self.trainer.to_device()
