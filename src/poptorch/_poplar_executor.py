"""Where the original keeps its executor class; published programs name it by this path."""

from poptorch._forward.substitutions import _OverwriteContextManager
from poptorch._wrapper.executor import PoplarExecutor

__all__ = ["PoplarExecutor", "_OverwriteContextManager"]
