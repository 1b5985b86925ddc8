"""How each peer takes a step of a row: plain PyTorch, ``torch.compile``, abele, JAX.

All start from the same weights and batch, so their first losses have to agree.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .rows import ABELE, BACKEND, COMPILE, DECORATOR, EAGER, JAX, Row

#: Takes a batch, by default a fixed one; returns the loss, or forward's results.
Step = Callable[..., Any]


class NotWritten(Exception):
    """A peer has no version of this row."""


def load(row: Row, way: str) -> None:
    """Import what a way needs, so that its first step does not count that.

    Raises:
        NotWritten: JAX, and the row has no twin.
        ImportError: it is not installed.
    """
    if way == JAX and row.twin is None:
        raise NotWritten("not written")
    packages = {ABELE: "poptorch", BACKEND: "abele.dynamo", DECORATOR: "abele.functions.decorator"}
    package = (packages | {JAX: "jax.numpy"}).get(way)
    if package is not None:
        importlib.import_module(package)


def prepare(row: Row, way: str, device: str = "cpu") -> Step:
    """Return a training step of one way; nothing has been computed or compiled yet.

    Batches begin on the host, whatever the device.

    Raises:
        ImportError: a package that the row needs is not installed.
        NotWritten: the row is one of the host alone.
    """
    torch.manual_seed(0)
    module = row.load()
    if row.mode_step is not None:
        if device != "cpu":
            raise NotWritten("not written")
        return row.mode_step(module, way, row.batch)
    assert row.model is not None
    model, batch = row.model(module), getattr(module, row.inputs)(row.batch)
    if way in (EAGER, COMPILE, BACKEND, DECORATOR):  # the others move what they are given
        model.to(device)
    if row.optimizer is None:
        return _WAYS_OF_INFERENCE[way](model.eval(), batch)
    return _WAYS[way](row, model, batch)


def number(result: Any) -> float:
    """Return the loss of a step, or the mean size of forward's first result."""
    if isinstance(result, tuple | list):
        first, last = result[0], result[-1]
        return float(last) if not last.shape else float(abs(first).mean())
    return float(result)


def wait(result: Any, device: str = "cpu") -> None:
    """Return when a result is there; JAX and a GPU give it before it is computed."""
    if device != "cpu":
        torch.cuda.synchronize()
    ready = getattr(result, "block_until_ready", None)
    if ready is not None:
        ready()


def plain_float32() -> None:
    """Let libraries of a GPU compute with float32, and not with the ten bits that some default to.

    JAX takes ``JAX_DEFAULT_MATMUL_PRECISION`` for that.
    """
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def gpu_peak_bytes(way: str) -> int:
    """Return the most memory that this process had for tensors on the GPU; of JAX since its start.

    What torch has reserved: memory of a captured graph is not allocated while it is replayed.
    """
    if way != JAX:
        return torch.cuda.max_memory_reserved()
    import jax  # pyright: ignore[reportMissingImports]

    return jax.devices()[0].memory_stats()["peak_bytes_in_use"]


