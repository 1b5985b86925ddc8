"""The environment variables that abele reads, and a warning about misspelt ones."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Iterable

from abele.warn import warn_user

PREFIX = "ABELE_"
#: Effect of each variable, in a phrase for tables.
VARIABLES = {
    "ABELE_TARGET": "where programs run: `reference`, `null`, `cpu` or `cuda`; no fallback then",
    "ABELE_START": "how the first steps run: `tiered`, `wait` or `interpret`; wins over the option",
    "ABELE_SWAP_AT": "number of interpreted updates before compiled programs take over",
    "ABELE_LOWERING": "names of lowerings with commas: the only one, or those to measure",
    "ABELE_CUDA_GRAPHS": "`0`: launch kernels of a GPU one by one instead of replaying a graph",
    "ABELE_PIPELINE": "`sequential` or `workers`: whether stages of a pipeline run in parallel",
    "ABELE_SHARED_MEMORY": "`0`: exchange gradients through torch's process group on one host too",
    "ABELE_RANK_TIMEOUT": "seconds to wait for an instance that is silent; 60",
    "ABELE_RUN_SECRET": "token that instances of one run share, set by their launcher",
    "ABELE_RUNTIME_DIR": "folder of the files by which tools find running models",
}
_SIMILAR = 0.8  # ABELE_TARGT is; names of scripts and tests, such as ABELE_SHARED_DATA, are not


def unknown(names: Iterable[str]) -> dict[str, str | None]:
    """Return the names with abele's prefix that it does not read, each with the one meant, if any.

    Args:
        names: of environment variables.
    """
    others = [each for each in names if each.startswith(PREFIX) and each not in VARIABLES]
    similar = (difflib.get_close_matches(each, VARIABLES, 1, _SIMILAR) for each in others)
    return {each: next(iter(found), None) for each, found in zip(others, similar, strict=True)}


@functools.cache
def warn_of_misspelt() -> None:
    """Warn, once in a process, of environment variables that seem misspelt."""
    for name, meant in sorted(unknown(os.environ).items()):
        if meant:
            warn_user(
                f"The environment variable {name} has no effect. Did you mean {meant}?",
                RuntimeWarning,
            )
