"""The table of all PopTorch options: types, defaults, legal values and effects.

Defaults, type checks, the lists of what cannot be honoured and of what has no effect, and
`docs/reference/compatibility.md` are all read from this table; nothing repeats it. A row describes
a stored value, so the options objects in `poptorch.options` must not be imported here.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from poptorch.enums import (
    CommGroupType,
    ConnectionType,
    MeanReductionStrategy,
    OutputMode,
    ReductionType,
    SyncPattern,
)


class Status(enum.Enum):
    """The effect of setting an option to a value other than its default."""

    HONOURED = "honoured"
    NO_EFFECT = "no effect"
    REJECTED = "rejected"


class _Absent:
    """The default value of an option that does not exist until it is set."""

    def __repr__(self) -> str:
        return "not set"


ABSENT = _Absent()


@dataclass(frozen=True)
class AtLeast:
    """The legal values of a count option: integers not less than `lowest`."""

    lowest: int

    def __contains__(self, value: int) -> bool:
        return value >= self.lowest

    def __str__(self) -> str:
        return f"an integer >= {self.lowest}"


@dataclass(frozen=True)
class Row:
    """A row of the table of options: one option of PopTorch 3.4.

    Args:
        name: Key of the stored value; the setter's name when nothing is stored. A leading
            underscore means a private attribute of the options object.
        namespace: Namespace of the setter; "Options" is the root.
        setter: Name of the method that sets the option.
        type: Type of the stored value, or words when the setter checks it.
        default: Value of a fresh options object, a function that makes one, or ABSENT.
        legal: Values the container accepts; None when any value of the type is legal.
        when: "compile" when a change needs a new program, "run" when it does not.
        status: What a value other than the default leads to.
        note: Why that is harmless, what the option does, or what to do instead.
        home: Namespace that stores the value, when it is not `namespace`.
        neutral: Further values that mean the same as leaving the option alone.
    """

    name: str
    namespace: str
    setter: str
    type: type | tuple[type, ...] | str
    default: Any
    legal: tuple | AtLeast | None
    when: str
    status: Status
    note: str
    home: str = ""
    neutral: tuple = ()

    def call(self, value: Any) -> str:
        """Format the setter call that sets an option to a value, for messages."""
        if self.setter == "set":
            return f"{self.namespace}.set({self.name!r}, {value!r})"
        if self.name == "convolutionOptions" and "partialsType" in value:
            return f"setPartialsType, stored as {value!r},"
        return f"{self.setter}({value!r})"

    @property
    def store(self) -> str:
        """The name of the namespace that stores the option's value."""
        return self.home or self.namespace

    def fresh(self) -> Any:
        """Return a new default value of an option, as it is stored."""
        if callable(self.default):
            return self.default()
        if self.type is int and isinstance(self.default, enum.IntEnum):
            return int(self.default)  # such options are stored as plain integers
        return self.default

    def differs(self, value: Any) -> bool:
        """Return whether `value` asks for anything other than the option's default."""
        if value is ABSENT or value in self.neutral:
            return False
        return self.default is ABSENT or value != self.fresh()


NAMESPACES = (
    "Options",
    "Training",
    "Precision",
    "Distributed",
    "Jit",
    "TensorLocations",
    "TensorLocationSettings",
    "_Popart",
)


def _pipelined() -> Any:
    # Imported late: the options package reads this table while it is being imported.
    from poptorch.options.execution import PipelinedExecution

    return PipelinedExecution()


_HON, _NOP, _REJ = Status.HONOURED, Status.NO_EFFECT, Status.REJECTED
_COUNT = AtLeast(1)
_LOCATION = "where tensors live never changes their values"
_OFF = (False, 0)

