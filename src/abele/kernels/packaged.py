"""Precompiled kernels of the installed package.

A wheel has a folder for each level of processors that it was made for: objects to link, a library
to load, and a list of both with their hashes. They are used where the level is this processor's.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from pathlib import Path
from typing import Any

from abele import processor
from abele.containers import is_mapping
from abele.kernels import sources
from abele.warn import warn_user

#: Folder of precompiled kernels, filled by ``hatch_build.py``.
FOLDER = sources.FOLDER / "compiled"
#: Manifest of a folder: hashes of its files, and the fingerprint of the sources.
LIST = "kernels.json"
LIBRARY = "kernels.so"


def level() -> str | None:
    """Return the level that kernels are compiled for; None: for this processor only."""
    return sources.level(platform.machine(), processor.listed())


def folder() -> Path | None:
    """Return the folder of precompiled kernels for this machine; None if the package has none."""
    here = level()
    return None if here is None else _usable(FOLDER / here)


def digests() -> list[str]:
    """Return the digest of the precompiled kernel objects for this machine, if any.

    Programs link these objects, which another compiler made.
    """
    here = level()
    if here is None or not (FOLDER / here / LIST).is_file():
        return []
    return [hashlib.sha256((FOLDER / here / LIST).read_bytes()).hexdigest()[:16]]


@functools.cache
def _usable(folder: Path) -> Path | None:
    """Return a folder if it has all kernels, compiled from the current sources, else None."""
    try:
        made: Any = json.loads((folder / LIST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = f"{LIST} cannot be read ({error})"
    else:
        why = "they were compiled from other sources"
        if is_mapping(made) and made.get("sources") == sources.fingerprint():
            names = (LIBRARY, *(f"{source}.o" for source in sources.KERNELS))
            lost = next((name for name in names if not (folder / name).is_file()), None)
            if lost is None:
                return folder
            why = f"{lost} is missing"
    warn_user(
        f"The compiled kernels in {folder} are not used: {why}. Kernels are compiled on this "
        "machine instead. To get rid of this message, install abele again.",
        RuntimeWarning,
    )
    return None
