"""Where the original keeps the wrapping of modules; published programs name these functions."""

from poptorch._forward.running import isRunningOnIpu
from poptorch._state.module_weights import rewrapModelIfNecessary, unwrapModelIfNecessary

__all__ = ["isDispatchTracing", "rewrapModelIfNecessary", "unwrapModelIfNecessary"]


def isDispatchTracing() -> bool:
    """Whether forward is being captured for the device, by this thread."""
    return isRunningOnIpu()
