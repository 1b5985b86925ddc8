"""`import horovod.torch` in a program that has imported `popdist`.

Published programs average metrics over instances with Horovod, which the original's SDK brings
along. An installed Horovod is found first; only without one is `popdist._horovod` that package.
"""

import importlib.util
import logging
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path

_FOLDER = Path(__file__).parent / "_horovod"


class StandInFinder(MetaPathFinder):
    """The import finder of the package that stands for Horovod."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Return the spec of the package `horovod`; None for every other name."""
        del path, target
        if fullname != "horovod":
            return None
        logging.getLogger("popdist").info(
            "Horovod is not installed: popdist provides horovod.torch, for metrics and weights."
        )
        return importlib.util.spec_from_file_location(
            fullname, _FOLDER / "__init__.py", submodule_search_locations=[str(_FOLDER)]
        )


def install() -> None:
    """Append the finder to `sys.meta_path`, after everything that is installed."""
    if not any(isinstance(finder, StandInFinder) for finder in sys.meta_path):
        sys.meta_path.append(StandInFinder())
