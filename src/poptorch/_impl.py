"""Names of the original ``poptorch._impl`` module that published programs import."""

from poptorch._forward.running import isRunningOnIpu
from poptorch._state.module_weights import rewrapModelIfNecessary, unwrapModelIfNecessary

__all__ = ["isDispatchTracing", "rewrapModelIfNecessary", "unwrapModelIfNecessary"]


def isDispatchTracing() -> bool:
    """Return whether this thread is capturing a model's forward for the device."""
    return isRunningOnIpu()
