"""The class `Options`, the root of all settings of a wrapped model.

Setters check, store and return the object, so that they chain. What a stored value leads to is
not decided here: see `poptorch.options._table`.
"""

import copy
import logging
import os
from typing import Any, Self

import torch

from abele.storage.files import why_no_folder_name
from poptorch._error import require
from poptorch.enums import CommGroupType, ConnectionType, OutputMode, SyncPattern
from poptorch.options import files
from poptorch.options._container import OptionsDict, say_once
from poptorch.options.execution import _IExecutionStrategy
from poptorch.options.namespaces import (
    _DistributedOptions,
    _JitOptions,
    _PopartOptions,
    _PrecisionOptions,
    _TensorLocationOptions,
    _TrainingOptions,
)

SIMULATORS = ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL")

_logger = logging.getLogger("poptorch::python")

_UNLIMITED = 2**64 - 1


class Options(OptionsDict):
    """All settings of a wrapped model.

    A fresh object takes its cache directory from POPTORCH_CACHE_DIR, then the settings in
    POPTORCH_DEFAULT_OPTIONS (a JSON object, see `from_json`).
    """

    _store = "Options"
    _distributed_kind = _DistributedOptions  # programs started by poprun have another

    def __init__(self) -> None:
        super().__init__()
        popart = _PopartOptions()
        self._namespaces.update(
            Distributed=self._distributed_kind(),
            Jit=_JitOptions(),
            Precision=_PrecisionOptions(_popart=popart),
            TensorLocations=_TensorLocationOptions(),
            Training=_TrainingOptions(_popart=popart),
            _Popart=popart,
        )
        self._apply_environment()

    @property
    def TensorLocations(self) -> _TensorLocationOptions:
        """The options of tensor locations in memory; checked and stored, without effect."""
        return self._namespaces["TensorLocations"]

    @property
    def Distributed(self) -> _DistributedOptions:
        """The options of distributed training: process number and number of processes."""
        return self._namespaces["Distributed"]

    @property
    def Jit(self) -> _JitOptions:
        """The namespace of the deprecated option `traceModel`."""
        return self._namespaces["Jit"]

    @property
    def Precision(self) -> _PrecisionOptions:
        """The options of numeric precision: rounding, partial sums, exceptions."""
        return self._namespaces["Precision"]

    @property
    def Training(self) -> _TrainingOptions:
        """The options of training: gradient accumulation and reduction."""
        return self._namespaces["Training"]

    def deviceIterations(self, device_iterations: int) -> Self:
        """Set the steps per call: weight updates in training, micro-batches in inference."""
        return self._with(device_iterations=device_iterations)

    def replicationFactor(self, replication_factor: int) -> Self:
        """Set the number of data-parallel replicas of the model in this process.

        Differs from the original: the copies are computed on one device.
        """
        return self._with(replication_factor=replication_factor)

    def inputReplicaGrouping(self, input_group_size: int, input_group_type: CommGroupType) -> Self:
        """Set groups of replicas that receive the same inputs; call after `replicationFactor`.

        Args:
            input_group_size: Replicas per group.
            input_group_type: How groups are formed. A batch holds one micro-batch per group, in
                the order ``[device iterations, accumulation, groups, rows]``.

        Raises:
            ValueError: The type is All, or the size does not divide the replication factor.
        """
        if input_group_type == CommGroupType.All:
            raise ValueError("input_group_type cannot be All; a group of all replicas is a size")
        if input_group_type == CommGroupType.NoGrouping:
            input_group_size, input_group_type = 1, CommGroupType.Consecutive
        values = {"input_group_size": input_group_size, "input_cgt": input_group_type}
        self._check(values, create=False)
        sizes = f"replication factor ({self.replication_factor}): it is {input_group_size}"
        if input_group_size > self.replication_factor:
            raise ValueError(f"input_group_size cannot be larger than the {sizes}")
        if self.replication_factor % input_group_size:
            raise ValueError(f"input_group_size must be a factor of the {sizes}")
        return self._with(**values)

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> Self:
        """Set whether all replicas share the module's buffers, or each has its own.

        Args:
            broadcast_buffers: True makes a forward that writes to a buffer in several replicas an
                error when the model is compiled, statistics of batch norm excepted. False gives
                each replica buffers of its own; the host reads those of replica 0.
        """
        return self._with(broadcast_buffers=broadcast_buffers)

    def outputMode(self, output_mode: OutputMode, output_return_period: int | None = None) -> Self:
        """Set which micro-batches' results a call of the wrapped model returns.

        Args:
            output_mode: The choice; Default is Final for training and All for inference.
            output_return_period: N of EveryN, 1 or more; ignored for the other modes.

        Raises:
            AssertionError: Not an OutputMode, or EveryN without a positive period.
        """
        require_member("outputMode", output_mode, OutputMode)
        period = output_return_period
        if output_mode == OutputMode.EveryN:
            _require_period("outputMode", period)
        elif period is not None:
            _logger.info("outputMode(%s): output_return_period is ignored", output_mode.name)
        return self._with(
            output_mode=output_mode, output_return_period=1 if period is None else period
        )

    def defaultOutputMode(self) -> bool:
        """Return whether the output mode has not been set yet."""
        return self.output_mode == OutputMode.Default

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: OutputMode | None = None,
        output_return_period: int | None = 1,
    ) -> None:
        """Return an intermediate tensor of the program from every call, by `getAnchoredTensor`.

        Args:
            short_name: Name to fetch it by.
            long_name: Its name in the program, one of `getTensorNames()`.
            output_mode: Which values to return; None follows the model's mode.
            output_return_period: N of EveryN.

        Raises:
            AssertionError: Names that are no strings, not an OutputMode, or EveryN without a
                positive period. A name that the program does not have is an error when the model
                is compiled.
        """
        self.checkIsFrozen("anchored_tensors")
        for name in (short_name, long_name):
            require(isinstance(name, str), f"anchorTensor takes names of tensors, not {name!r}")
        mode = OutputMode.Default if output_mode is None else output_mode
        require_member("anchorTensor", mode, OutputMode)
        every_n = mode == OutputMode.EveryN
        if every_n:
            _require_period("anchorTensor", output_return_period)
        period = output_return_period if every_n else 1
        self.anchored_tensors[short_name] = [long_name, output_mode is None, int(mode), period]

    def setExecutionStrategy(self, strategy: _IExecutionStrategy) -> Self:
        """Set how blocks map to pipeline stages and phases; results do not depend on it.

        Differs from the original: stages of a pipeline share the cores or the GPU of this process;
        other strategies place and check, and run as one program.

        Args:
            strategy: A pipelined, sharded or phased execution; pipelined if nothing is said.

        Raises:
            AssertionError: Not an execution strategy.
        """
        require(
            isinstance(strategy, _IExecutionStrategy),
            f"setExecutionStrategy takes an execution strategy, not {strategy!r}",
        )
        self._execution_strategy = strategy
        return self

    def randomSeed(self, random_seed: int) -> Self:
        """Set the random seed of the program, and immediately that of torch on the host.

        Args:
            random_seed: The seed, of 64 bits with or without a sign.

        Raises:
            AssertionError: Not such an integer.
        """
        require(
            not isinstance(random_seed, int) or -(2**63) <= random_seed < 2**64,
            f"randomSeed takes an integer of 64 bits, not {random_seed}",
        )
        self.createOrSet(random_seed=random_seed)
        torch.manual_seed(random_seed)
        return self

    def logDir(self, log_dir: str) -> Self:
        """Set the directory of log files such as ``poptorch_error.log``.

        By default a failing compiler's output goes to a temporary file.
        """
        return self._with(log_dir=log_dir)

    def maxRepeatLogs(self, max_lines: int | None) -> Self:
        """Limit how often the same message is logged; None means no limit.

        Differs from the original: no effect; no message is suppressed.
        """
        return self._with(max_repeat_logs=_UNLIMITED if max_lines is None else max_lines)

    def modelName(self, name: str) -> Self:
        """Set the model's name in reports.

        Args:
            name: Its name; the default is "training" or "inference". Reports go to a folder of that
                name, so it is no path.
        """
        why = why_no_folder_name(name) if isinstance(name, str) else None
        require(why is None, f"modelName takes the name of a folder, not {name!r}: {why}.")
        self.createOrSet(model_name=name)
        return self

    def disableModuleNamescope(self) -> Self:
        """Leave module names out of the program's tensor names; results do not change."""
        self._module_namescope_enabled = False
        return self

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Self:
        """Log unexpected optimizer attributes at debug level instead of warning of them."""
        self._relax_optimizer_checks = relax
        return self

    def hostTrainingWarning(self, warn: bool = True) -> Self:
        """Set whether to warn of training steps that the wrapped model's module runs on the host.

        An addition of this project.
        """
        self._host_training_warning = warn
        return self

    def startMode(self, mode: str) -> Self:
        """Set how the first calls run before compiled code is available: interpreted or waiting.

        An addition of this project. ``compile()`` and ``compileAndExport()`` wait for the compiler
        unless the mode is ``interpret``. The environment variable ABELE_START wins.

        Args:
            mode: ``tiered``: interpret while another process compiles, the default; ``wait``:
                compile first; ``interpret``: compile nothing.

        Raises:
            AssertionError: Another mode.
        """
        modes = ("tiered", "wait", "interpret")
        require(mode in modes, f"startMode takes one of {', '.join(modes)}, not {mode!r}")
        self._start_mode = mode
        return self

    def showCompilationProgressBar(self, show: bool = True) -> Self:
        """Set whether a progress bar is shown during compilation."""
        self._show_compilation_progress_bar = show
        return self

    def sourceLocationExcludes(self, excludes: list[str]) -> Self:
        """Set the paths of files that are never shown as the user's source line.

        Args:
            excludes: Fragments of their paths, replacing the present ones.

        Raises:
            AssertionError: Not a list of strings.
        """
        require(
            isinstance(excludes, list | tuple) and all(isinstance(part, str) for part in excludes),
            f"sourceLocationExcludes takes a list of strings, not {excludes!r}",
        )
        self._source_location_excludes = list(excludes)
        return self

    def appendToLocationExcludes(self, *excludes: str) -> Self:
        """Add paths of files that are never shown as the user's source line."""
        self._source_location_excludes = [*self._source_location_excludes, *excludes]
        return self

    def loadFromFile(self, filepath: str) -> Self:
        """Load options from a file of setter calls, run as Python; load only files you trust.

        Raises:
            ConfigFileError: The file is not valid Python; names the line.
        """
        files.load_file(self, filepath)
        return self

    def from_json(self, string: str) -> Self:
        """Set options from a JSON object of setter names and arguments.

        Args:
            string: For example ``{"Training.gradientAccumulation": 4}``. A list is spread over the
                setter's arguments; a text such as ``OutputMode.All`` means that member.
        """
        files.apply_json(self, string)
        return self

    def toDict(self) -> dict[str, Any]:
        """Return all options as one flat dictionary, without the settings of ``_Popart``.

        Raises:
            AssertionError: No output mode was chosen yet.
        """
        require(
            not self.defaultOutputMode(),
            "An output mode must be picked before the options become a dictionary: "
            "options.outputMode(poptorch.OutputMode.All)",
        )
        merged = self.update(self._execution_strategy.backendOptions())
        for namespace in self._namespaces.values():
            if isinstance(namespace, OptionsDict):
                merged = namespace.update(merged)
        return merged

    def clone(self) -> Self:
        """Return an independent, unfrozen copy of the options."""
        return copy.deepcopy(self)

    def _apply_environment(self) -> None:
        if directory := os.environ.get("POPTORCH_CACHE_DIR"):
            self.enableExecutableCaching(directory)
        if text := os.environ.get("POPTORCH_DEFAULT_OPTIONS"):
            try:
                self.from_json(text)
            except Exception as problem:
                problem.add_note(f"while applying POPTORCH_DEFAULT_OPTIONS={text!r}")
                raise

    def anchorMode(self, anchor_mode: OutputMode, anchor_return_period: int | None = None) -> Self:
        """Set the output mode, as ``outputMode`` does (its name until 2.4)."""
        say_once("anchorMode", "outputMode is called")
        return self.outputMode(anchor_mode, anchor_return_period)

    def defaultAnchorMode(self) -> bool:
        """Return whether no output mode has been set (``defaultOutputMode`` until 2.4)."""
        return self.defaultOutputMode()

    @property
    def Popart(self) -> Any:
        """The compiler settings ``_Popart``, by their name in release 2.0."""
        say_once("Options.Popart", "_Popart is meant")
        return self._Popart

    @property
    def _popart(self) -> Any:
        """The compiler settings ``_Popart``, by their name in published programs."""
        return self._Popart

    @property
    def _Popart(self) -> _PopartOptions:
        """The settings for the PopART compiler, by name."""
        return self._namespaces["_Popart"]

    def setAvailableMemoryProportion(self, available_memory_proportion: dict[str, float]) -> Self:
        """Set the share of scratch memory that operators may use on each IPU.

        Differs from the original: no effect; scratch memory is allocated as operators need it.

        Args:
            available_memory_proportion: Fractions from 0 to 1 by "IPU0", "IPU1", ...

        Raises:
            AssertionError: Another key, or a fraction outside of 0 to 1.
        """
        for name, share in available_memory_proportion.items():
            index = name.removeprefix("IPU") if isinstance(name, str) else ""
            require(
                name == f"IPU{index}" and index.isdigit(),
                f'Invalid key {name!r}: keys are "IPU" and a number, such as "IPU0"',
            )
            require(
                isinstance(share, float | int) and 0 <= share <= 1,
                f"Invalid proportion {share!r} for {name}: it must lie between 0 and 1",
            )
        return self._with(available_memory_proportion=dict(available_memory_proportion))

    def useIpuModel(self, use_model: bool) -> Self:
        """Select the IPU simulator, whose device counts need no power of two.

        Takes precedence over POPTORCH_IPU_MODEL and POPTORCH_SMALL_IPU_MODEL.

        Differs from the original: nothing is simulated; the same program runs either way.
        """
        return self._create(use_model=use_model)

    def useIpuId(self, ipu_id: int) -> Self:
        """Select an IPU by its number.

        Differs from the original: no effect; there is no IPU to pick.
        """
        return self._create(ipu_id=ipu_id)

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Self:
        """Compile for export without running: set the connection type to Never.

        Differs from the original: compiles for the present target, not for absent hardware; the
        version is stored only.
        """
        return self._create(ipu_version=ipu_version).connectionType(ConnectionType.Never)

    def connectionType(self, connection_type: ConnectionType) -> Self:
        """Set when a wrapper acquires its device.

        Differs from the original: there is always a device to take, so that OnDemand only delays
        sending the weights.

        Args:
            connection_type: Never makes wrappers that only compile.

        Raises:
            AssertionError: Not a ConnectionType.
        """
        require_member("connectionType", connection_type, ConnectionType)
        return self._with(connection_type=connection_type)

    def syncPattern(self, sync_pattern: SyncPattern) -> Self:
        """Set how several IPUs synchronize with each other.

        Differs from the original: no effect; there is one device.
        """
        require_member("syncPattern", sync_pattern, SyncPattern)
        return self._with(sync_pattern=sync_pattern)

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Self:
        """Allow device counts that are not powers of two, by rounding up.

        Args:
            auto_round_num_ipus: Whether to round up, with a warning; otherwise such a model is an
                error when it is compiled.
        """
        return self._with(auto_round_num_ipus=auto_round_num_ipus)

    def enableExecutableCaching(self, path: str | None) -> Self:
        """Cache compiled executables in a directory, created on demand; None disables the cache."""
        require(
            path is None or isinstance(path, str | os.PathLike),
            f"enableExecutableCaching takes a path or None, not {path!r}",
        )
        self._Popart.set("enableEngineCaching", path is not None)
        if path is None:
            self._Popart.options.pop("cachePath", None)
        else:
            self._Popart.set("cachePath", os.fspath(path))
        return self

    def enableProfiling(self, profile_dir: str | None = None) -> Self:
        """Write a report of the compiled model and of its calls.

        Each model gets a folder in `profile_dir`, by default in the current directory.

        Differs from the original: JSON and an HTML page, not its binary profile.
        """
        require(
            profile_dir is None or isinstance(profile_dir, str | os.PathLike),
            f"enableProfiling takes a path or None, not {profile_dir!r}",
        )
        settings = {
            "debug.allowOutOfMemory": "true",
            "autoReport.directory": "." if profile_dir is None else os.fspath(profile_dir),
            "autoReport.all": "true",
        }
        environment = os.environ.get("POPLAR_ENGINE_OPTIONS", "")
        for name in settings:
            if name in environment:
                _logger.warning("enableProfiling: POPLAR_ENGINE_OPTIONS overrides %s", name)
        present = self._Popart.options.get("engineOptions", {})
        self._Popart.setEngineOptions({**present, **settings})
        return self

    def logCycleCount(self, log_cycle_count: bool) -> Self:
        """Enable `cycleCount()`, which returns the duration of a call.

        Differs from the original: a cycle is a nanosecond.
        """
        self._Popart.set("instrumentWithHardwareCycleCounter", log_cycle_count)
        return self

    def enableStableNorm(self, enabled: bool) -> Self:
        """Request normalisation layers with a numerically stable variance.

        Differs from the original: no effect; the variance is always stable.
        """
        self._Popart.set("enableStableNorm", enabled)
        return self

    def enableSyntheticData(self, enabled: bool) -> Self:
        """Replace the model's inputs by random normal data created on the device.

        Args:
            enabled: Anything true turns it on; integer inputs become zeros. For zeros everywhere
                (1) or uniform numbers (3) set ``syntheticDataMode`` of ``_Popart``.
        """
        self._Popart.set("syntheticDataMode", 2 if enabled else 0)
        return self

    def updatableNamedBuffers(self, buffers: list[str]) -> Self:
        """Set the names of the buffers that `copyNamedBuffersToDevice` copies to the device.

        A name that the model lacks is an error when they are sent.
        """
        self._Popart.set("updatableNamedBuffers", buffers)
        return self

    def _uses_ipu_model(self) -> bool:
        if self.exists("use_model"):
            return self.use_model
        return simulator_chosen()


def _require_period(setter: str, period: Any) -> None:
    require(
        isinstance(period, int) and period > 0,
        f"{setter} with OutputMode.EveryN needs a positive output_return_period, not {period!r}",
    )


def simulator_chosen() -> bool:
    """Return whether an environment variable selects an IPU simulator."""
    return any(os.environ.get(name, "0") not in ("", "0") for name in SIMULATORS)


def require_member(setter: str, value: Any, enumeration: type) -> None:
    """Raise AssertionError unless an argument is a member of an enumeration."""
    require(
        isinstance(value, enumeration),
        f"{setter} takes a poptorch.{enumeration.__name__}, not {value!r}",
    )
