"""Batch arithmetic: which samples each micro-step reads, and which samples are returned.

One call consumes a tensor viewed as ``[D, GA, G, m, ...]``: device iteration outermost, then
accumulation step, then group of replicas, then the ``m`` rows of a micro-batch. Groups share their
input; by default each replica is a group. Outputs have the order ``[D, GA, R]``. This module has no
tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from abele.errors import BatchError
from abele.step.config import OutputMode, StepConfig


@dataclasses.dataclass(frozen=True, slots=True)
class MicroStep:
    """The run of a program on one micro-batch: forward, and backward in training.

    Attributes:
        index: position in the call, counting from 0 in the order ``[D, GA, R]``.
        replica: index of the replica whose buffers and random stream it uses.
        piece: index of its micro-batch of the input, in the order ``[D, GA, G]``.
        updates: the weights change after this micro-step.
        keeps: the call returns its outputs (for ``SUM``: adds them to the result).
    """

    index: int
    replica: int
    piece: int
    updates: bool
    keeps: bool


def micro_batches(config: StepConfig) -> int:
    """Return the number of micro-batches of one call."""
    groups = config.replicas // config.input_group_size
    return config.device_iterations * config.gradient_accumulation * groups


def micro_batch_size(rows: int, config: StepConfig, name: str = "input") -> int:
    """Return the samples of one micro-batch, given the samples of a whole call.

    Raises:
        BatchError: ``rows`` is not a multiple of ``micro_batches(config)``.
    """
    parts = micro_batches(config)
    if rows % parts:
        raise BatchError(
            f"Invalid batch dimension: {name} has {rows} rows, which is not a multiple of {parts} "
            f"(device iterations {config.device_iterations} x gradient accumulation "
            f"{config.gradient_accumulation} x {_replicas(config)}). "
            f"Pass {parts} x micro-batch rows, or let the data loader combine batches."
        )
    return rows // parts


def _replicas(config: StepConfig) -> str:
    if config.input_group_size == 1:
        return f"replicas {config.replicas}"
    groups = config.replicas // config.input_group_size
    return f"input groups {groups} of {config.input_group_size} replicas each"


def check_output_period(config: StepConfig) -> None:
    """Refuse an ``EVERY_N`` period that does not divide the device iterations.

    Raises:
        BatchError: the last outputs would silently be lost.
    """
    if config.output_mode is OutputMode.EVERY_N and (
        config.device_iterations % config.output_period
    ):
        raise BatchError(
            f"Output mode EveryN with period {config.output_period} needs a period that divides "
            f"the device iterations, found {config.device_iterations}."
        )


def schedule(config: StepConfig) -> Iterator[MicroStep]:
    """Yield every micro-step of one call, in execution order."""
    index = 0
    groups = config.input_groups
    last_iteration = config.device_iterations - 1
    for iteration in range(config.device_iterations):
        for accumulation in range(config.gradient_accumulation):
            last = accumulation == config.gradient_accumulation - 1
            keeps = {
                OutputMode.ALL: True,
                OutputMode.SUM: True,
                OutputMode.FINAL: last and iteration == last_iteration,
                OutputMode.EVERY_N: (iteration + 1) % config.output_period == 0,
            }[config.output_mode]
            for replica in range(config.replicas):
                updates = config.training and last and replica == config.replicas - 1
                piece = index // config.replicas * groups.count + groups.group_of(replica)
                yield MicroStep(index, replica, piece, updates, keeps)
                index += 1


def parts_out(config: StepConfig) -> int:
    """Return the number of micro-batches whose samples each output contains."""
    if config.output_mode in (OutputMode.FINAL, OutputMode.SUM):
        return config.replicas
    return sum(step.keeps for step in schedule(config))
