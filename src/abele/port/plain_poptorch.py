"""A subset of PopTorch in plain PyTorch, to train and evaluate programs without an IPU.

``abele port --to torch`` writes this file next to a program, which imports it instead of PopTorch.
A call of a training model is ``zero_grad``, the model, ``backward`` and ``step``.
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
    """A placeholder for an enumeration value of PopTorch, known only by its name."""

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
    """PopTorch options, of which only the number of batches per call has an effect.

    Options about the device are accepted and ignored.
    """

    def __init__(self) -> None:
        self.iterations, self.parts, self.returns_all, self.sums = 1, 1, False, False
        self.Training = self.Precision = self.TensorLocations = self.Distributed = self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _returning(self)

    def deviceIterations(self, iterations: int) -> Options:
        """Set the number of updates per call."""
        self.iterations = iterations
        return self

    def gradientAccumulation(self, parts: int) -> Options:
        """Set the number of batches whose gradients an update uses."""
        self.parts = parts
        return self

    def outputMode(self, mode: _Name) -> Options:
        """Set whether a call returns the results of all batches or of the last one."""
        self.returns_all = _one_of(mode, "Final", "All", "Default") == "All"
        return self

    def accumulationAndReplicationReductionType(self, reduction: _Name) -> Options:
        """Set whether an update uses the sum of gradients or their mean."""
        self.sums = _one_of(reduction, "Mean", "Sum") == "Sum"
        return self

    def replicationFactor(self, replicas: int) -> Options:
        """Accept only one replica."""
        if replicas != 1:
            raise ValueError(f"this program has one replica, not {replicas}")
        return self

    def randomSeed(self, seed: int) -> Options:
        """Seed torch's random number generators."""
        untyped: Any = torch
        untyped.manual_seed(seed)
        return self

    anchorMode, accumulationReductionType = outputMode, accumulationAndReplicationReductionType


def _one_of(value: _Name, *names: str) -> str:
    if value.name not in names:
        raise ValueError(f"{value.name} is not one of {', '.join(names)}: see to it by hand")
    return value.name


class DataLoader(torch.utils.data.DataLoader[Any]):
    """A data loader whose batches contain all batches that one call consumes."""

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
        """Do nothing, because worker processes end with the data loader."""


class PoplarExecutor:
    """An inference model that keeps attributes and modes as of its first call."""

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
        """Run the inference model on one batch."""
        batches = self.options.iterations * self.options.parts
        if batches > 1:
            raise ValueError(f"a call takes {batches} batches: give inference options of its own")
        with torch.no_grad():
            return self.run(*args, **kwargs)

    def isCompiled(self) -> bool:
        """Return whether the model has been called."""
        return bool(self.modes)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Record the training or evaluation mode of each submodule, unless recorded."""
        del args, kwargs
        self.modes = self.modes or {each: each.training for each in self.compiled.modules()}

    def destroy(self) -> None:
        """Forget the recorded modes of submodules."""
        self.modes = {}

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model with its submodules in the modes of the first call."""
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
    """A training model: each call makes updates with the gradients of several batches."""

    def __init__(self, model: Any, options: Options | None, optimizer: Any):
        super().__init__(model, options)
        self.optimizer: Any = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
        self.values: list[dict[str, Any]] = []

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Use an optimizer and its present hyperparameters in later updates."""
        self.optimizer, self.values = optimizer, _values(optimizer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the updates of a training call and return the model's outputs."""
        self.values = self.values or _values(self.optimizer)
        batches, kept = self.batches(args, kwargs), list[Any]()
        count = 1 if self.options.sums else self.options.parts
        for _ in range(self.options.iterations):
            self.optimizer.zero_grad()
            for _ in range(self.options.parts):
                mine, named = next(batches)
                _marked.clear()
                results = self.run(*mine, **named)
                (_loss_of(results) / count).backward()
                kept.append(_detached(results))
            self.update()
        return _joined(kept) if self.options.returns_all and len(kept) > 1 else kept[-1]

    def batches(self, args: Any, kwargs: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Split the samples of a call into its batches."""
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
        """Clip gradients, and update with the hyperparameters of the last ``setOptimizer``."""
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
    """Return an inference model, which keeps the modes of its first call."""
    return PoplarExecutor(model, options)


def trainingModel(
    model: Any, options: Options | None = None, optimizer: Any = None
) -> PoplarExecutor:
    """Return a training model, which updates its parameters in each call."""
    return _Training(model, options, optimizer)


def identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
    """Reduce a loss and mark it as the one from which ``backward`` starts."""
    loss = x if reduction == "none" else getattr(x, reduction)()
    _marked.append(loss)
    return loss


def _is_several(value: Any) -> bool:
    return isinstance(value, tuple | list)


def _loss_of(results: Any) -> Any:
    """Return the loss that was marked last, or the only scalar result with a gradient."""
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
    """Concatenate the results of several batches; scalar losses become a vector."""
    if _is_several(kept[0]):
        return type(kept[0])(_joined(list(column)) for column in zip(*kept, strict=True))
    return torch.cat([each.reshape(1) if each.dim() == 0 else each for each in kept])


def _values(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the hyperparameters of an optimizer's parameter groups."""
    return [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]


class _Limited:
    """An optimizer with a ``max_grad_norm`` argument for gradient clipping."""

    def __init__(self, *args: Any, max_grad_norm: float | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.max_grad_norm = max_grad_norm


def _limited(base: Any) -> Any:
    return type(base.__name__, (_Limited, base), {})


SGD, Adam = _limited(torch.optim.SGD), _limited(torch.optim.Adam)
AdamW, RMSprop = _limited(torch.optim.AdamW), _limited(torch.optim.RMSprop)
