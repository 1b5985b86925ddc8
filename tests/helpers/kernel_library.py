"""The library of kernels, compiled for this machine, for tests that call kernels."""

from __future__ import annotations

import ctypes
import functools
import shutil

import pytest

from abele.kernels import binding, build
from abele.targets.cpu.compiler import instruction_set

COMPILER = shutil.which("g++") or shutil.which("clang++")
#: For ``pytestmark`` of a module.
NEEDS_COMPILER = [
    pytest.mark.compiler,
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on PATH"),
]


@functools.cache
def kernels() -> ctypes.CDLL:
    """The library that programs use, loaded."""
    assert COMPILER is not None
    return binding.load(build.shared_library(COMPILER, instruction_set()))
