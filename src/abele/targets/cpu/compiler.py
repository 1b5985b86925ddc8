"""The C++ compiler of this machine, and what its processor has."""

from __future__ import annotations

import functools
import os
import shutil

import torch

from abele import processor


def compiler() -> str | None:
    """Path of the C++ compiler, if there is one."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    return next((path for path in map(shutil.which, names) if path), None)


@functools.cache
def instruction_set() -> str:
    """What instructions this processor has: a hash of all, and those that torch names."""
    capabilities = torch.cpu.get_capabilities()
    named = sorted(name for name, value in capabilities.items() if value is True)
    return " ".join((processor.instructions(), *named))
