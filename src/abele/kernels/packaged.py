"""Precompiled kernels of the installed package.

A wheel has a folder for each level of processors that it was made for: objects to link, a library
to load, and a list of both with their hashes. They are used where the level is this processor's.
"""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from abele import processor
from abele.containers import is_mapping
from abele.kernels import sources
from abele.warn import warn_user

#: Folder of precompiled kernels, filled by ``hatch_build.py``.
FOLDER = sources.FOLDER / "compiled"
#: Manifest of a folder: hashes of its files, and the fingerprint of the sources.
LIST = "kernels.json"
LIBRARY = "kernels.so"
# torch's names of the instruction sets that levels of x86-64 need, by Linux's names.
_OF_TORCH = {
    **{"avx": "avx", "avx2": "avx2", "bmi1": "bmi", "bmi2": "bmi2", "f16c": "f16c"},
    **{"fma": "fma3", "abm": "lzcnt", "avx512f": "avx512_f", "avx512bw": "avx512_bw"},
    **{"avx512cd": "avx512_cd", "avx512dq": "avx512_dq", "avx512vl": "avx512_vl"},
}


def instructions() -> frozenset[str]:
    """Return the instruction sets that Linux lists and the processor itself does not deny.

    Under an emulator of an older processor Linux lists those of the real one: code for these would
    end the process. torch queries the processor (CPUID).
    """
    own = torch.cpu.get_capabilities()
    denied = (name for name, of_torch in _OF_TORCH.items() if own.get(of_torch) is False)
    return processor.listed() - frozenset(denied)


def level() -> str | None:
    """Return the level that kernels are compiled for; None: for this processor only."""
    return sources.level(platform.machine(), instructions())


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
        others = {sources.architecture(each.parent.name) for each in FOLDER.glob(f"*/{LIST}")}
        if not others or sources.architecture(folder.name) in others:
            return None
        folder, why = FOLDER, f"they are for {', '.join(sorted(others))}"
    except (OSError, ValueError) as error:
        why = f"{LIST} cannot be read ({error})"
    else:
        why = "they were compiled from other sources"
        if is_mapping(made) and made.get("sources") == sources.fingerprint():
            names = (LIBRARY, *(f"{source}.o" for source in sources.KERNELS))
            why = next(filter(None, (_spoiled(folder / each, made) for each in names)), None)
            if why is None:
                return folder
    warn_user(
        f"The compiled kernels in {folder} are not used: {why}. Kernels are compiled on this "
        "machine instead, if it has a C++ compiler. To get rid of this message, install abele "
        "again.",
        RuntimeWarning,
    )
    return None


def _spoiled(file: Path, made: Mapping[str, Any]) -> str | None:
    """Return why a file is not the one that its manifest lists; None if it is.

    Loading a library that was cut short ends the process (SIGBUS). Hashes of all files take 2 ms.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        return f"{file.name} {'is missing' if missing else f'cannot be read ({error.strerror})'}"
    files = made.get("files")
    listed = files.get(file.name) if is_mapping(files) else None
    return None if hashlib.sha256(content).hexdigest() == listed else f"{file.name} is damaged"
