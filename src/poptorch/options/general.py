"""`Options`: the root of all settings of a wrapped model.

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
from poptorch.enums import CommGroupType, OutputMode
from poptorch.options import _table, files
from poptorch.options._container import OptionsDict
from poptorch.options.device import DeviceOptions, require_member
from poptorch.options.distributed import _DistributedOptions
from poptorch.options.earlier import EarlierOptions
from poptorch.options.execution import _IExecutionStrategy
from poptorch.options.jit import _JitOptions
from poptorch.options.locations import _TensorLocationOptions
from poptorch.options.popart import _PopartOptions
from poptorch.options.precision import _PrecisionOptions
from poptorch.options.training import _TrainingOptions

_logger = logging.getLogger("poptorch::python")

_UNLIMITED = 2**64 - 1


class Options(EarlierOptions, DeviceOptions):
    """All settings of a wrapped model.

    A fresh object takes its cache directory from POPTORCH_CACHE_DIR, then the settings in
    POPTORCH_DEFAULT_OPTIONS (a JSON object, see `from_json`).
    """

    _store = "Options"
    _distributed_kind = _DistributedOptions  # programs started by poprun have another

    def __init__(self) -> None:
        super().__init__(**_table.defaults(self._store))
        popart = _PopartOptions()
        self._namespaces.update(
            Distributed=self._distributed_kind(),
            Jit=_JitOptions(),
            Precision=_PrecisionOptions(popart),
            TensorLocations=_TensorLocationOptions(),
            Training=_TrainingOptions(popart),
            _Popart=popart,
        )
        self._apply_environment()

    @property
    def TensorLocations(self) -> _TensorLocationOptions:
        """Locations of tensors; checked and stored, without effect."""
        return self._namespaces["TensorLocations"]

    @property
    def Distributed(self) -> _DistributedOptions:
        """Rank of this process and number of processes."""
        return self._namespaces["Distributed"]

    @property
    def Jit(self) -> _JitOptions:
        """A deprecated option."""
        return self._namespaces["Jit"]

    @property
    def Precision(self) -> _PrecisionOptions:
        """Options of rounding and summation."""
        return self._namespaces["Precision"]

    @property
    def Training(self) -> _TrainingOptions:
        """Gradient accumulation and reduction."""
        return self._namespaces["Training"]

    def deviceIterations(self, device_iterations: int) -> Self:
        """Set how many steps one call runs: weight updates of training, batches of inference.

        Args:
            device_iterations: 1 or more.

        Raises:
            AssertionError: Not an integer, or less than 1.
        """
        return self._with(device_iterations=device_iterations)

    def replicationFactor(self, replication_factor: int) -> Self:
        """Set how many data-parallel copies of the model this process runs.

        Differs from the original: the copies are computed on one device.

        Args:
            replication_factor: 1 or more.

        Raises:
            AssertionError: Not an integer, or less than 1.
        """
        return self._with(replication_factor=replication_factor)

    def inputReplicaGrouping(self, input_group_size: int, input_group_type: CommGroupType) -> Self:
        """Let groups of replicas receive the same inputs; call after `replicationFactor`.

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
        """Choose whether replicas may change their buffers.

        Args:
            broadcast_buffers: True makes a forward that writes to a buffer in several replicas an
                error when the model is compiled, statistics of batch norm excepted. False gives
                each replica buffers of its own; the host reads those of replica 0.
        """
        return self._with(broadcast_buffers=broadcast_buffers)

    def outputMode(self, output_mode: OutputMode, output_return_period: int | None = None) -> Self:
        """Choose which results of a call come back.

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
        """Tell whether the output mode is still open."""
        return self.output_mode == OutputMode.Default

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: OutputMode | None = None,
        output_return_period: int | None = 1,
    ) -> None:
        """Keep an intermediate tensor of every call, for `getAnchoredTensor`.

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
        """Choose how blocks map to stages and phases; the numbers do not depend on it.

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
        """Set the seed of the program, and seed torch on the host at once.

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
        """Choose where log files go.

        Args:
            log_dir: A directory.
        """
        return self._with(log_dir=log_dir)

    def maxRepeatLogs(self, max_lines: int | None) -> Self:
        """Limit how often the same message is logged.

        Differs from the original: no effect; no message is suppressed.

        Args:
            max_lines: The limit, or None for none.
        """
        return self._with(max_repeat_logs=_UNLIMITED if max_lines is None else max_lines)

    def modelName(self, name: str) -> Self:
        """Name the model in reports.

        Args:
            name: Its name; the default is "training" or "inference". Reports go to a folder of that
                name, so it is no path.
        """
        why = why_no_folder_name(name) if isinstance(name, str) else None
        require(why is None, f"modelName takes the name of a folder, not {name!r}: {why}.")
        self.createOrSet(model_name=name)
        return self

    def disableModuleNamescope(self) -> Self:
        """Leave module names out of the names of tensors; the numbers do not change."""
        self._module_namescope_enabled = False
        return self

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Self:
        """Turn warnings about unexpected optimizer attributes into debug messages.

        Args:
            relax: Whether to.
        """
        self._relax_optimizer_checks = relax
        return self

    def hostTrainingWarning(self, warn: bool = True) -> Self:
        """Choose whether training steps of the wrapped model on the host are announced.

        An addition of this project.

        Args:
            warn: Whether to.
        """
        self._host_training_warning = warn
        return self

    def startMode(self, mode: str) -> Self:
        """Choose what the first calls do while nothing is compiled or cached.

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
        """Choose whether compiling shows a progress bar.

        Args:
            show: Whether to.
        """
        self._show_compilation_progress_bar = show
        return self

    def sourceLocationExcludes(self, excludes: list[str]) -> Self:
        """Choose which files are never named as the user's source line.

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
        """Add to the files that are never named as the user's source line.

        Args:
            *excludes: Fragments of their paths.
        """
        self._source_location_excludes = [*self._source_location_excludes, *excludes]
        return self

    def loadFromFile(self, filepath: str) -> Self:
        """Execute a file of setter calls, one per line, as Python; load only files you trust.

        Args:
            filepath: Path of the file.

        Raises:
            ConfigFileError: The file is not valid Python; names the line.
        """
        files.load_file(self, filepath)
        return self

    def from_json(self, string: str) -> Self:
        """Call the setters that a JSON object names.

        Args:
            string: For example ``{"Training.gradientAccumulation": 4}``. A list is spread over the
                setter's arguments; a text such as ``OutputMode.All`` means that member.
        """
        files.apply_json(self, string)
        return self

    def toDict(self) -> dict[str, Any]:
        """Return all values in one flat dictionary, without those of ``_Popart``.

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
        """Return an independent copy that is not frozen."""
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


def _require_period(setter: str, period: Any) -> None:
    require(
        isinstance(period, int) and period > 0,
        f"{setter} with OutputMode.EveryN needs a positive output_return_period, not {period!r}",
    )
