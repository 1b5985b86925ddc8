"""The enumerations of the PopTorch interface.

Members and values are fixed by the programs that use them: options store some of them as plain
integers, and JSON files spell them `EnumName.Member`. Nothing here knows about options or torch.
"""

import enum
from typing import Any

__all__ = [
    "AutoStage",
    "CommGroupType",
    "ConnectionType",
    "DataLoaderMode",
    "HalfFloatCastingBehavior",
    "Liveness",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "MultiConvPlanType",
    "OutputMode",
    "OverlapMode",
    "ReductionType",
    "SharingStrategy",
    "SyncPattern",
    "VariableRetrievalMode",
]


def member(kind: type[enum.Enum], value: Any) -> Any:
    """Return the member of an enumeration, given the member, its value or its name.

    Args:
        kind: The enumeration.
        value: A member, its value or its name, as files of settings spell it (``Fork``,
            ``SharingStrategy.Fork``, ``poptorch.SharingStrategy.Fork``).

    Raises:
        ValueError: It is none of these.
    """
    if isinstance(value, str):
        name = value.removeprefix("poptorch.").removeprefix(f"{kind.__name__}.")
        if name in kind.__members__:
            return kind[name]
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(kind.__members__)
        raise ValueError(
            f"{value!r} is not a valid {kind.__name__}; its members are {names}."
        ) from None


class OutputMode(enum.IntEnum):
    """Selections of the micro-batches whose results a call returns to the host."""

    Final = 0
    """Only results of the last micro-batch of each replica."""
    EveryN = 1
    """Results of every N-th device iteration, with all its accumulation steps."""
    All = 2
    """Results of every micro-batch, concatenated."""
    Sum = 3
    """The sum over all micro-batches of each replica; nothing is summed over replicas."""
    Default = 4
    """Not chosen yet: training wrappers take Final, inference wrappers All."""


class ConnectionType(enum.IntEnum):
    """Times at which a wrapper acquires a device."""

    Always = 0
    """At compilation."""
    OnDemand = 1
    """At the first run."""
    Never = 2
    """Never: the wrapper can compile and export, not run."""


class SyncPattern(enum.IntEnum):
    """Synchronisation patterns of IPUs; without effect."""

    Full = 0
    SinglePipeline = 1
    ReplicaAndLadder = 2


class ReductionType(enum.IntEnum):
    """Kinds of reduction of gradients over micro-batches and replicas: sum or mean."""

    Sum = 0
    """Gradients are summed."""
    Mean = 1
    """Gradients are averaged."""
    NoReduction = 2
    """Gradients are not combined; the setter of `Training` refuses it."""


class MeanReductionStrategy(enum.IntEnum):
    """Positions of the division in a mean reduction of gradients."""

    Running = 0
    """At every micro-batch: the accumulator is always a mean."""
    Post = 1
    """Once, after the last micro-batch."""
    PostAndLoss = 2
    """Division by replicas before backward, by accumulation after it (deprecated)."""


class DataLoaderMode(enum.IntEnum):
    """Modes of a `DataLoader`: loading in the calling process or in a worker."""

    Sync = 0
    """Preparation in the calling process, on request."""
    Async = 1
    """Preparation in a worker, ahead of time."""
    AsyncRebatched = 2
    """Preparation in a worker that joins smaller batches."""


class SharingStrategy(enum.IntEnum):
    """Methods of starting the worker of an `AsynchronousDataAccessor`, and sharing data with it."""

    SharedMemory = 0
    """The worker is spawned, and the data set pickled to it."""
    FileSystem = 1
    """The worker is spawned, as by SharedMemory."""
    Fork = 2
    """The worker is forked, so that the data set need not pickle."""
    ForkServer = 3
    """The worker is forked by a clean process; the data set has to pickle."""


class HalfFloatCastingBehavior(enum.IntEnum):
    """Result type of half and float operands; deprecated, torch's promotion always applies."""

    FloatDowncastToHalf = 0
    """Half was to be the result type."""
    HalfUpcastToFloat = 1
    """Float was to be the result type."""
    Default = 2
    """The original's choice."""


class MatMulSerializationMode(enum.Enum):
    """Dimensions along which `serializedMatMul` slices a matrix multiplication."""

    InputChannels = "input_channels"
    """Rows of the left operand."""
    ReducingDim = "reducing_dim"
    """The dimension that is summed over; slices are added up."""
    OutputChannels = "output_channels"
    """Columns of the right operand."""
    Disabled = "none"
    """A single matrix multiplication."""


class Liveness(enum.IntEnum):
    """Lifetimes of tensors in device memory under phased execution."""

    AlwaysLive = 0
    """Never moved away."""
    OffChipAfterFwd = 1
    """Until the forward pass ends."""
    OffChipAfterFwdNoOverlap = 2
    """Until the forward pass ends, without overlap of transfers and phases."""
    OffChipAfterEachPhase = 3
    """Until their phase ends."""


class OverlapMode(enum.Enum):
    """Loops of the program that a host transfer may overlap with."""

    NoOverlap = "no_overlap"
    """No overlap."""
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    """With the micro-batches of one update."""
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"
    """With the device iterations of one call."""


class AutoStage(enum.IntEnum):
    """Rules that assign blocks to pipeline stages when no stages are listed."""

    SameAsIpu = 0
    """The stage number is the block's IPU number."""
    AutoIncrement = 1
    """Every new block opens the next stage."""


class MultiConvPlanType(enum.IntEnum):
    """Plans for a group of convolutions (`MultiConv`); without effect."""

    Parallel = 0
    Serial = 1


class CommGroupType(enum.IntEnum):
    """Ways to divide replicas into groups."""

    All = 0
    """A single group of all replicas."""
    Consecutive = 1
    """Groups of neighbours: with size 2, {0, 1}, {2, 3}, ..."""
    Orthogonal = 2
    """Groups of every c-th: with c groups, {0, c, 2c, ...}, {1, c + 1, ...}, ..."""
    NoGrouping = 3
    """Groups of a single replica."""


class VariableRetrievalMode(enum.IntEnum):
    """Copies of a per-replica variable that the host reads; no member has value 1."""

    OnePerGroup = 0
    """The first replica of each group."""
    AllReplicas = 2
    """Every replica."""
