"""Package metadata of `poptorch` for `importlib.metadata`, and `horovod` from `popdist`.

This project is installed as `abele`. A library that requires ``poptorch>=3.3``, as published ones
do before they use a newer feature, finds the version that `poptorch.__version__` has.
"""

import importlib
import importlib.metadata
import sys
import warnings
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from importlib.metadata import DistributionFinder
from pathlib import Path

from poptorch._version import __version__

_NAME = "poptorch"
_METADATA = f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: {__version__}\n"


class OtherPoptorchWarning(UserWarning):
    """Another distribution called poptorch, such as the original, is installed as well."""


class OwnDistribution(importlib.metadata.Distribution):
    """The package metadata of the distribution poptorch: name and version."""

    def read_text(self, filename: str) -> str | None:
        """Return the text of the metadata file METADATA; None for other files."""
        return _METADATA if filename == "METADATA" else None

    def locate_file(self, path: object) -> Path:
        """Return the path that a file of the poptorch distribution would have."""
        return Path(__file__).parents[2] / str(path)


class OwnFinder(DistributionFinder):
    """A finder of the `poptorch` package metadata, and of the replacement of `horovod`."""

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        """Return the spec of `horovod` as `popdist` provides it, which is imported; else None."""
        del path, target
        if fullname != "horovod":
            return None
        importlib.import_module("popdist")
        # From Python 3.14 on, an import does not see the finder that popdist has just added.
        return importlib.import_module("popdist._instances").StandInFinder().find_spec(fullname)

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[importlib.metadata.Distribution]:
        """Return the poptorch distribution if it, or every distribution, is requested."""
        name = getattr(context, "name", None)
        return [OwnDistribution()] if name in (None, _NAME) else []


def announce() -> None:
    """Register the poptorch distribution with Python, after all installed distributions."""
    try:
        distribution = importlib.metadata.distribution(_NAME)
    except importlib.metadata.PackageNotFoundError:
        sys.meta_path.append(OwnFinder())
        return
    if not isinstance(distribution, OwnDistribution):
        warnings.warn(
            "Programs run on abele's package 'poptorch', but another distribution called poptorch "
            f"{distribution.version} is installed, too. Keep one: `pip uninstall poptorch` and "
            "install abele again, or use separate virtual environments.",
            OtherPoptorchWarning,
            stacklevel=3,
        )