def optimizer_of(row: Row, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the row's optimizer for a model."""
    assert row.optimizer is not None
    name, settings = row.optimizer
    return getattr(torch.optim, name)(model.parameters(), **settings)


# -- training ------------------------------------------------------------------------------------


def _eager(row: Row, model: torch.nn.Module, batch: tuple) -> Step:
    return _loop(model, optimizer_of(row, model), batch, _device_of(model))


def _device_of(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device


def _compiled(row: Row, model: torch.nn.Module, batch: tuple) -> Step:
    # As its users do: the model is compiled, the optimizer is not.
    return _loop(torch.compile(model), optimizer_of(row, model), batch, _device_of(model))


def _by_backend(row: Row, model: torch.nn.Module, batch: tuple) -> Step:
    optimizer = optimizer_of(row, model)
    return _loop(_with_backend(model), optimizer, batch, _device_of(model))


def _with_backend(model: torch.nn.Module) -> Callable:
    from abele.dynamo import backend  # by name, a checkout without installation would not have it

    folder = os.environ.get("POPTORCH_CACHE_DIR")
    options: Any = None if folder is None else {"cache": folder}
    return torch.compile(model, backend=backend, options=options)


def _decorated(row: Row, model: torch.nn.Module, batch: tuple) -> Step:
    from abele.functions.decorator import compile as compiled

    cache = os.environ.get("POPTORCH_CACHE_DIR") or False
    return compiled(cache=cache, strict=True)(_eager(row, model, batch))


def _loop(
    model: Callable, optimizer: torch.optim.Optimizer, fixed: tuple, device: torch.device
) -> Step:
    def step(*batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        result = model(*_moved(batch or fixed, device))
        loss = result[-1] if isinstance(result, tuple) else result
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _moved(batch: tuple, device: torch.device) -> tuple:
    return batch if device.type == "cpu" else tuple(tensor.to(device) for tensor in batch)


def trainer(row: Row, model: torch.nn.Module) -> Any:
    """Return abele's wrapper of a row's model, which trains it."""
    import poptorch

    quiet = poptorch.Options().showCompilationProgressBar(False)
    module = _marked(model) if row.marks_loss else model
    return poptorch.trainingModel(module, quiet, optimizer_of(row, model))


def _abele(row: Row, model: torch.nn.Module, fixed: tuple) -> Step:
    wrapped = trainer(row, model)
    return lambda *batch: wrapped(*(batch or fixed))


def _marked(model: torch.nn.Module) -> torch.nn.Module:
    import poptorch

    class Marked(torch.nn.Module):
        """Says that the last of several results is the loss."""

        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, *inputs: torch.Tensor) -> tuple:
            *others, loss = self.inner(*inputs)
            return *others, poptorch.identity_loss(loss, "none")

    return Marked()


def _jax(row: Row, model: torch.nn.Module, batch: tuple) -> Step:
    import jax  # pyright: ignore[reportMissingImports]
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
    from benchmarks.twins import updates

    assert row.optimizer is not None
    loss = importlib.import_module(f"benchmarks.twins.{row.twin}").loss
    start, update = updates.of(*row.optimizer)
    params = {name: jnp.asarray(p.detach().numpy()) for name, p in model.named_parameters()}
    state, fixed = start(params), [_array(tensor) for tensor in batch]

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def whole(params: Any, state: Any, *inputs: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, *inputs)
        return *update(params, gradients, state), value

    def step(*batch: torch.Tensor) -> Any:
        nonlocal params, state
        params, state, value = whole(params, state, *(map(_array, batch) if batch else fixed))
        return value

    return step


def _array(tensor: torch.Tensor) -> Any:
    import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

    values = tensor.numpy()
    return jnp.asarray(values.astype("int32") if values.dtype.kind == "i" else values)


# -- inference -----------------------------------------------------------------------------------


def _forward(model: Callable, batch: tuple, device: torch.device) -> Step:
    def step() -> Any:
        with torch.inference_mode():
            return model(*_moved(batch, device))

    return step


def _abele_forward(model: torch.nn.Module, batch: tuple) -> Step:
    import poptorch

    quiet = poptorch.Options().showCompilationProgressBar(False)
    wrapped = poptorch.inferenceModel(model, quiet)
    return lambda: wrapped(*batch)


_WAYS = {
    EAGER: _eager,
    COMPILE: _compiled,
    BACKEND: _by_backend,
    DECORATOR: _decorated,
    ABELE: _abele,
    JAX: _jax,
}
_WAYS_OF_INFERENCE = {
    EAGER: lambda model, batch: _forward(model, batch, _device_of(model)),
    COMPILE: lambda model, batch: _forward(torch.compile(model), batch, _device_of(model)),
    BACKEND: lambda model, batch: _forward(_with_backend(model), batch, _device_of(model)),
    ABELE: _abele_forward,
}


# -- with a loader -------------------------------------------------------------------------------


def looped(row: Row, way: str, step: Step) -> Step:
    """Return a step that takes its batch from the way's usual loader, epoch after epoch."""
    images = row.load().Images()
    if way == ABELE:
        import poptorch

        loader: Any = poptorch.DataLoader(poptorch.Options(), images, row.batch, shuffle=True)
    else:
        loader = torch.utils.data.DataLoader(images, row.batch, shuffle=True, drop_last=True)
    batches = _endless(loader)
    return lambda: step(*next(batches))


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader
