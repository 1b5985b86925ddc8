"""The number of devices that a program requests, and its view of the hardware.

There is one device here and it takes every count that the original allows, so a program that asks
for 64 runs as well as one that asks for 1.
"""

from poptorch._error import error
from poptorch._logging import logger
from poptorch.options import Options
from poptorch.options.general import SIMULATORS, simulator_chosen

_MOST = 64
_GENERATION = 2  # the one that compiles offline by default, too


def count_ipus(required: int, options: Options) -> int:
    """Return the number of devices the original would take for a process.

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
    """Return whether wrapped models run on what stands for that many devices.

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
    """Return the generation of the device that wrapped models run on.

    Differs from the original: there is no IPU, and the answer is 2, the generation that the
    original compiles for when nothing is said.

    Raises:
        AssertionError: the simulator is chosen by the environment.
    """
    if simulator_chosen():
        raise AssertionError(
            "There is no IPU hardware: the simulator is chosen by "
            f"{' or '.join(SIMULATORS)} in the environment. Unset it."
        )
    return _GENERATION
