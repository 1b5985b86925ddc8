"""PopTorch's interface for running unmodified PopTorch programs on CPUs and NVIDIA GPUs.

The names, defaults and behaviours of PopTorch 3.4 over the ``abele`` engine. Independent of
Graphcore, whose interface it is compatible with.
"""

from poptorch._wrapper import distribution as _distribution

_distribution.announce()

from abele._torch import distributed_tensors, dynamo  # noqa: E402 - the check comes first
from poptorch import (  # noqa: E402
    _impl,
    _logging,
    autocasting,
    enums,
    ops,
    optim,
    options,
    poptorch_core,
    processes,
    profiling,
    resuming,
    testing,
)
from poptorch._data.accessor import AsynchronousDataAccessor  # noqa: E402
from poptorch._data.dataloader import DataLoader  # noqa: E402
from poptorch._data.geometric import registerGeometricCustomArgParsers  # noqa: E402
from poptorch._error import (  # noqa: E402
    Error,
    IndexCheckError,
    RecoverableError,
    UnrecoverableError,
    createPoptorchError,
)
from poptorch._files.stored_forward import RestoredModule  # noqa: E402
from poptorch._forward.blocks import module_repr, print  # noqa: E402
from poptorch._forward.structure import ICustomArgParser, registerCustomArgParser  # noqa: E402
from poptorch._logging import logger, setLogLevel  # noqa: E402
from poptorch._state.weights import HostChangeWarning  # noqa: E402
from poptorch._version import __version__  # noqa: E402
from poptorch._wrapper.capture import registerPostCompileHook, registerPreCompileHook  # noqa: E402
from poptorch._wrapper.distribution import OtherPoptorchWarning  # noqa: E402
from poptorch._wrapper.executor import PoplarExecutor  # noqa: E402
from poptorch._wrapper.process import (  # noqa: E402
    ipuHardwareIsAvailable,
    ipuHardwareVersion,
    poptorchAtExit,
    prepare,
)
from poptorch._wrapper.wrap import (  # noqa: E402
    importPoptorchMetadataFromFile,
    inferenceModel,
    load,
    trainingModel,
)
from poptorch.autocasting import autocast  # noqa: E402
from poptorch.enums import *  # noqa: E402, F403 - every enumeration is public
from poptorch.ops import *  # noqa: E402, F403 - every operator and annotation
from poptorch.options import *  # noqa: E402, F403 - Options, strategies and locations

_logging.start()
prepare()
dynamo.load_when_needed()
distributed_tensors.load_when_needed()


def __getattr__(name: str) -> object:
    return autocasting.lookup(name)


del prepare

# Last: the package for graphs imports this one.
registerGeometricCustomArgParsers()
