"""The engine: a model's whole step as one static program, compiled ahead of time.

Read ``abele/README.md`` for the tour of the files in the order data meets them.
"""

from abele.capture import Captured, capture
from abele.compile.build import BuildRecord, FallbackWarning, build
from abele.compile.cache import CacheWarning, ExecutableCache
from abele.compile.executable import Executable
from abele.errors import AbeleError
from abele.program import Program, Role, Slot
from abele.runtime.session import Session
from abele.step.config import OutputMode, Reduction, StepConfig
from abele.step.update_rules import Group, UpdateRule
from abele.targets import available, get_target
from abele.version import __version__

__all__ = [
    "AbeleError",
    "BuildRecord",
    "CacheWarning",
    "Captured",
    "Executable",
    "ExecutableCache",
    "FallbackWarning",
    "Group",
    "OutputMode",
    "Program",
    "Reduction",
    "Role",
    "Session",
    "Slot",
    "StepConfig",
    "UpdateRule",
    "__version__",
    "available",
    "build",
    "capture",
    "get_target",
]
