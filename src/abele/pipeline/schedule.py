"""The order in which each stage of a pipeline does its work: pure integers.

One forward, one backward (PipeDream-Flush, arXiv 2006.09503): stage ``s`` of ``p`` first computes
``p - s - 1`` forwards ahead, then alternates, then the backwards that are left. Gradients of
micro-batches are added in their order, and at most ``p - s`` micro-batches wait for their backward.

    stage 0   F0 F1 F2 .  B0 F3 B1 .. B2 B3        3 stages, 4 micro-batches
    stage 1      F0 F1 B0 F2 B1 F3 B2 B3
    stage 2         F0 B0 F1 B1 F2 B2 F3 B3
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True, order=True)
class Task:
    """A stage's forward or backward on one micro-batch.

    Attributes:
        stage: where, from 0.
        micro_batch: which, from 0.
        backward: or forward.
    """

    stage: int
    micro_batch: int
    backward: bool = False


Order = list[list[Task]]

#: Micro-batches that may wait between two stages where nothing comes back.
AHEAD = 2


def one_forward_one_backward(stages: int, micro_batches: int) -> Order:
    """Return the tasks of each stage in order, for training."""
    order: Order = []
    for stage in range(stages):
        ahead = min(stages - stage - 1, micro_batches)
        forward = [Task(stage, k) for k in range(micro_batches)]
        backward = [Task(stage, k, backward=True) for k in range(micro_batches)]
        tasks = forward[:ahead]
        for pair in zip(forward[ahead:], backward, strict=False):
            tasks += pair
        order.append([*tasks, *backward[micro_batches - ahead :]])
    return order


def forward_only(stages: int, micro_batches: int) -> Order:
    """Return the tasks of each stage in order, for inference."""
    return [[Task(stage, k) for k in range(micro_batches)] for stage in range(stages)]


def needs(task: Task, stages: int, *, training: bool) -> list[Task]:
    """Return the tasks of other stages that must end before this one begins."""
    stage, k = task.stage, task.micro_batch
    if task.backward:
        return [Task(stage + 1, k, backward=True)] if stage + 1 < stages else []
    tasks = [Task(stage - 1, k)] if stage else []
    if not training and stage + 1 < stages and k >= AHEAD:
        # Otherwise a fast stage would fill the memory in front of a slow one.
        tasks.append(Task(stage + 1, k - AHEAD))
    return tasks


def ideal_bubble(stages: int, micro_batches: int) -> float:
    """Return the idle share of stages of equal speed: (p-1) / (m+p-1)."""
    return (stages - 1) / (micro_batches + stages - 1)


def finished(
    order: Order, seconds: Callable[[Task], float], *, training: bool
) -> dict[Task, float]:
    """Return the end of each task if every stage has a processor of its own.

    Args:
        order: the tasks of each stage.
        seconds: how long a task takes.
        training: as for ``needs``.

    Raises:
        ValueError: stages would wait for each other for ever.
    """
    ends: dict[Task, float] = {}
    free = [0.0] * len(order)
    left: list[Sequence[Task]] = [list(tasks) for tasks in order]
    while any(left):
        moved = False
        for stage, tasks in enumerate(left):
            if not tasks:
                continue
            wanted = needs(tasks[0], len(order), training=training)
            if all(task in ends for task in wanted):
                begin = max([free[stage], *(ends[task] for task in wanted)])
                ends[tasks[0]] = free[stage] = begin + seconds(tasks[0])
                left[stage], moved = tasks[1:], True
        if not moved:
            raise ValueError(f"Stages wait for each other: {[tasks[:1] for tasks in left]}.")
    return ends
