"""Process-wide effects of importing poptorch: environment variables, hooks and device counts.

``VARIABLES`` is the one table of environment variables, from which
`docs/reference/compatibility.md` and the check are made.
"""

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from abele import libraries
from poptorch._error import error
from poptorch._logging import logger
from poptorch._wrapper.errors import log_uncaught
from poptorch.options import Options
from poptorch.options.general import SIMULATORS, simulator_chosen

# -- environment variables ---------------------------------------------------------------------


@dataclass(frozen=True)
class Variable:
    """An environment variable of the original PopTorch, and its effect here.

    Args:
        name: As in the shell.
        effect: Whether setting it changes anything.
        note: What it does, or why ignoring it is harmless.
    """

    name: str
    effect: bool
    note: str


_LEVEL = "levels of libraries that are not here; use POPTORCH_LOG_LEVEL"

VARIABLES = (
    Variable("POPTORCH_LOG_LEVEL", True, "TRACE, DEBUG, INFO, WARN, ERR or OFF"),
    Variable("POPTORCH_LOG_DEST", True, "stdout, stderr (default) or a file"),
    Variable("POPTORCH_CACHE_DIR", True, "default of options.enableExecutableCaching"),
    Variable("POPTORCH_DEFAULT_OPTIONS", True, "JSON of setters, see Options.from_json"),
    Variable("POPTORCH_IPU_MODEL", True, "no hardware counts as available; models run as ever"),
    Variable("POPTORCH_SMALL_IPU_MODEL", True, "as POPTORCH_IPU_MODEL"),
    Variable("POPTORCH_IPU_MODEL_VERSION", False, "there is no simulator whose version matters"),
    Variable("POPTORCH_WAIT_FOR_IPU", False, "devices are shared, so there is nothing to wait for"),
    Variable("POPTORCH_EXPORT_PROTO_FILE", True, "programs are written there as text"),
    Variable("POPTORCH_EXPORT_PROTO_AS_BINARY", False, "programs are written as text"),
    Variable("POPTORCH_MAX_GRAPH_LEN", False, "no graph is printed in the log"),
    Variable("PVTI_OPTIONS", True, "JSON that turns profiling on, before import"),
    Variable("POPLAR_ENGINE_OPTIONS", True, "its autoReport.* entries write a report"),
    Variable("POPLAR_TARGET_OPTIONS", False, "describes IPUs"),
    Variable("POPLAR_LOG_LEVEL", False, _LEVEL),
    Variable("POPART_LOG_LEVEL", False, _LEVEL),
    Variable("POPLIBS_LOG_LEVEL", False, _LEVEL),
)  # fmt: skip

_reported: set[Variable] = set()


def check() -> None:
    """Log each environment variable that is set but has no effect, once."""
    for variable in VARIABLES:
        if os.environ.get(variable.name) and not variable.effect and variable not in _reported:
            _reported.add(variable)
            logger.warning("%s has no effect here: %s.", variable.name, variable.note)


# -- effects of the import --------------------------------------------------------------------


def prepare() -> None:
    """Apply the process-wide effects of importing poptorch: hooks and variables; idempotent.

    Frames of this package are no lines of the user's. A crash prints its Python stack, forked
    children may use verbs devices, and the log gets uncaught exceptions.
    """
    check()
    libraries.register("poptorch", Path(__file__).parents[1])
    os.environ.setdefault("RDMAV_FORK_SAFE", "1")
    _report_crashes()
    # Somebody else's hook (a debugger, a notebook) is worth more than ours.
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = log_uncaught
    atexit.register(poptorchAtExit)


def _report_crashes() -> None:
    # A stderr without a file behind it (captured, closed) cannot be written to in a crash; signals
    # can be handled by the main thread's interpreter only.
    with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):
        if not faulthandler.is_enabled():
            faulthandler.enable()
        faulthandler.register(signal.SIGTERM, chain=True)


def poptorchAtExit() -> None:
    """Log the end of the process at debug level; called by itself at exit."""
    logger.debug("poptorch ends")


# -- devices -----------------------------------------------------------------------------------

# There is one device here, and it takes every count that the original allows.
_MOST = 64
_GENERATION = 2  # the one that compiles offline by default, too


def count_ipus(required: int, options: Options) -> int:
    """Return the number of IPUs that the original PopTorch would allocate to a process.

    Args:
        required: over all stages and replicas of this process.
        options: may allow rounding, or choose the simulator, which takes any number.

    Raises:
        poptorch.Error: not a power of two, and rounding is not allowed; or more than 64.
    """
    count = required
    if required & (required - 1) and not options._uses_ipu_model():
        count = 1 << required.bit_length()
        if not options.auto_round_num_ipus:
            raise error(
                f"The model and its replicas need {required} IPUs, and only powers of two can "
                f"be had. Call options.autoRoundNumIPUs(True) to take {count}, or change the "
                "ipu_id of the blocks or the replicationFactor."
            )
        logger.warning("Number of IPUs rounded up from %d to %d.", required, count)
    if count > _MOST:
        raise error(
            f"Too many IPUs requested ({count}). Experiments that need more than {_MOST} IPUs "
            "require distributed execution."
        )
    return count


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Return whether wrapped models can run on this number of devices.

    Differs from the original: there is no IPU, and the answer is about the device that stands in
    for it. Programs ask before they wrap a model, and leave or use plain PyTorch when they hear
    False; so the answer is True for every number of devices that a program may ask for.

    Args:
        num_ipus: a power of two up to 64 can be had.

    Returns:
        False for other numbers, and when POPTORCH_IPU_MODEL or POPTORCH_SMALL_IPU_MODEL chooses the
        simulator, as in the original.
    """
    power_of_two = num_ipus > 0 and not num_ipus & (num_ipus - 1)
    return power_of_two and num_ipus <= _MOST and not simulator_chosen()


def ipuHardwareVersion() -> int:
    """Return the IPU generation that wrapped models report to run on: 2.

    Differs from the original: there is no IPU, and the answer is 2, the generation that the
    original compiles for by default.

    Raises:
        AssertionError: the simulator is chosen by the environment.
    """
    if simulator_chosen():
        raise AssertionError(
            "There is no IPU hardware: the simulator is chosen by "
            f"{' or '.join(SIMULATORS)} in the environment. Unset it."
        )
    return _GENERATION