# A table reads best as a table: one option per entry, its note on the next line.
# fmt: off
_ROOT = (
    Row("device_iterations", "Options", "deviceIterations", int, 1, _COUNT, "run", _HON,
        "steps per call"),
    Row("replication_factor", "Options", "replicationFactor", int, 1, _COUNT, "compile", _HON,
        "replicas are computed on one device, with the same numbers"),
    Row("input_group_size", "Options", "inputReplicaGrouping", int, 1, _COUNT, "run", _HON,
        "replicas of a group receive the same rows; a batch brings them once"),
    Row("input_cgt", "Options", "inputReplicaGrouping", CommGroupType, CommGroupType.Consecutive,
        tuple(CommGroupType), "run", _HON, "which replicas share inputs"),
    Row("broadcast_buffers", "Options", "broadcastBuffers", bool, True, None, "run", _HON,
        "True refuses a forward that writes to them in several replicas; False keeps them apart"),
    Row("output_mode", "Options", "outputMode", int, OutputMode.Default, tuple(OutputMode),
        "run", _HON, "which micro-batches' results come back"),
    Row("output_return_period", "Options", "outputMode", int, 1, None, "run", _HON,
        "N of OutputMode.EveryN"),
    Row("_execution_strategy", "Options", "setExecutionStrategy", "execution strategy", _pipelined,
        None, "compile", _HON, "blocks are placed and checked by it; stages of a "
        "pipeline overlap, others run as one program, with the "
        "same numbers"),
    Row("available_memory_proportion", "Options", "setAvailableMemoryProportion", dict, dict, None,
        "compile", _NOP, "scratch-memory advice"),
    Row("anchored_tensors", "Options", "anchorTensor", dict, dict, None, "compile", _HON,
        "getAnchoredTensor() fetches gradients, activations, weights and optimizer state"),
    Row("random_seed", "Options", "randomSeed", int, ABSENT, None, "run", _HON,
        "also seeds torch on the host at once"),
    Row("use_model", "Options", "useIpuModel", bool, ABSENT, None, "run", _HON,
        "True allows any number of IPUs up to 64; no IPU is simulated, the same program runs"),
    Row("ipu_id", "Options", "useIpuId", int, ABSENT, None, "run", _NOP,
        "there is no IPU to pick"),
    Row("ipu_version", "Options", "useOfflineIpuTarget", int, ABSENT, None, "compile", _NOP,
        "the program is compiled for the present target; connection type Never is honoured"),
    Row("connection_type", "Options", "connectionType", int, ConnectionType.Always,
        tuple(ConnectionType), "run", _HON, "Never compiles only; OnDemand behaves as Always"),
    Row("sync_pattern", "Options", "syncPattern", int, SyncPattern.Full, tuple(SyncPattern),
        "compile", _NOP, "how IPUs wait for each other; performance only"),
    Row("auto_round_num_ipus", "Options", "autoRoundNumIPUs", bool, False, None, "run", _HON,
        "a number of IPUs that is no power of two is rounded up, with a warning, or an error"),
    Row("log_dir", "Options", "logDir", str, ".", None, "run", _HON, "where log files go"),
    Row("max_repeat_logs", "Options", "maxRepeatLogs", int, 4, None, "run", _NOP,
        "no message is suppressed"),
    Row("model_name", "Options", "modelName", str, ABSENT, None, "run", _HON, "names the reports"),
    Row("cachePath", "Options", "enableExecutableCaching", str, ABSENT, None, "run", _HON,
        "directory of compiled executables", home="_Popart"),
    Row("enableEngineCaching", "Options", "enableExecutableCaching", bool, ABSENT, None, "run",
        _HON, "on when a cache directory is given", home="_Popart"),
    Row("autoReport.all", "Options", "enableProfiling", str, ABSENT, None, "run", _HON,
        "writes the record of the run, with its page; so does POPLAR_ENGINE_OPTIONS, "
        "which wins", home="engineOptions", neutral=("false",)),
    Row("instrumentWithHardwareCycleCounter", "Options", "logCycleCount", bool, False, None,
        "run", _HON, "cycleCount() counts nanoseconds of replica 0 on the device",
        home="_Popart"),
    Row("enableStableNorm", "Options", "enableStableNorm", bool, ABSENT, None, "compile", _NOP,
        "torch's variance is already computed stably", home="_Popart", neutral=_OFF),
    Row("syntheticDataMode", "Options", "enableSyntheticData", int, ABSENT, None, "run", _HON,
        "1 zeros, 2 random normal, 3 random uniform, made once on the device; integers zeros",
        home="_Popart", neutral=_OFF),
    Row("_module_namescope_enabled", "Options", "disableModuleNamescope", bool, True, None,
        "compile", _HON, "leaves module names out of the names of tensors"),
    Row("updatableNamedBuffers", "Options", "updatableNamedBuffers", list, ABSENT, None, "compile",
        _HON, "buffers that copyNamedBuffersToDevice() sends",
        home="_Popart", neutral=([],)),
    Row("_relax_optimizer_checks", "Options", "relaxOptimizerAttributesChecks", bool, False, None,
        "run", _HON, "turns the warnings into debug messages"),
    Row("_host_training_warning", "Options", "hostTrainingWarning", bool, True, None, "run", _HON,
        "whether training steps of a wrapped model that run on the host are announced; ours"),
    Row("_start_mode", "Options", "startMode", str, "tiered", ("tiered", "wait", "interpret"),
        "run", _HON, "whether first steps are interpreted while another process compiles; ours; "
        "ABELE_START wins"),
    Row("_show_compilation_progress_bar", "Options", "showCompilationProgressBar", bool, True,
        None, "run", _HON, "the bar on stderr during compilation"),
    Row("_source_location_excludes", "Options", "sourceLocationExcludes", list,
        lambda: ["/site-packages/torch/", "/poptorch/", "/abele/"], None,
        "compile", _HON, "path fragments of frames that are never named as a user's line"),
    Row("appendToLocationExcludes", "Options", "appendToLocationExcludes", "method", ABSENT, None,
        "compile", _HON, "adds to the list of sourceLocationExcludes"),
    Row("loadFromFile", "Options", "loadFromFile", "method", ABSENT, None, "run", _HON,
        "executes a file of setter calls as Python: load only files you trust"),
    Row("from_json", "Options", "from_json", "method", ABSENT, None, "run", _HON,
        "calls setters named by a JSON object"),
    Row("clone", "Options", "clone", "method", ABSENT, None, "run", _HON,
        "an independent copy that can be changed"),
)

