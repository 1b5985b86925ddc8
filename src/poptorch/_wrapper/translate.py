"""Translation of ``poptorch.Options`` to ``abele.StepConfig``."""

from dataclasses import dataclass, replace
from typing import Any, Self

from abele.runtime.session import Anchor
from abele.step.config import MatmulPrecision, MeanStrategy, Reduction, StepConfig
from abele.step.config import OutputMode as EngineOutputMode
from abele.step.loss_scaling import AutomaticScaling
from abele.step.replica_groups import GroupType
from abele.step.update_rules import UpdateRule
from poptorch._error import error
from poptorch._logging import logger
from poptorch.enums import CommGroupType, MeanReductionStrategy, OutputMode, ReductionType
from poptorch.options import Options, _engine, _table

_OUTPUT_MODES = {
    OutputMode.Final: EngineOutputMode.FINAL,
    OutputMode.All: EngineOutputMode.ALL,
    OutputMode.Sum: EngineOutputMode.SUM,
    OutputMode.EveryN: EngineOutputMode.EVERY_N,
}
_REDUCTIONS = {ReductionType.Mean: Reduction.MEAN, ReductionType.Sum: Reduction.SUM}
_STRATEGIES = {
    MeanReductionStrategy.Post: MeanStrategy.POST,
    MeanReductionStrategy.Running: MeanStrategy.RUNNING,
    MeanReductionStrategy.PostAndLoss: MeanStrategy.POST_AND_LOSS,
}
_GROUP_TYPES = {
    CommGroupType.Consecutive: GroupType.CONSECUTIVE,
    CommGroupType.Orthogonal: GroupType.ORTHOGONAL,
}
_PRECISIONS = {
    "highest": MatmulPrecision.HIGHEST,
    "high": MatmulPrecision.HIGHEST,
    "medium": MatmulPrecision.MEDIUM,
}
_SCALING = {
    "bin_edge": "binEdgeLocation",
    "threshold": "thresholdUpperCountProportion",
    "period": "updatePeriod",
}

_reported: set[str] = set()


def to_config(options: Options, *, training: bool) -> StepConfig:
    """Translate a wrapper's options to the engine's step configuration."""
    reduction = ReductionType(options.Training.accumulation_and_replication_reduction_type)
    strategy = options.Training.meanAccumulationAndReplicationReductionStrategy
    compiler = options._Popart.options
    return StepConfig(
        training=training,
        gradient_accumulation=options.Training.gradient_accumulation,
        replicas=options.replication_factor,
        # Inference exchanges nothing: each process runs by itself.
        processes=options.Distributed.numProcesses if training else 1,
        reduction=_REDUCTIONS[reduction],
        mean_strategy=_STRATEGIES[MeanReductionStrategy(strategy)],
        stochastic_rounding=training and bool(compiler.get("enableStochasticRounding")),
        trap_exceptions=bool(compiler.get("enableFloatingPointChecks")),
        matmul_precision=_PRECISIONS[options.Precision._matmul_precision],
        broadcast_buffers=options.broadcast_buffers,
        input_group_size=options.input_group_size,
        input_group_type=_GROUP_TYPES[CommGroupType(options.input_cgt)],
        device_iterations=options.device_iterations,
        output_mode=_OUTPUT_MODES[OutputMode(options.output_mode)],
        output_period=options.output_return_period,
        seed=options.random_seed if options.exists("random_seed") else None,
    )


def with_automatic_scaling(rule: UpdateRule, optimizer: Any, options: Options) -> UpdateRule:
    """Return an update rule with automatic loss scaling, if the options ask for it.

    A constant ``loss_scaling`` becomes variable, on the optimizer too.

    Raises:
        ValueError: the settings of ``_Popart`` make no sense.
    """
    settings = options._Popart.options
    if not settings.get("automaticLossScalingSettings.enabled"):
        return rule
    attributes = getattr(optimizer, "variable_attrs", None)
    if attributes is not None and attributes.isConstant("loss_scaling"):
        logger.warning(
            "Automatic loss scaling changes loss_scaling, so it is marked as variable on %s.",
            type(optimizer).__name__,
        )
        attributes.markAsVariable("loss_scaling")
    scaling = {
        field: settings[f"automaticLossScalingSettings.{key}"]
        for field, key in _SCALING.items()
        if f"automaticLossScalingSettings.{key}" in settings
    }
    return replace(rule, loss_scaling_variable=True, automatic_scaling=AutomaticScaling(**scaling))


