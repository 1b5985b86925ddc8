"""Precompiled kernels of the installed package.

A wheel has a folder for each level of x86-64 that it was made for: objects to link, a library to
load, and a list of both with their hashes. They are used where the level is this processor's.
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

from abele import processor
from abele.containers import is_mapping
from abele.kernels import sources
from abele.warn import warn_user

#: Beside the sources: what ``hatch_build.py`` fills.
FOLDER = sources.FOLDER / "compiled"
#: The files of a folder with their hashes, and the fingerprint of the sources.
LIST = "kernels.json"
LIBRARY = "kernels.so"


def level() -> str | None:
    """Return the level that kernels are compiled for on this machine; None: for it alone."""
    return sources.level(processor.listed())


def folder() -> Path | None:
    """Return the folder of this machine's level; None where the package does not have it."""
    here = level()
    return None if here is None else _whole(FOLDER / here)


def digests() -> list[str]:
    """Return the digest of the package's list of objects for this machine, if there is one.

    Programs link these objects, which another compiler made.
    """
    here = level()
    digest = None if here is None else _sha256(FOLDER / here / LIST)
    return [] if digest is None else [digest[:16]]


@functools.cache
def _whole(folder: Path) -> Path | None:
    """Return a folder if it has all files, undamaged and of these sources; None otherwise."""
    try:
        made: Any = json.loads((folder / LIST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return _ignored(folder, f"{LIST} cannot be read ({error})")
    why = _unusable(folder, made)
    return folder if why is None else _ignored(folder, why)


def _unusable(folder: Path, made: Any) -> str | None:
    """Return why the files of a folder cannot be used; None if they can.

    Args:
        folder: of a level.
        made: the content of its list.
    """
    if not is_mapping(made) or made.get("sources") != sources.fingerprint():
        return "they were compiled from other sources"
    files: Any = made.get("files")
    wanted = sorted((LIBRARY, *(f"{source}.o" for source in sources.KERNELS)))
    if not is_mapping(files) or sorted(files) != wanted:
        return f"{LIST} names other files than {len(wanted)} kernels"
    damaged = (name for name in wanted if _sha256(folder / name) != files[name])
    name = next(damaged, None)
    return None if name is None else f"{name} is missing or damaged"


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _ignored(folder: Path, why: str) -> None:
    warn_user(
        f"The compiled kernels in {folder} are not used: {why}. Kernels are compiled on this "
        "machine instead. To get rid of this message, install abele again.",
        RuntimeWarning,
    )
