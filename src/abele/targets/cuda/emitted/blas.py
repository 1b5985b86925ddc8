"""The libraries of NVIDIA that multiply matrices for torch.

cuBLAS and cuBLASLt choose among the same kinds of kernels by rules of their own, and each is
slower than the other for some sizes: on an H200, 64 x 1024 x 1024 takes 12 us with cuBLAS and 23
with cuBLASLt, 16 x 256 x 256 takes 31 and 3.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Generator

import torch

from abele.targets.translation.operations import Foreign

aten = torch.ops.aten

#: What torch calls unless told otherwise, and the other one.
USUAL, OTHER = "cublas", "cublaslt"
NAMES = (USUAL, OTHER)

_PRODUCTS = {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default}


def is_product(step: object) -> bool:
    """Return whether cuBLAS or cuBLASLt computes a step."""
    return isinstance(step, Foreign) and step.target in _PRODUCTS


@contextlib.contextmanager
def using(name: str | None) -> Generator[None]:
    """Let torch call a library for products while open, in all threads; None changes nothing."""
    if name is None:
        yield
        return
    before = torch.backends.cuda.preferred_blas_library()
    if name == OTHER:
        _use_silently_once()
    torch.backends.cuda.preferred_blas_library(name)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


@functools.cache
def _use_silently_once() -> None:
    """Torch says so at the first use, past Python, on the standard error of the process."""
    sys.stderr.flush()
    try:
        stderr = os.dup(2)
    except OSError:  # it is closed
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        torch.backends.cuda.preferred_blas_library(OTHER)
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
