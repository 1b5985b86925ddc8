"""`Options.Training`: what only matters while weights are updated."""

from typing import Self

from poptorch.enums import MeanReductionStrategy, ReductionType
from poptorch.options import _table
from poptorch.options._container import OptionsDict
from poptorch.options.earlier import EarlierTraining
from poptorch.options.popart import _PopartOptions


class _TrainingOptions(EarlierTraining, OptionsDict):
    """Gradient accumulation and reduction.

    Args:
        popart_options: Where the settings meant for the compiler are stored.
    """

    _store = "Training"

    def __init__(self, popart_options: _PopartOptions) -> None:
        super().__init__(_popart=popart_options, **_table.defaults(self._store))

    def gradientAccumulation(self, gradient_accumulation: int) -> Self:
        """Set how many micro-batches' gradients make one weight update.

        Args:
            gradient_accumulation: 1 or more; must be 1 for inference.

        Raises:
            AssertionError: Not an integer, or less than 1.
        """
        self.set(gradient_accumulation=gradient_accumulation)
        return self

    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> Self:
        """Set how gradients of several micro-batches and replicas are combined.

        Args:
            reduction_type: `ReductionType.Mean` or `ReductionType.Sum`.

        Raises:
            ValueError: Anything else was given.
        """
        self.checkIsFrozen("accumulation_and_replication_reduction_type")
        if reduction_type not in (ReductionType.Mean, ReductionType.Sum) or not isinstance(
            reduction_type, ReductionType
        ):
            raise ValueError(
                "accumulationAndReplicationReductionType must be set to ReductionType.Mean or "
                f"ReductionType.Sum, not {reduction_type!r}"
            )
        self.set(accumulation_and_replication_reduction_type=reduction_type)
        return self

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: MeanReductionStrategy
    ) -> Self:
        """Choose where a mean reduction divides.

        The three agree but for rounding and overflow. Optimizers with half accumulators that are
        not combined always use Running.

        Args:
            mean_reduction_strategy: Running, Post or PostAndLoss.
        """
        self.set(meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy)
        return self

    def setAutomaticLossScaling(self, enabled: bool) -> Self:
        """Ask for a loss scale that follows the gradients' range.

        After each update the optimizer's loss_scaling is halved if too many elements of half
        gradients are near the largest half, else doubled. Keys of `_Popart` that begin with
        `automaticLossScalingSettings.` say what is near, too many, and how often.

        Differs from the original: gradients of half parameters are watched, not those of
        activations, and an update whose gradients are not all finite is left out.

        Args:
            enabled: Whether to; makes a constant loss_scaling variable.
        """
        self._popart.set("automaticLossScalingSettings.enabled", enabled)
        return self

    def setConvolutionDithering(self, enabled: bool) -> Self:
        """Spread convolutions over an IPU's tiles.

        Differs from the original: no effect; there are no tiles.

        Replaces all convolution options, those of `Precision.setPartialsType` included.

        Args:
            enabled: Whether to spread them.
        """
        value = "true" if enabled else "false"
        self._popart.set("convolutionOptions", {"enableConvDithering": value})
        return self