_REDUCTIONS = (ReductionType.Sum, ReductionType.Mean)
_ALS = "automaticLossScalingSettings."

_NESTED = (
    Row("gradient_accumulation", "Training", "gradientAccumulation", int, 1, _COUNT, "compile",
        _HON, "micro-batches per weight update"),
    Row("accumulation_and_replication_reduction_type", "Training",
        "accumulationAndReplicationReductionType", ReductionType, ReductionType.Mean, _REDUCTIONS,
        "compile", _HON, "combines gradients over micro-batches and replicas"),
    Row("meanAccumulationAndReplicationReductionStrategy", "Training",
        "setMeanAccumulationAndReplicationReductionStrategy", MeanReductionStrategy,
        MeanReductionStrategy.Post, tuple(MeanReductionStrategy), "compile", _HON,
        "where a mean divides; always Running for half accumulators that are not combined"),
    Row(_ALS + "enabled", "Training", "setAutomaticLossScaling", bool, ABSENT, None, "compile",
        _HON, "loss_scaling follows the saturated share of half parameter gradients",
        home="_Popart", neutral=_OFF),
    Row(_ALS + "binEdgeLocation", "_Popart", "set", float, ABSENT, None, "compile", _HON,
        "share of the largest half from which a gradient element is saturated; 0.125"),
    Row(_ALS + "thresholdUpperCountProportion", "_Popart", "set", float, ABSENT, None, "compile",
        _HON, "saturated proportion above which loss_scaling is halved, else doubled; 1e-7"),
    Row(_ALS + "updatePeriod", "_Popart", "set", int, ABSENT, None, "compile", _HON,
        "updates between two changes of loss_scaling; 1"),
    Row("convolutionOptions", "Training", "setConvolutionDithering", dict, ABSENT, None, "compile",
        _NOP, "performance only; setPartialsType writes the same key", home="_Popart"),
    Row("enableStochasticRounding", "Precision", "enableStochasticRounding", bool, ABSENT, None,
        "compile", _HON, "half weights, optimizer state and accumulators; activations to nearest",
        home="_Popart", neutral=_OFF),
    Row("enableFloatingPointChecks", "Precision", "enableFloatingPointExceptions", bool, ABSENT,
        None, "compile", _HON, "the operation that makes an infinity or NaN raises and is named",
        home="_Popart", neutral=_OFF),
    Row("partialsTypeMatMuls", "Precision", "setPartialsType", str, ABSENT, None, "compile", _NOP,
        "sums are kept in float32 or better", home="_Popart"),
    Row("_matmul_precision", "Precision", "matmulPrecision", str, "highest",
        ("highest", "high", "medium"), "compile", _HON, "medium: factors of large float32 matrix "
        "products are rounded to bfloat16 where the processor is faster at it; ours"),
    Row("halfFloatCasting", "Precision", "halfFloatCasting", "method", ABSENT, None, "compile",
        _NOP, "deprecated in the original too; torch's type promotion applies"),
    Row("runningStatisticsAlwaysFloat", "Precision", "runningStatisticsAlwaysFloat", "method",
        ABSENT, None, "compile", _NOP, "deprecated in the original too; the module's type is kept"),
    Row("num_distributed_processes", "Distributed", "configureProcessId", int, 1, _COUNT, "run",
        _HON, "processes share each update; the data loader divides the data"),
    Row("distributed_process_id", "Distributed", "configureProcessId", int, 0, AtLeast(0), "run",
        _HON, "which part of the data the loader reads"),
    Row("setEnvVarNames", "Distributed", "setEnvVarNames", "method", ABSENT, None, "run", _HON,
        "reads count and id from other variables"),
    Row("disable", "Distributed", "disable", "method", ABSENT, None, "run", _HON,
        "back to one process"),
    Row("ipuof_configs", "Distributed", "", dict, dict, None, "run", _NOP,
        "partitions of the original hardware"),
    Row("traceModel", "Jit", "traceModel", "method", ABSENT, None, "compile", _NOP,
        "False is accepted with a warning; True raises ValueError"),
    Row("num_io_tiles", "TensorLocations", "numIOTiles", int, ABSENT, None, "compile", _NOP,
        "there are no tiles to set aside"),
)

_LOCATIONS = tuple(
    Row(f"location_{kind.lower()}", "TensorLocations", f"set{kind}Location",
        "TensorLocationSettings", ABSENT, None, "compile", _NOP, _LOCATION)
    for kind in ("Activation", "Weight", "Optimizer", "Accumulator")
) + tuple(
    Row(name, "TensorLocationSettings", setter, value_type, ABSENT, None, "compile", _NOP,
        _LOCATION)
    for name, setter, value_type in (
        ("minElementsForOffChip", "minElementsForOffChip", int),
        ("minElementsForReplicatedTensorSharding",
         "minElementsForReplicatedTensorSharding", int),
        ("onChip", "useOnChipStorage", bool),
        ("useReplicatedTensorSharding", "useReplicatedTensorSharding", bool),
        ("useIOTilesToLoad", "useIOTilesToLoad", bool),
        ("useIOTilesToStore", "useIOTilesToStore", bool),
    )
)

_REPLICATE = "set replicationFactor or Distributed instead"
_ACCUMULATE = "set Training.gradientAccumulation instead"

# Keys of `_Popart.set` that would change results: name, type, note, neutral values.
_POPART_REJECTED = (
    ("accumulationFactor", int, _ACCUMULATE, (1,)),
    ("enableGradientAccumulation", bool, _ACCUMULATE, _OFF),
    ("enableReplicatedGraphs", bool, _REPLICATE, _OFF),
    ("enableDistributedReplicatedGraphs", bool, _REPLICATE, _OFF),
    ("globalReplicationFactor", int, _REPLICATE, (1,)),
    ("globalReplicaOffset", int, _REPLICATE, (0,)),
    ("accumulationAndReplicationReductionType", int,
     "set Training.accumulationAndReplicationReductionType instead", (ReductionType.Mean,)),
)
# fmt: on

# Keys that only advise the original's compiler: placement, schedule, memory, dumps, its own checks.
_POPART_ADVICE = {
    bool: """
        aliasZeroCopy batchSerializationSettings.concatOnExecutionPhaseChange
        batchSerializationSettings.concatOnPipelineStageChange
        batchSerializationSettings.concatOnVirtualGraphChange compileEngine constantWeights
        decomposeGradSum delayVarUpdates disableGradAccumulationTensorStreams
        disableOptimizerStateTensorStreams dotOpNames enableExplicitIR enableExplicitMainLoops
        enableFullyConnectedPass enableInplaceAmbiguityChecking enableLoadAndOffloadRNGState
        enableMergeExchange enableNonStableSoftmax enableOutlining enableOutliningCopyCostPruning
        enablePipelining enablePrefetchDatastreams enableSerializedMatmuls
        enableSupportedDataTypeCasting ensureFp32LossScaleTensor explicitRecomputation
        exportPoplarComputationGraph exportPoplarVertexGraph groupHostSync
        groupNormStridedChannelGrouping opxAliasChecking opxModifyChecking rearrangeStreamsOnHost
        replicatedCollectivesSettings.mergeAllReduceCollectives
        replicatedCollectivesSettings.prepareScheduleForMergingCollectives
        scheduleNonWeightUpdateGradientConsumersEarly separateCallOpPdfs strictOpVersions
        useHostCopyOps
    """,
    int: """
        accumulateOuterFragmentSettings.schedule autodiffSettings.stitchStrategy
        automaticLossScalingSettings.gradientTensorTrackingMethod
        batchSerializationSettings.batchSchedule
        batchSerializationSettings.factor batchSerializationSettings.method
        batchSerializationSettings.transformContext compilationProgressTotal defaultBufferingDepth
        defaultPrefetchBufferingDepth executionPhaseSettings.phases executionPhaseSettings.stages
        finalDotOp firstDotOp looseThresholdAtPeak meanAccumulationAndReplicationReductionStrategy
        mergeVarUpdate mergeVarUpdateMemThreshold numIOTiles subgraphCopyingStrategy
        swapLimitScheduler transitiveClosureOptimizationThreshold virtualGraphMode
    """,
    float: """
        outlineSequenceBreakCost outlineThreshold timeLimitScheduler
    """,
    str: """
        customCodeletCompileFlags kahnTieBreaker logDir saveInitializersToFile
        serializedPoprithmsShiftGraphsDir
    """,
    (list, dict): """
        accumulateOuterFragmentSettings.excludedVirtualGraphs customCodelets dotChecks gclOptions
        hardwareInstrumentations lstmOptions matmulOptions reportOptions
    """,
}


