"""Path of the original's executor class, which published programs import."""

from poptorch._forward.running import _OverwriteContextManager
from poptorch._wrapper.executor import PoplarExecutor

__all__ = ["PoplarExecutor", "_OverwriteContextManager"]
