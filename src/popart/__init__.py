"""The enumerations of PopART that PopTorch programs import.

Programs write ``int(popart.SubgraphCopyingStrategy.JustInTime)`` into ``options._Popart.set`` and
``options.enableSyntheticData``. The numbers are those of PopART 3.4. Graphs are built by ``abele``,
so there is no builder, session or runtime here: asking for one says so.
"""

import enum

__all__ = [
    "AccumulateOuterFragmentSchedule",
    "AutodiffStitchStrategy",
    "BatchSerializationBatchSchedule",
    "BatchSerializationMethod",
    "BatchSerializationTransformContext",
    "GradientTensorTrackingMethod",
    "MergeVarUpdateType",
    "RecomputationType",
    "SubgraphCopyingStrategy",
    "SyntheticDataMode",
    "VirtualGraphMode",
]


class SyntheticDataMode(enum.IntEnum):
    """Kinds of synthetic input data: off, zeros, normal or uniform random numbers."""

    Off = 0
    Zeros = 1
    RandomNormal = 2
    RandomUniform = 3


# Written as a call because ``None`` cannot be a name in a class body.
RecomputationType = enum.IntEnum(
    "RecomputationType",
    {"None": 0, "NoRecompute": 0, "Standard": 1, "NormOnly": 2, "Pipeline": 3, "RecomputeAll": 4},
    module=__name__,
)
RecomputationType.__doc__ = """Which results the backward pass computes again."""


class AccumulateOuterFragmentSchedule(enum.IntEnum):
    """Orders of weight updates on several devices."""

    Scheduler = 0
    Serial = 1
    OverlapCycleOptimized = 2
    OverlapMemoryOptimized = 3


class SubgraphCopyingStrategy(enum.IntEnum):
    """Times at which inputs and outputs of a subgraph are copied."""

    OnEnterAndExit = 0
    JustInTime = 1


class VirtualGraphMode(enum.IntEnum):
    """Modes of assigning operations to devices: manual, automatic or by phases."""

    Off = 0
    Manual = 1
    Auto = 2
    ExecutionPhases = 3


class BatchSerializationBatchSchedule(enum.IntEnum):
    """Scheduling orders of serialised batches."""

    Scheduler = 0
    Isomorphic = 1
    OverlapOnIo = 2
    OverlapOnCompute = 3


class BatchSerializationMethod(enum.IntEnum):
    """Methods of serialising a batch: unrolled or as a loop."""

    UnrollDynamic = 0
    UnrollStatic = 1
    Loop = 2


class BatchSerializationTransformContext(enum.IntEnum):
    """Points of batch serialisation: before or after building the backward pass."""

    Fwd = 0
    Bwd = 1


class AutodiffStitchStrategy(enum.IntEnum):
    """Sources of the values that the backward pass of a subgraph needs."""

    RecomputeMinimal = 0
    RecomputeAllNonInputs = 1
    AddFwdOutputs = 2
    SafeAddFwdOutputs = 3


class GradientTensorTrackingMethod(enum.IntEnum):
    """Gradients that automatic loss scaling observes."""

    AllNonViewChangingGradientTensors = 0
    ConvAndMatmulGradients = 1
    GradientsOfUserSpecifiedTensors = 2


class MergeVarUpdateType(enum.IntEnum):
    """Methods of merging weight updates."""

    Off = 0
    All = 1
    AutoLoose = 2
    AutoTight = 3


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"popart.{name} is not here: abele brings only the enumerations that PopTorch programs "
        f"use ({', '.join(__all__)}). Programs written for PopART itself cannot run on abele."
    )
