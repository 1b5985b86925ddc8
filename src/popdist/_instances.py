"""What instances do together, as far as it needs no other process."""

from collections.abc import Callable, Collection
from typing import ParamSpec, TypeVar

from popdist import _environment
from popdist._error import Error

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def init() -> None:
    """Connect this instance with the others; call it once, before anything else of this package.

    A single instance has nobody to connect with, so that nothing happens, with or without poprun.

    Differs from the original: more than one instance is refused, because processes exchange nothing
    yet.

    Raises:
        popdist.Error: There are several instances, or the environment contradicts itself.
    """
    _environment.check()
    count = _environment.getNumInstances()
    if count > 1:
        total = _environment.getNumTotalReplicas()
        raise Error(
            f"popdist.init() was called in one of {count} instances, but runs of several instances "
            "are not built yet. Start the program as one process, without poprun, and give it all "
            f"{total} replicas: poptorch.Options().replicationFactor({total})."
        )


def execute_on_instances(
    instances: Collection[int],
    func: Callable[_Arguments, _Result],
    *args: _Arguments.args,
    **kwargs: _Arguments.kwargs,
) -> _Result | None:
    """Call a function on some instances only: for saving, logging or a download.

    Nobody waits for the others.

    Args:
        instances: Numbers of these instances, such as ``{0}``; those that no instance has are
            ignored, so that a program also runs with fewer instances.
        func: Called with the remaining arguments.
        *args: Its positional arguments.
        **kwargs: Its named arguments.

    Returns:
        What the function returns; None on the other instances.

    Raises:
        popdist.Error: `instances` is a number, or the environment does not tell this instance.
    """
    if isinstance(instances, int):
        raise Error(f"execute_on_instances takes a set of instances: {{{instances}}}")
    return func(*args, **kwargs) if _environment.getInstanceIndex() in instances else None
