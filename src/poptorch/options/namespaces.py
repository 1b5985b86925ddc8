"""The namespaces of `Options`: training, precision, processes, tensor locations, and compiler.

Settings addressed to the original's compiler by name are stored without judgement, as in the
original, and looked at when a model is compiled: `check_keys` finds misspelt ones, the option table
says what each does. Locations of tensors are checked and stored, and have no effect.
"""

import copy
import logging
import os
from typing import Any, Self

import torch

from poptorch._error import error, require
from poptorch.enums import HalfFloatCastingBehavior, MeanReductionStrategy, ReductionType
from poptorch.options import _table
from poptorch.options._container import Freezable, OptionsDict, say_once

_logger = logging.getLogger("poptorch::python")

_CONTAINERS = (list, set, tuple, dict)
_PARTIALS = {torch.float32: "float", torch.float16: "half"}
_TORCHS = ("WORLD_SIZE", "RANK")


class _PopartOptions(Freezable):
    """The settings of the PopART compiler, by name; ``options`` stores those set."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = _table.defaults("_Popart")

    def set(self, key: str, value: Any) -> Self:
        """Set a compiler setting by name; name and type are checked when a model is compiled.

        Args:
            key: Name of the setting.
            value: A bool, int, float, string, or a list, set or dictionary of strings.
        """
        self.checkIsFrozen(key)
        self.options[key] = value
        return self

    def setEngineOptions(self, engine_options: dict[str, str]) -> Self:
        """Set the engine options of the Poplar backend, all of them strings; replaces earlier ones.

        Differs from the original: ``autoReport.*`` choose the report of ``enableProfiling``; the
        others have no effect.
        """
        return self.set("engineOptions", engine_options)

    def setPatterns(self, patterns: dict[str, bool], level: int = 2) -> Self:
        """Enable or disable graph rewrites of the PopART compiler.

        Differs from the original: no effect; that compiler is not here.

        Args:
            patterns: Switches by name, applied on top of the level.
            level: 0 (none) to 3 (all).

        Raises:
            AssertionError: An argument of another type.
        """
        require(isinstance(level, int), f"level must be an int, not {level!r}")
        require(isinstance(patterns, dict), f"patterns must be a dict, not {patterns!r}")
        self.set("patterns", patterns)
        return self.set("patterns_level", level)

    def check_keys(self) -> None:
        """Raise poptorch.Error for a compiler setting with an unknown name or wrong type."""
        for key, value in self.options.items():
            row = _table.find("_Popart", key)
            if row is not None and _kind(value) == _row_kind(row):
                continue
            hint = f"it takes a {_row_kind(row)}" if row else "no setting has this name"
            raise error(f"Unknown {_kind(value)} option {key!r} given {value!r}: {hint}")

    def __repr__(self) -> str:
        parts = [f"{key}={_text(value)}" for key, value in sorted(self.options.items())]
        return f"_PopartOptions({', '.join(parts)})"


def _kind(value: Any) -> str:
    if isinstance(value, _CONTAINERS):
        return "container"
    # bool before int, which it is a kind of
    kinds = (kind for kind in (bool, int, float, str) if isinstance(value, kind))
    return next(kinds, type(value)).__name__


def _row_kind(row: _table.Row) -> str:
    if isinstance(row.type, type) and row.type not in _CONTAINERS:
        return row.type.__name__
    return "container"


def _text(value: Any) -> str:
    # Sets print in an order that changes from one process to the next.
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(repr, value))) + "}"
    return repr(value)


class _TrainingOptions(OptionsDict):
    """The options of training: gradient accumulation and reduction."""

    _store = "Training"

    def gradientAccumulation(self, gradient_accumulation: int) -> Self:
        """Set the number of micro-batches per weight update; 1 for inference."""
        return self._with(gradient_accumulation=gradient_accumulation)

    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> Self:
        """Set how gradients are reduced over micro-batches and replicas.

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
        return self._with(accumulation_and_replication_reduction_type=reduction_type)

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: MeanReductionStrategy
    ) -> Self:
        """Set when mean reduction of gradients divides: Running, Post or PostAndLoss.

        The three agree but for rounding and overflow. Optimizers with half accumulators that are
        not combined always use Running.
        """
        return self._with(meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy)

    def setAutomaticLossScaling(self, enabled: bool) -> Self:
        """Enable automatic loss scaling, which follows the range of half-precision gradients.

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
        """Set whether convolutions are spread over an IPU's tiles (dithering).

        Replaces all convolution options, those of `Precision.setPartialsType` included.

        Differs from the original: no effect; there are no tiles.
        """
        value = "true" if enabled else "false"
        self._popart.set("convolutionOptions", {"enableConvDithering": value})
        return self

    def accumulationReductionType(self, reduction_type: ReductionType) -> Self:
        """Set the gradient reduction, as ``accumulationAndReplicationReductionType`` does."""
        say_once("accumulationReductionType", "accumulationAndReplicationReductionType is called")
        return self.accumulationAndReplicationReductionType(reduction_type)


class _PrecisionOptions(OptionsDict):
    """The options of numeric precision: rounding, partial sums and floating-point exceptions."""

    _store = "Precision"

    def halfFloatCasting(self, half_float_casting: HalfFloatCastingBehavior) -> Self:
        """Warn that mixed half and float operands always follow torch's promotion rules."""
        self._deprecated("halfFloatCasting", "torch's type promotion always applies")
        return self

    def runningStatisticsAlwaysFloat(self, value: bool) -> Self:
        """Warn that running statistics of normalisations always keep the dtype of their module.

        Args:
            value: Ignored.

        Raises:
            ValueError: `value` is not a bool.
        """
        if not isinstance(value, bool):
            raise ValueError(
                f"runningStatisticsAlwaysFloat needs to be set to a bool, not {value!r}"
            )
        self._deprecated(
            "runningStatisticsAlwaysFloat", "running statistics keep their module's type"
        )
        return self

    def enableFloatingPointExceptions(self, enabled: bool) -> Self:
        """Set whether invalid operations, divisions by zero and overflows stop a call.

        The call then raises `RecoverableError`, which names the operator, the module and the
        line that first made an infinity or NaN of values that were none. State is as after the
        last complete weight update. Infinities that come from inputs or constants are no
        exception; a comparison by order (`<`, `<=`, `>`, `>=`) with a NaN is one. Every
        micro-batch waits for the device, and the program grows.

        Differs from the original: works per tensor. An operation of which an operand holds an
        infinity somewhere is watched for NaN only.
        """
        require(
            isinstance(enabled, bool),
            f"enableFloatingPointExceptions needs to be set to a bool, not {enabled!r}",
        )
        self._popart.set("enableFloatingPointChecks", enabled)
        return self

    def enableStochasticRounding(self, enabled: bool) -> Self:
        """Set whether updates of half-precision tensors use stochastic rounding.

        Differs from the original: concerns weights, optimizer state and gradient accumulators;
        half activations round to nearest.

        Args:
            enabled: Whether to; no effect on inference.
        """
        self._popart.set("enableStochasticRounding", enabled)
        return self

    def matmulPrecision(self, precision: str) -> Self:
        """Set the precision of float32 matrix products, as ``set_float32_matmul_precision`` does.

        An addition of this project. With ``medium``, the factors of large float32 GEMMs are rounded
        to bfloat16 on processors with AVX512-BF16 or AMX; sums and results are float32.
        Convolutions, attention and small GEMMs stay float32.

        Args:
            precision: ``highest``, the default; ``high``, which is computed as ``highest``; or
                ``medium``.

        Raises:
            AssertionError: Another precision.
        """
        known = ("highest", "high", "medium")
        require(
            precision in known,
            f"matmulPrecision takes one of {', '.join(known)}, not {precision!r}",
        )
        self._matmul_precision = precision
        return self

    def setPartialsType(self, dtype: torch.dtype) -> Self:
        """Set the dtype of partial sums in matrix multiplications and convolutions.

        Differs from the original: no effect; sums are accumulated in float32 or better.

        Replaces all convolution options, those of `Training.setConvolutionDithering` included.

        Args:
            dtype: torch.float32 or torch.float16.

        Raises:
            ValueError: Anything else was given.
        """
        self.checkIsFrozen("partialsTypeMatMuls")
        if not isinstance(dtype, torch.dtype) or dtype not in _PARTIALS:
            raise ValueError(f"setPartialsType takes torch.float or torch.half, not {dtype!r}")
        self._popart.set("partialsTypeMatMuls", _PARTIALS[dtype])
        self._popart.set("convolutionOptions", {"partialsType": _PARTIALS[dtype]})
        return self

    def _deprecated(self, name: str, instead: str) -> None:
        self.checkIsFrozen(name)
        _logger.warning("Precision.%s is deprecated and has no effect: %s", name, instead)

    def runningVarianceAlwaysFloat(self, value: bool) -> Self:
        """Warn that running statistics keep their dtype, as ``runningStatisticsAlwaysFloat``."""
        return self.runningStatisticsAlwaysFloat(value)

    def autocastEnabled(self, autocast_enabled: bool) -> Self:
        """Accept the switch of automatic casting (``poptorch.autocast``); no effect."""
        say_once("autocastEnabled", "nothing is cast by itself, every operation keeps its type")
        return self

    def autocastPolicy(self, autocast_policy: Any) -> Self:
        """Accept a policy of automatic casting (``poptorch.Policy``); no effect."""
        say_once("autocastPolicy", "nothing is cast by itself, every operation keeps its type")
        return self


