"""The options of a wrapped model: setters, checks, files and execution strategies.

One file per group of options; defaults and statuses are in `poptorch.options._table`.
"""

from poptorch.options._container import OptionsDict
from poptorch.options.distributed import _DistributedOptions
from poptorch.options.execution import (
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    _IExecutionStrategy,
    _IPhasedExecution,
)
from poptorch.options.files import ConfigFileError
from poptorch.options.general import Options
from poptorch.options.jit import _JitOptions
from poptorch.options.locations import TensorLocationSettings, _TensorLocationOptions
from poptorch.options.popart import _PopartOptions
from poptorch.options.precision import _PrecisionOptions
from poptorch.options.training import _TrainingOptions

__all__ = [
    "ConfigFileError",
    "Options",
    "OptionsDict",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
    "TensorLocationSettings",
    "_DistributedOptions",
    "_IExecutionStrategy",
    "_IPhasedExecution",
    "_JitOptions",
    "_PopartOptions",
    "_PrecisionOptions",
    "_TensorLocationOptions",
    "_TrainingOptions",
]
