"""The part of PopTorch that a program needs to train and evaluate in plain PyTorch, on the host.

``abele port --to torch`` writes this file beside a program, which imports it instead of PopTorch. A
call of a training model is ``zero_grad``, the model, ``backward`` and ``step``.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from typing import Any

import torch

# ``poptorch.optim.SGD`` and ``from poptorch.optim import SGD`` both find the class of this file.
optim = enums = options = sys.modules[__name__]
_PLACEHOLDERS = frozenset(
    (
        *("OutputMode", "AnchorMode", "ReductionType", "MeanReductionStrategy", "SyncPattern"),
        *("ConnectionType", "DataLoaderMode", "SharingStrategy", "OverlapMode", "Stage"),
        *("ShardedExecution", "PipelinedExecution", "AutoStage", "TensorLocationSettings"),
    )
)
_OF_INSTANCES = ("auto_distributed_partitioning", "mode", "async_options", "rebatched_worker_size")
_ABOUT_THE_DEVICE = frozenset(
    (
        *("attachToDevice", "detachFromDevice", "copyWeightsToHost", "copyWeightsToDevice"),
        *("copyWeightsToHostIfNeeded", "copyNamedBuffersToDevice"),
    )
)
_marked: list[torch.Tensor] = []


class _Name:
    """A value of an enumeration or a strategy, which only its name tells from others."""

    def __init__(self, name: str):
        self.name = name

    def __getattr__(self, name: str) -> _Name:
        return _Name(name)

    def __call__(self, *args: Any, **kwargs: Any) -> _Name:
        return self


def _returning(value: Any) -> Any:
    def returning(*args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        return value

    return returning


def __getattr__(name: str) -> _Name:
    if name in _PLACEHOLDERS:
        return _Name(name)
    raise AttributeError(f"plain PyTorch has no poptorch.{name}: see to it by hand")


class Options:
    """Options, of which only the number of batches of a call has a meaning on the host.

    Others say how a device computes, and are accepted.
    """

    def __init__(self) -> None:
        self.iterations, self.parts, self.returns_all = 1, 1, False
        self.Training = self.Precision = self.TensorLocations = self.Distributed = self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _returning(self)

    def deviceIterations(self, iterations: int) -> Options:
        """Let a call make several updates."""
        self.iterations = iterations
        return self

    def gradientAccumulation(self, parts: int) -> Options:
        """Let an update use the mean gradient of several batches."""
        self.parts = parts
        return self

    def outputMode(self, mode: _Name) -> Options:
        """Let a call return the results of all batches, or of the last one."""
        self.returns_all = _one_of(mode, "Final", "All", "Default") == "All"
        return self

    def accumulationAndReplicationReductionType(self, reduction: _Name) -> Options:
        """Accept the mean of the gradients of several batches."""
        _one_of(reduction, "Mean")
        return self

    def replicationFactor(self, replicas: int) -> Options:
        """Accept one replica."""
        if replicas != 1:
            raise ValueError(f"this program has one replica, not {replicas}")
        return self

    def randomSeed(self, seed: int) -> Options:
        """Seed torch."""
        untyped: Any = torch
        untyped.manual_seed(seed)
        return self

    anchorMode, accumulationReductionType = outputMode, accumulationAndReplicationReductionType


def _one_of(value: _Name, *names: str) -> str:
    if value.name not in names:
        raise ValueError(f"{value.name} is not one of {', '.join(names)}: see to it by hand")
    return value.name


class DataLoader(torch.utils.data.DataLoader[Any]):
    """A loader whose batches have the rows of all batches that a call takes."""

    def __init__(
        self,
        options: Options,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool = False,
        num_workers: int = 0,
        drop_last: bool = True,
        **more: Any,
    ):
        batches = options.iterations * options.parts
        more = {name: value for name, value in more.items() if name not in _OF_INSTANCES}
        base: Any = super()
        if "batch_sampler" not in more:
            rows = None if batch_size is None else batch_size * batches
            more |= {"batch_size": rows, "shuffle": shuffle, "drop_last": drop_last and bool(rows)}
        elif batches > 1:
            raise ValueError(f"a call takes {batches} batches: give batch_size, no batch_sampler")
        base.__init__(dataset, num_workers=num_workers, **more)

    def terminate(self) -> None:
        """Do nothing: workers end with the loader."""


class PoplarExecutor:
    """A model without gradients, with the attributes and modes that a program compiled in."""

    def __init__(self, model: torch.nn.Module, options: Options | None = None):
        self.model, self.compiled = model, copy.copy(model)
        self.options = options or Options()
        self.modes: dict[torch.nn.Module, bool] = {}  # of the model's parts, in the first call

    def __getattr__(self, name: str) -> Any:
        if name in _ABOUT_THE_DEVICE:
            return _returning(None)
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on one batch."""
        batches = self.options.iterations * self.options.parts
        if batches > 1:
            raise ValueError(f"a call takes {batches} batches: give inference options of its own")
        with torch.no_grad():
            return self.run(*args, **kwargs)

    def isCompiled(self) -> bool:
        """Return whether the model was called."""
        return bool(self.modes)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Take the modes of the model's parts, unless that was done."""
        del args, kwargs
        self.modes = self.modes or {each: each.training for each in self.compiled.modules()}

    def destroy(self) -> None:
        """Forget the modes."""
        self.modes = {}

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model with its parts in the modes of the first call."""
        self.compile()
        present = {each: each.training for each in self.compiled.modules()}
        try:
            for each, mode in self.modes.items():
                each.training = mode
            return self.compiled(*args, **kwargs)
        finally:
            for each, mode in present.items():
                each.training = mode


class _Training(PoplarExecutor):
    """A model of which a call makes updates, each with the mean gradient of some batches."""

    def __init__(self, model: Any, options: Options | None, optimizer: Any):
        super().__init__(model, options)
        self.optimizer: Any = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
        self.values: list[dict[str, Any]] = []

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Update with the present values of an optimizer from now on."""
        self.optimizer, self.values = optimizer, _values(optimizer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make the updates of a call."""
        self.values = self.values or _values(self.optimizer)
        batches, kept = self.batches(args, kwargs), list[Any]()
        for _ in range(self.options.iterations):
            self.optimizer.zero_grad()
            for _ in range(self.options.parts):
                mine, named = next(batches)
                _marked.clear()
                results = self.run(*mine, **named)
                (_loss_of(results) / self.options.parts).backward()
                kept.append(_detached(results))
            self.update()
        return _joined(kept) if self.options.returns_all and len(kept) > 1 else kept[-1]

    def batches(self, args: Any, kwargs: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Cut the rows of a call into its batches."""
        count = self.options.iterations * self.options.parts
        if count == 1:
            yield args, kwargs
            return
        rows, left = divmod(len([*args, *kwargs.values()][0]), count)
        if left:
            raise ValueError(f"{rows * count + left} rows are no {count} batches")
        for start in range(0, rows * count, rows):
            cut = slice(start, start + rows)
            yield [each[cut] for each in args], {name: each[cut] for name, each in kwargs.items()}

    def update(self) -> None:
        """Limit the norm of the gradients, and update with the values that were set last."""
        groups = self.optimizer.param_groups
        limit = getattr(self.optimizer, "max_grad_norm", None)
        if limit is not None:
            updated = {each for group in groups for each in group["params"]}
            gradients = [each for each in self.model.parameters() if each in updated]
            torch.nn.utils.clip_grad_norm_(gradients, limit)
        present = _values(self.optimizer)
        for group, values in zip(groups, self.values, strict=True):
            group.update(values)
        self.optimizer.step()
        for group, values in zip(groups, present, strict=True):
            group.update(values)


def inferenceModel(model: Any, options: Options | None = None) -> PoplarExecutor:
    """Return a model without gradients, in the modes of its first call."""
    return PoplarExecutor(model, options)


def trainingModel(
    model: Any, options: Options | None = None, optimizer: Any = None
) -> PoplarExecutor:
    """Return a model that updates its parameters in each call."""
    return _Training(model, options, optimizer)


def identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
    """Mark the loss from which ``backward`` starts."""
    loss = x if reduction == "none" else getattr(x, reduction)()
    _marked.append(loss)
    return loss


def _is_several(value: Any) -> bool:
    return isinstance(value, tuple | list)


def _loss_of(results: Any) -> Any:
    """Return the loss that was marked last, or the one result that is a number with a gradient."""
    values = results if _is_several(results) else [results]
    tensors = [each for each in values if isinstance(each, torch.Tensor)]
    losses = _marked[-1:] or [each for each in tensors if each.requires_grad and not each.dim()]
    if len(losses) != 1:
        raise ValueError("which result is the loss is not known: mark it with identity_loss")
    return losses[0]


def _detached(value: Any) -> Any:
    if _is_several(value):
        return type(value)(_detached(each) for each in value)
    return value.detach() if isinstance(value, torch.Tensor) else value


def _joined(kept: list[Any]) -> Any:
    """Return the results of batches as one, of which losses become vectors."""
    if _is_several(kept[0]):
        return type(kept[0])(_joined(list(column)) for column in zip(*kept, strict=True))
    return torch.cat([each.reshape(1) if each.dim() == 0 else each for each in kept])


def _values(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the values of an optimizer's groups, without their parameters."""
    return [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]


class _Limited:
    """An optimizer that takes a limit of the norm of gradients."""

    def __init__(self, *args: Any, max_grad_norm: float | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.max_grad_norm = max_grad_norm


def _limited(base: Any) -> Any:
    return type(base.__name__, (_Limited, base), {})


SGD, Adam = _limited(torch.optim.SGD), _limited(torch.optim.Adam)
AdamW, RMSprop = _limited(torch.optim.AdamW), _limited(torch.optim.RMSprop)