class _DistributedOptions(OptionsDict):
    """The number of this process and the process count, by default those of MPI or torchrun.

    Differs from the original: RANK and WORLD_SIZE of torchrun count where MPI's are not set.

    A data loader divides its data by them. Wrapping a model for training connects the processes,
    which meet where MASTER_ADDR and MASTER_PORT say; poprun sets both.
    """

    _store = "Distributed"

    def __init__(self) -> None:
        super().__init__()
        torchs = "OMPI_COMM_WORLD_SIZE" not in os.environ and {*_TORCHS} <= os.environ.keys()
        self._place_by(*(_TORCHS if torchs else ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")))

    def disable(self) -> Self:
        """Use a single process, number 0 of 1, whatever the environment says."""
        return self.configureProcessId(0, 1)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> Self:
        """Read process count and number from named environment variables; 1 and 0 if unset."""
        for name in (var_num_processes, var_process_id):
            require(isinstance(name, str), f"setEnvVarNames takes names of variables, not {name!r}")
        return self._place_by(var_num_processes, var_process_id)

    def configureProcessId(self, process_id: int, num_processes: int) -> Self:
        """Set the number of this process, and the process count.

        Args:
            process_id: From 0 to `num_processes` - 1.
            num_processes: 1 or more.

        Raises:
            AssertionError: Numbers out of range.
        """
        return self._place(process_id, num_processes)

    @property
    def processId(self) -> int:
        """The number of this process among the training processes, from 0."""
        return self.distributed_process_id

    @property
    def numProcesses(self) -> int:
        """The number of processes that train together."""
        return self.num_distributed_processes

    # Apart from the setters, because a subclass may refuse those.

    def _place_by(self, var_num_processes: str, var_process_id: str) -> Self:
        return self._place(_number(var_process_id, "0"), _number(var_num_processes, "1"))

    def _place(self, process_id: int, num_processes: int) -> Self:
        values = {"distributed_process_id": process_id, "num_distributed_processes": num_processes}
        self._check(values, create=False)
        require(
            process_id < num_processes,
            f"Invalid process id {process_id} of {num_processes} processes: ids count from 0; "
            "the arguments are configureProcessId(process_id, num_processes)",
        )
        self._store_all(values)
        return self


def _number(name: str, otherwise: str) -> int:
    text = os.environ.get(name, otherwise)
    require(text.strip().isdecimal(), f"{name}={text!r} should be an integer, 0 or more")
    return int(text)


class _JitOptions(OptionsDict):
    """The namespace of the deprecated option `traceModel`."""

    _store = "Jit"

    def traceModel(self, trace_model: bool) -> Self:
        """Log that models are always captured in the same way; deprecated, no effect.

        Args:
            trace_model: False is accepted.

        Raises:
            ValueError: True was given.
        """
        self.checkIsFrozen("traceModel")
        if trace_model:
            raise ValueError(
                "traceModel(True): tracing with torch.jit is no longer supported; remove the call"
            )
        _logger.warning("Jit.traceModel is deprecated and has no effect")
        return self


class TensorLocationSettings(OptionsDict):
    """Settings of where one kind of tensor is stored and sharded; setters can be chained.

    Differs from the original: settings are checked and stored, and have no effect.
    """

    _store = "TensorLocationSettings"

    def __init__(self) -> None:
        super().__init__()

    def minElementsForOffChip(self, min_elements: int) -> Self:
        """Set the least number of elements of tensors that may be stored off-chip."""
        return self._create(minElementsForOffChip=min_elements)

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> Self:
        """Set the least number of elements of tensors that are sharded over replicas."""
        return self._create(minElementsForReplicatedTensorSharding=min_elements)

    def useOnChipStorage(self, use: bool | None = True) -> Self:
        """Store tensors on the chip (True) or off it (False); None restores the default."""
        if use is None:
            self.deleteIfExists("onChip")
            return self
        return self._create(onChip=use)

    def useReplicatedTensorSharding(self, use: bool = True) -> Self:
        """Shard tensors over replicas."""
        return self._create(useReplicatedTensorSharding=use)

    def useIOTilesToLoad(self, use: bool = True) -> Self:
        """Load off-chip tensors through the IPU's input-output tiles."""
        return self._create(useIOTilesToLoad=use)

    def useIOTilesToStore(self, use: bool = True) -> Self:
        """Store on-chip tensors in the IPU's input-output tiles."""
        return self._create(useIOTilesToStore=use)


class _TensorLocationOptions(OptionsDict):
    """The location settings for weights, activations, optimizer state and accumulators.

    Differs from the original: they are checked and stored, and have no effect.
    """

    _store = "TensorLocations"

    def numIOTiles(self, num_tiles: int) -> Self:
        """Reserve IPU tiles for input and output: an even number from 32 to 192."""
        require(
            isinstance(num_tiles, int) and 32 <= num_tiles <= 192 and num_tiles % 2 == 0,
            f"numIOTiles must be an even number between 32 and 192, not {num_tiles!r}",
        )
        return self._create(num_io_tiles=num_tiles)

    def setActivationLocation(self, location: TensorLocationSettings) -> Self:
        """Set where activations are stored; the settings are copied immediately."""
        return self._place("location_activation", location)

    def setWeightLocation(self, location: TensorLocationSettings) -> Self:
        """Set where weights are stored; the settings are copied immediately."""
        return self._place("location_weight", location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> Self:
        """Set where optimizer state is stored; the settings are copied immediately."""
        return self._place("location_optimizer", location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> Self:
        """Set where gradient accumulators are stored; the settings are copied immediately."""
        return self._place("location_accumulator", location)

    def _place(self, name: str, location: TensorLocationSettings) -> Self:
        require(
            isinstance(location, TensorLocationSettings),
            f"{name} takes a poptorch.TensorLocationSettings, not {location!r}",
        )
        return self._create(**{name: copy.deepcopy(location)})
