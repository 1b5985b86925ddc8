"""CPU and GPU backend: PyTorch, eager or compiled, in one process or data parallel."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from cosmictagger.backends._base import (
    EAGER,
    Backend,
    Computed,
    Logits,
    Proof,
    Settings,
    Targets,
    joined,
    make_optimizer,
    micro_batches,
)
from cosmictagger.config.keys import ComputeMode, OptimizerKind, Precision
from cosmictagger.errors import BackendError, ConfigError, InstanceError
from cosmictagger.instances import Instances
from cosmictagger.measures import Loss, total


class Shared(nn.Module):
    """A data-parallel network: its backward pass averages gradients over all instances."""

    def __init__(self, network: nn.Module, instances: Instances, *, broadcast_buffers: bool):
        super().__init__()
        with self.losing_processes():
            self._parallel = DistributedDataParallel(
                network, forward_sync_buffers=broadcast_buffers, gradient_as_bucket_view=True
            )
        if distributed.get_backend() == distributed.Backend.GLOO:
            self._parallel.register_comm_hook(instances, _mean)

    def forward(self, image: torch.Tensor) -> Any:
        """Compute the outputs of the wrapped network."""
        return self._parallel(image)

    @contextlib.contextmanager
    def losing_processes(self) -> Iterator[None]:
        """Convert errors of a lost process into an ``InstanceError``."""
        try:
            yield
        except distributed.DistError as error:
            raise InstanceError(_loss_message(error)) from error
        except RuntimeError as error:
            # Gloo's own errors have no type.
            if "gloo" not in str(error):
                raise
            raise InstanceError(_loss_message(error)) from error

    def adding(self, last: bool) -> contextlib.AbstractContextManager:
        """Return a context that exchanges gradients only in an update's last micro-batch."""
        return contextlib.nullcontext() if last else self._parallel.no_sync()


# torch reads these annotations as types: this file has no `from __future__ import annotations`.
def _mean(
    instances: Instances, bucket: distributed.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    values = bucket.buffer().div_(instances.count)
    instances.add_up(values)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(values)
    return done


def _loss_message(error: Exception) -> str:
    return (
        f"An update could not be made together: {str(error).splitlines()[0]}. Another instance has "
        "probably died; look at its output."
    )


def _lamb(*args: Any, **values: Any) -> torch.optim.Optimizer:
    import poptorch.optim  # torch has no LAMB

    return poptorch.optim.LAMB(*args, **values)


_OPTIMIZERS: Mapping[OptimizerKind, Any] = {
    OptimizerKind.adam: torch.optim.Adam,
    OptimizerKind.rmsprop: torch.optim.RMSprop,
    OptimizerKind.sgd: torch.optim.SGD,
    OptimizerKind.adagrad: torch.optim.Adagrad,
    OptimizerKind.adadelta: torch.optim.Adadelta,
    OptimizerKind.lamb: _lamb,
}
_DTYPES = {Precision.bfloat16: torch.bfloat16, Precision.float16: torch.float16}


class PlainBackend(Backend):
    """The CPU and GPU backend: a network and a ``torch.optim`` optimizer on a device.

    Args:
        network, loss, settings: see ``Backend``; the network itself is moved and trained.
    """

    def __init__(self, network: nn.Module, loss: Loss, settings: Settings):
        super().__init__(network, loss, settings)
        _check(settings)
        self.device = torch.device("cuda" if settings.mode is ComputeMode.GPU else "cpu")
        self.dtype = _DTYPES.get(settings.precision, torch.float32)
        two_dimensional = not any(isinstance(m, nn.Conv3d) for m in network.modules())
        last = settings.channels_last and two_dimensional
        network.to(self.device, self.dtype)
        if last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._forward: Any = torch.compile(network) if settings.compile else network
        self._shared: Shared | None = None
        if settings.instances.count > 1 and settings.optimizer is not None:
            self._shared = Shared(
                self._forward, settings.instances, broadcast_buffers=settings.broadcast_buffers
            )
        self._optimizer = make_optimizer(network, settings, _OPTIMIZERS)
        mixed_gpu = settings.precision is Precision.mixed and self.device.type == "cuda"
        self._scaler = torch.amp.GradScaler("cuda", enabled=mixed_gpu)
        self._first_seconds: float | None = None

    def _train(self, image: torch.Tensor, targets: Targets, rate: float) -> Computed:
        started = time.perf_counter()
        optimizer = self._optimizer
        for group in optimizer.param_groups:
            group["lr"] = rate
        self.network.train()
        optimizer.zero_grad()
        losses, outputs = [], []
        watch = _Watch(self.device)
        for images, *truths in micro_batches(self.settings, image, *targets):
            last = len(losses) + 1 == self.settings.accumulation
            with self._exchanging(last):
                with watch.part("forward"):
                    scores = self._score(images, self._shared or self._forward)
                with watch.part("loss"):
                    parts = self._parts(scores, truths)
                    loss = total(parts)
                with watch.part("backward"):
                    self._scaler.scale(loss / self.settings.accumulation).backward()
            losses.append([each.detach() for each in (*parts, loss)])
            outputs.append(tuple(each.detach() for each in scores))
        with watch.part("optimizer"):
            self._scaler.step(optimizer)
            self._scaler.update()
        self.training_steps += 1
        *means, mean = (torch.stack(each).mean().cpu() for each in zip(*losses, strict=True))
        result = Computed(joined(outputs), means, mean, watch.seconds)
        self._first_seconds = self._first_seconds or time.perf_counter() - started
        return result

    @contextlib.contextmanager
    def _exchanging(self, last: bool) -> Iterator[None]:
        """Run one micro-batch of an update; the last one exchanges the accumulated gradients."""
        if self._shared is None:
            yield
            return
        with self._shared.losing_processes(), self._shared.adding(last):
            yield

    def _evaluate(self, image: torch.Tensor, targets: Targets) -> Computed:
        self.network.eval()
        with torch.no_grad():
            outputs = self._score(image, self._forward)
            parts = self._parts(outputs, targets)
        self.evaluation_steps += 1
        return Computed(joined([outputs]), [each.cpu() for each in parts], total(parts).cpu())

    def _parts(self, outputs: Logits, targets: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return self.loss.parts(outputs, *(each.to(self.device) for each in targets))

    def _score(self, image: torch.Tensor, forward: Any) -> Logits:
        with self._casting():
            logits = forward(image.to(self.device, self.dtype))
        # The loss computes in float32 whatever the network does.
        logits = tuple(plane.float() for plane in logits)
        if logits[0].device.type != self.device.type:
            raise BackendError(
                f"A step of {self.settings.mode.name} mode ran on {logits[0].device}, not on "
                f"{self.device}: the network has been moved."
            )
        return logits

    def _casting(self) -> contextlib.AbstractContextManager:
        if self.settings.precision is not Precision.mixed:
            return contextlib.nullcontext()
        # Processors compute in bfloat16, which needs no loss scaling; GPUs in float16 with it.
        dtype = torch.float16 if self.device.type == "cuda" else torch.bfloat16
        return torch.autocast(self.device.type, dtype=dtype)

    def proof(self) -> Proof:
        """Return the evidence of the device; compile time is the first step's duration."""
        compiled = self.settings.compile
        return self._proof(
            backend=f"PyTorch, {'compiled' if compiled else 'eager'}{self._parallel()}",
            target="inductor" if compiled else EAGER,
            on_gpu=self.device.type == "cuda",
            interpreted=0 if compiled else None,
            executable=None,
            compile_seconds=self._first_seconds if compiled else None,
        )

    def _parallel(self) -> str:
        if self._shared is None:
            return ""
        backend = torch.distributed.get_backend()
        return f", DistributedDataParallel ({backend}) in {self.settings.instances.count} processes"

    def _optimizer_state(self) -> dict[str, Any]:
        state = super()._optimizer_state()
        if self._scaler.is_enabled():
            state["scaling"] = self._scaler.state_dict()
        return state

    def _load_scaling(self, scaling: Any) -> None:
        if self._scaler.is_enabled() and isinstance(scaling, dict):
            self._scaler.load_state_dict(scaling)


class _Watch:
    """A timer of the parts of a training step, on CPU only: GPU kernels run asynchronously.

    Attributes:
        seconds: by name; repeated parts add up.
    """

    def __init__(self, device: torch.device):
        self.seconds: dict[str, float] = {}
        self._on = device.type == "cpu"

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        if self._on:
            passed = time.perf_counter() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + passed


def _check(settings: Settings) -> None:
    if settings.precision is Precision.float16 and settings.optimizer is not None:
        raise ConfigError(
            f"run.precision=float16 was asked for training in {settings.mode.name} mode, where "
            "weights, their updates and the optimizer's epsilon would all vanish in float16. Use "
            "run.precision=mixed or bfloat16, or run.compute_mode=IPU, which updates in float32."
        )
