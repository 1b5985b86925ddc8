"""Registry of packages whose code is not the user's: torch, this engine and front-ends.

Messages name the user's line, so frames of libraries are skipped; and captures do not search their
objects for tensors.
"""

import os
from pathlib import Path

import torch

_names = {"torch", "abele"}
# Whole paths: a user's project may well live in a folder called abele or torch.
_folders = tuple(f"{Path(module).parent}{os.sep}" for module in (torch.__file__, __file__))


def register(name: str, folder: Path) -> None:
    """Register a package as a library, whose frames messages skip."""
    global _folders
    if name not in _names:
        _names.add(name)
        _folders += (f"{folder}{os.sep}",)


def has_file(file: str) -> bool:
    """Return whether a source file belongs to a library."""
    return file.startswith(_folders)


def has_module(name: str) -> bool:
    """Return whether a module, by its dotted name, belongs to a library."""
    return name.partition(".")[0] in _names
