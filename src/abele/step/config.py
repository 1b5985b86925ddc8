"""The configuration of a step: batch arithmetic, gradient reduction, groups of replicas, outputs.

Front-ends translate their options into a frozen ``StepConfig``. Each field is marked compile-time
(another value needs another executable) or run-time (the same executable, called in another order).
The cache key contains the compile-time fields.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from abele._torch import casts
from abele.step.replica_groups import Grouping, GroupType


class OutputMode(enum.StrEnum):
    """The choice of micro-batches whose results a call returns."""

    FINAL = "final"
    ALL = "all"
    SUM = "sum"
    EVERY_N = "every_n"


class Reduction(enum.StrEnum):
    """The operation that combines the gradients of micro-batches and replicas."""

    MEAN = "mean"
    SUM = "sum"


class MeanStrategy(enum.StrEnum):
    """The point at which a gradient mean divides; matters if half values overflow."""

    POST = "post"
    RUNNING = "running"
    POST_AND_LOSS = "post_and_loss"


class MatmulPrecision(enum.StrEnum):
    """The precision of factors in float32 GEMMs: float32, or bfloat16 where that is faster."""

    HIGHEST = "highest"
    MEDIUM = "medium"

    @classmethod
    def of_torch(cls) -> MatmulPrecision:
        """Return what ``torch.set_float32_matmul_precision`` asks for on the host."""
        return cls.MEDIUM if casts.of_products() == "bf16" else cls.HIGHEST


_COMPILE = {"when": "compile"}
_RUN = {"when": "run"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepConfig:
    """The configuration of a training or inference step.

    Attributes:
        training: forward, loss, backward and update; otherwise forward alone.
        gradient_accumulation: micro-batches per update and replica.
        replicas: data-parallel copies inside this process, each with its own buffers.
        processes: processes that share one update.
        reduction: how gradients combine over accumulation, replicas and processes.
        mean_strategy: where a mean divides: after the sum, at every gradient, or by replicas before
            backward and by accumulation after the sum.
        stochastic_rounding: updates round half weights, state and accumulators at random.
        trap_exceptions: a step stops at the first operation that produces an infinity or NaN.
        input_group_size: replicas that receive the same inputs; divides ``replicas``.
        input_group_type: assignment of replicas to these groups.
        replica_groups: parameters that have one value per group of replicas, by name.
        matmul_precision: type of factors in float32 GEMMs; sums are float32.
        adopts: parameters and buffers are the caller's own tensors, used as they are and written in
            place. The caller may write them between calls unseen, so only contents tell of changes.
        broadcast_buffers: replicas may not write to their buffers; the front-end checks it.
        device_iterations: updates (training) or batches (inference) in one call.
        output_mode: which micro-batches' outputs are returned.
        output_period: with ``EVERY_N``, one device iteration in this many.
        seed: start of this session's own random stream; ``None`` shares torch's.
    """

    training: bool = dataclasses.field(default=True, metadata=_COMPILE)
    gradient_accumulation: int = dataclasses.field(default=1, metadata=_COMPILE)
    replicas: int = dataclasses.field(default=1, metadata=_COMPILE)
    processes: int = dataclasses.field(default=1, metadata=_COMPILE)
    reduction: Reduction = dataclasses.field(default=Reduction.MEAN, metadata=_COMPILE)
    mean_strategy: MeanStrategy = dataclasses.field(default=MeanStrategy.POST, metadata=_COMPILE)
    stochastic_rounding: bool = dataclasses.field(default=False, metadata=_COMPILE)
    trap_exceptions: bool = dataclasses.field(default=False, metadata=_COMPILE)
    matmul_precision: MatmulPrecision = dataclasses.field(
        default=MatmulPrecision.HIGHEST, metadata=_COMPILE
    )
    adopts: bool = dataclasses.field(default=False, metadata=_COMPILE)
    broadcast_buffers: bool = dataclasses.field(default=True, metadata=_RUN)
    input_group_size: int = dataclasses.field(default=1, metadata=_RUN)
    input_group_type: GroupType = dataclasses.field(default=GroupType.CONSECUTIVE, metadata=_RUN)
    # Run-time: the number of groups shows in the programs' slots, the members only order the calls.
    replica_groups: Mapping[str, Grouping] = dataclasses.field(
        default_factory=dict[str, Grouping], metadata=_RUN
    )
    device_iterations: int = dataclasses.field(default=1, metadata=_RUN)
    output_mode: OutputMode = dataclasses.field(default=OutputMode.FINAL, metadata=_RUN)
    output_period: int = dataclasses.field(default=1, metadata=_RUN)
    seed: int | None = dataclasses.field(default=None, metadata=_RUN)

    @property
    def input_groups(self) -> Grouping:
        """The groups of replicas that share inputs."""
        return Grouping(self.replicas, self.input_group_size, self.input_group_type)

    @property
    def micro_batches_per_update(self) -> int:
        """The number of gradients that are combined for one update of the weights."""
        return self.gradient_accumulation * self.replicas * self.processes

    @property
    def adds_here(self) -> bool:
        """True if this process accumulates several gradients for an update."""
        return self.gradient_accumulation * self.replicas > 1

    def compile_fields(self) -> dict[str, Any]:
        """Return the configuration fields that require another executable if they change."""
        return {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if f.metadata["when"] == "compile"
        }
