"""Operations of all training instances besides updates; no cost with one instance."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence

import torch

from abele.collectives.place import SECRET
from cosmictagger import checkpoints, sources
from cosmictagger.backends import Backend, StepResult
from cosmictagger.data import Batch
from cosmictagger.data.loader import BatchStream
from cosmictagger.instances import Instances
from cosmictagger.launch import Launch
from cosmictagger.measures import metrics
from cosmictagger.modes.stopping import SIGNALS

# Poprun and torchrun say how often they have restarted a run, and give each run a value of its own.
_RESTARTS, _OF_TORCHRUN = "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"


def open_events(
    launch: Launch, stack: contextlib.ExitStack
) -> tuple[BatchStream, BatchStream | None]:
    """Return the events to train on and those to validate on, the same on all instances."""
    config, instances = launch.config, launch.instances
    with instances.together("the generated events"):
        if instances.is_first:
            sources.prepare(config)
    with instances.together("the events"):
        events = stack.enter_context(sources.training(config, launch.data_seed, instances))
        aux = sources.validation(config, instances)
        if aux is not None:
            stack.enter_context(aux)
    facts = {"events to train on": events.events, "images": events.image_size}
    facts["events to validate on"] = 0 if aux is None else aux.events
    instances.agree("the events", facts)
    return events, aux


def steps_to_make(launch: Launch, step: int) -> int:
    """``run.iterations``, or what is left of them where a launcher has restarted the run.

    Args:
        launch: its record keeps the goal for that case.
        step: steps made so far.
    """
    iterations = launch.config.run.iterations
    assert iterations is not None  # settled
    until, launcher = step + iterations, _launcher()
    goal = launch.record.before.get("goal", {})
    if os.environ.get(_RESTARTS, "0") != "0" and goal.get("launcher") == launcher:
        until = int(goal["step"])
    until = launch.instances.from_first("the last step", until)
    with launch.instances.together("the record"):
        launch.record.update({"goal": {"step": until, "launcher": launcher}})
    return max(0, until - step)


def _launcher() -> str:
    """Tell runs of poprun and torchrun apart, without giving away how."""
    secret = os.environ.get(SECRET) or os.environ.get(_OF_TORCHRUN, "")
    return hashlib.sha256(secret.encode()).hexdigest()[:16]


def mean_loss(
    instances: Instances, result: StepResult, signal: int | None
) -> tuple[float, int | None]:
    """Return the loss over the images of all instances, of which each has as many.

    Returns:
        The loss, and a signal that has come to any instance, for all to obey at the same step.
    """
    assert result.loss is not None  # Backend.train_step asks for labels
    loss = float(result.loss)
    if instances.count == 1:
        return loss, signal
    total, *numbers = instances.total([loss, *(signal == each for each in SIGNALS)])
    received = next((each for each, n in zip(SIGNALS, numbers, strict=True) if n), None)
    return total / instances.count, received


def all_metrics(
    instances: Instances, logits: Sequence[torch.Tensor], label: torch.Tensor, size: int
) -> dict[str, float]:
    """Return metrics over the images of all instances, equal to those of one with all these images.

    Args:
        instances: the instances.
        logits: of this one; see ``metrics.compute``.
        label: likewise.
        size: the most images that an instance has.
    """
    counts = metrics.counts(logits, label)
    if instances.count == 1:
        return metrics.of_batch(counts)
    table = torch.from_numpy(counts)
    missing = table.new_full((size - len(table), *table.shape[1:]), -1)
    joined = instances.rows(torch.cat([table, missing]))
    return metrics.of_batch(joined[joined[:, 0, 0, 0] >= 0].numpy())


def of_nothing(batch: Batch) -> StepResult:
    """Return the step of an instance that has no images left; others have the last ones."""
    empty = torch.zeros(0, 3, *batch.image.shape[2:])
    return StepResult(torch.tensor(torch.nan), (empty, empty, empty))


def compare_weights(instances: Instances, backend: Backend, step: int) -> None:
    """Prove that all instances have trained one network: they end with the same bits."""
    if instances.count > 1:
        weights_hash = checkpoints.weights_hash(dict(backend.network.named_parameters()))
        instances.agree(
            "what was trained", {f"the hash of the weights after step {step}": weights_hash}
        )