def _popart_rows() -> Iterator[Row]:
    setter = ("_Popart", "set")
    for name, kind, note, neutral in _POPART_REJECTED:
        yield Row(name, *setter, kind, ABSENT, None, "compile", _REJ, note, neutral=neutral)
    for kind, names in _POPART_ADVICE.items():
        for name in names.split():
            note = "advice to the original's compiler"
            yield Row(name, *setter, kind, ABSENT, None, "compile", _NOP, note)
    note = "host memory layout of the original"
    yield Row("rearrangeAnchorsOnHost", *setter, bool, False, None, "compile", _NOP, note)
    note = (
        "0 (none) and 2 (norms) switch recomputationCheckpoint off when training; 1, 3, 4 mean on"
    )
    yield Row("autoRecomputation", *setter, int, ABSENT, None, "compile", _HON, note)
    note = "autoReport.* choose the report of enableProfiling; the others only advised a backend"
    yield Row("engineOptions", "_Popart", "setEngineOptions", dict, ABSENT, None, "run", _HON, note)
    note = "which of its graph rewrites the original's compiler runs"
    for name, kind in (("patterns", dict), ("patterns_level", int)):
        yield Row(name, "_Popart", "setPatterns", kind, ABSENT, None, "compile", _NOP, note)


TABLE: tuple[Row, ...] = (*_ROOT, *_NESTED, *_LOCATIONS, *_popart_rows())

_BY_KEY = {(row.store, row.name): row for row in TABLE}


def find(store: str, name: str) -> Row | None:
    """Return the table row of an option by namespace and name, or None."""
    return _BY_KEY.get((store, name))


def rows(store: str) -> list[Row]:
    """Return the table rows of the options that a namespace stores, in table order."""
    return [row for row in TABLE if row.store == store]


def defaults(store: str) -> dict[str, Any]:
    """Return new default values of the options that a namespace has from the start."""
    return {row.name: row.fresh() for row in rows(store) if row.default is not ABSENT}


def value_of(options: Any, row: Row) -> Any:
    """Return the current value of an option, or ABSENT if it is not set."""
    if row.store == "Options":
        values = {**vars(options), **options._values}
    elif row.store == "engineOptions":
        values = options._Popart.options.get("engineOptions", {})
    elif row.store == "_Popart":
        values = options._Popart.options
    else:
        namespace = options._namespaces.get(row.store)
        values = namespace._values if namespace is not None else {}
    return values.get(row.name, ABSENT)


def _changed(options: Any, status: Status) -> list[tuple[Row, Any]]:
    pairs = [(row, value_of(options, row)) for row in TABLE if row.status is status]
    return [(row, value) for row, value in pairs if row.differs(value)]


def unsupported(options: Any) -> list[tuple[Row, Any]]:
    """Return the options set to values that are not supported, with their values."""
    return _changed(options, Status.REJECTED)


def without_effect(options: Any) -> list[tuple[Row, Any]]:
    """Return the options that were set but have no effect here, with their values."""
    return _changed(options, Status.NO_EFFECT)


def given(options: Any) -> list[tuple[Row, Any]]:
    """Return the options that were set to values other than their default, with their values."""
    return [each for status in Status for each in _changed(options, status)]
