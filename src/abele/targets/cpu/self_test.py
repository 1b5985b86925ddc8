"""Self-test of the library kernels in the code of a program for this machine's processor."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Collection

from abele.kernels import build, packaged, self_test
from abele.targets.cpu.compiler import compiler, instruction_set


def kernel_problem(
    library: ctypes.CDLL, kinds: Collection[str] | None = None, *, noted: bool
) -> str | None:
    """Return what is wrong with kernels; None if they pass.

    Args:
        library: the code of a program, or all kernels.
        kinds: of the kernels that the program calls; None: all that the code was linked with.
        noted: see ``Compiled.kernel_problem``.
    """
    path = compiler()
    if not noted or (path is None and packaged.folder() is None):
        return self_test.problem(library, kinds)
    objects = functools.partial(build.linkable, path or "g++", instruction_set())
    return self_test.problem(library, kinds, objects)