def anchors(options: Options) -> list[Anchor]:
    """Return the intermediate tensors that ``options.anchorTensor`` requested."""
    return [
        Anchor(
            name=name,
            tensor=tensor,
            # Default means the model's mode too.
            mode=None if follows else _OUTPUT_MODES.get(OutputMode(mode)),
            period=period or 1,
        )
        for name, (tensor, follows, mode, period) in options.anchored_tensors.items()
    ]


def check_supported(options: Options, *, training: bool) -> None:
    """Raise an error for unsupported options, and log options without effect once.

    Raises:
        poptorch.Error: naming the option, its value and what to do instead; or
            POPLAR_ENGINE_OPTIONS cannot be read.
    """
    _engine.report_wanted(options, training)  # refuses what it cannot read
    refused = _table.unsupported(options)
    if refused:
        lines = [f"{row.call(value)}: {row.note}" for row, value in refused]
        raise error(f"Options that cannot be honoured yet: {'; '.join(lines)}.")
    for row, value in _table.without_effect(options):
        if row.name not in _reported:
            _reported.add(row.name)
            logger.warning("Option %s has no effect here: %s.", row.call(value), row.note)


def hidden_paths(options: Options) -> list[str]:
    """Return path fragments of files that the user's options exclude from error messages.

    The default ones mean torch and this package, which are recognised by their whole paths: a
    user's project may well be in a folder of such a name.
    """
    row = _table.find("Options", "_source_location_excludes")
    usual = row.fresh() if row is not None else []
    return [path for path in options._source_location_excludes if path not in usual]


@dataclass(frozen=True)
class BatchSize:
    """The factors of a combined batch: rows, iterations, accumulation and replicas.

    Attributes:
        rows: Rows of a micro-batch; None if they are not known beforehand.
        device_iterations: Steps of one call.
        gradient_accumulation: Micro-batches of one weight update on one replica.
        replicas: Replicas with inputs of their own.
    """

    rows: int | None
    device_iterations: int
    gradient_accumulation: int
    replicas: int

    @classmethod
    def of(cls, options: Options, batch_size: int | None, batch_sampler: Any) -> Self:
        """Read the factors of a combined batch from options, batch size and batch sampler."""
        return cls(
            batch_size if batch_sampler is None else getattr(batch_sampler, "batch_size", None),
            options.device_iterations,
            options.Training.gradient_accumulation,
            options.replication_factor // options.input_group_size,
        )

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches that one call consumes."""
        return self.device_iterations * self.gradient_accumulation * self.replicas

    @property
    def combined(self) -> int | None:
        """The number of rows that one call consumes; None if unknown."""
        return None if self.rows is None else self.rows * self.micro_batches

    def spelled_out(self, count_rows: bool, processes: int = 1) -> str:
        """Format a combined batch size as "16 = batch_size 2 x deviceIterations 4 x ...".

        Args:
            count_rows: Rows rather than micro-batches.
            processes: How many processes need as many each.
        """
        factors = {
            "deviceIterations": self.device_iterations,
            "gradientAccumulation": self.gradient_accumulation,
            "replicas": self.replicas,
        }
        total = self.micro_batches * processes
        if count_rows and self.rows is not None:
            factors = {"batch_size": self.rows, **factors}
            total *= self.rows
        if processes > 1:
            factors["processes"] = processes
        return f"{total} = {' x '.join(f'{name} {count}' for name, count in factors.items())}"
