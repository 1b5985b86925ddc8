"""The enumerations of PopART that PopTorch programs import.

Programs write ``int(popart.SubgraphCopyingStrategy.JustInTime)`` into ``options._Popart.set`` and
``options.enableSyntheticData``. The numbers are those of PopART 3.4. Graphs are built by ``abele``,
so there is no builder, session or runtime here: asking for one says so.
"""

import enum


class SyntheticDataMode(enum.IntEnum):
    """Kinds of synthetic input data: off, zeros, normal or uniform random numbers."""

    Off, Zeros, RandomNormal, RandomUniform = range(4)


# Written as a call because ``None`` cannot be a name in a class body.
RecomputationType = enum.IntEnum(
    "RecomputationType",
    {"None": 0, "NoRecompute": 0, "Standard": 1, "NormOnly": 2, "Pipeline": 3, "RecomputeAll": 4},
    module=__name__,
)
RecomputationType.__doc__ = """Which results the backward pass computes again."""


class AccumulateOuterFragmentSchedule(enum.IntEnum):
    """Orders of weight updates on several devices."""

    Scheduler, Serial, OverlapCycleOptimized, OverlapMemoryOptimized = range(4)


class SubgraphCopyingStrategy(enum.IntEnum):
    """Times at which inputs and outputs of a subgraph are copied."""

    OnEnterAndExit, JustInTime = range(2)


class VirtualGraphMode(enum.IntEnum):
    """Modes of assigning operations to devices: manual, automatic or by phases."""

    Off, Manual, Auto, ExecutionPhases = range(4)


class BatchSerializationBatchSchedule(enum.IntEnum):
    """Scheduling orders of serialised batches."""

    Scheduler, Isomorphic, OverlapOnIo, OverlapOnCompute = range(4)


class BatchSerializationMethod(enum.IntEnum):
    """Methods of serialising a batch: unrolled or as a loop."""

    UnrollDynamic, UnrollStatic, Loop = range(3)


class BatchSerializationTransformContext(enum.IntEnum):
    """Points of batch serialisation: before or after building the backward pass."""

    Fwd, Bwd = range(2)


class AutodiffStitchStrategy(enum.IntEnum):
    """Sources of the values that the backward pass of a subgraph needs."""

    RecomputeMinimal, RecomputeAllNonInputs, AddFwdOutputs, SafeAddFwdOutputs = range(4)


class GradientTensorTrackingMethod(enum.IntEnum):
    """Gradients that automatic loss scaling observes."""

    AllNonViewChangingGradientTensors, ConvAndMatmulGradients, GradientsOfUserSpecifiedTensors = (
        range(3)
    )


class MergeVarUpdateType(enum.IntEnum):
    """Methods of merging weight updates."""

    Off, All, AutoLoose, AutoTight = range(4)


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    names = sorted(each for each in globals() if each[0].isupper())
    raise AttributeError(
        f"popart.{name} is not here: abele brings only the enumerations that PopTorch programs "
        f"use ({', '.join(names)}). Programs written for PopART itself cannot run on abele."
    )
