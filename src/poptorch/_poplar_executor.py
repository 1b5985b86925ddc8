"""The import path of the executor class in the original PopTorch, which programs use."""

from poptorch._forward.running import _OverwriteContextManager
from poptorch._wrapper.executor import PoplarExecutor

__all__ = ["PoplarExecutor", "_OverwriteContextManager"]
