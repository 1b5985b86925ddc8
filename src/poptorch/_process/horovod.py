"""`import horovod.torch` in a program that has imported this package, but `popdist` only later."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec


class PopdistFirst(MetaPathFinder):
    """Imports `popdist`, whose own finder stands next, where Horovod is not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Return None: Python asks the finders after this one, the new one too."""
        del path, target
        if fullname == "horovod":
            importlib.import_module("popdist")
        return None


def provide() -> None:
    """Have Python ask this finder after everything that is installed."""
    if not any(isinstance(finder, PopdistFirst) for finder in sys.meta_path):
        sys.meta_path.append(PopdistFirst())
