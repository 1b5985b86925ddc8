"""The C++ compiler of this machine, its instruction set, and the self-test of its code."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import shlex
import sys
from collections.abc import Collection
from pathlib import Path

import torch

from abele import arena, processor, systems
from abele.errors import CompilerError
from abele.kernels import build, packaged, self_test, sources
from abele.kernels.build import cache_folder, tool_output
from abele.kernels.sources import FLAGS, fitting
from abele.storage import atomic

__all__ = ["compiler", "identity", "instruction_set", "kernel_problem", "with_planned_places"]

# What GCC and clang read of the environment that changes which headers, passes or libraries they
# use. Where a name is set, its value is part of the compiler's identity.
_ENVIRONMENT = (
    *("CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"),
    *("CCC_OVERRIDE_OPTIONS", "CCC_ADD_ARGS"),
)
# Macros of the compiler and, by ``cstddef``, of the C++ library and the C library.
_MACROS = ("-x", "c++", "-include", "cstddef", "-dM", "-E", os.devnull)
_INSTALL = "macOS: brew install gcc" if sys.platform == "darwin" else "Debian: apt-get install g++"
_ELF = b"\x7fELF"
_NAMES = ("g++", "gcc", "clang")


# zig spells the levels of x86-64 otherwise.
_ZIG = """#!/bin/sh
for argument; do
  shift
  case $argument in -march=x86-64-*) argument=-march=x86_64_${{argument#-march=x86-64-}} ;; esac
  set -- "$@" "$argument"
done
exec {} c++ "$@"
"""


def compiler() -> str | None:
    """Return the path of the C++ compiler; that of the package ``ziglang`` if there is no other."""
    return sources.compiler() or (None if os.environ.get("CXX") else _zig())


@functools.cache
def _zig() -> str | None:
    found = importlib.util.find_spec("ziglang")
    if found is None or found.origin is None:
        return None
    script = cache_folder() / "zig-c++"
    with contextlib.suppress(OSError):
        atomic.write_text(
            script, _ZIG.format(shlex.quote(str(Path(found.origin).with_name("zig"))))
        )
        script.chmod(0o755)
        return str(script)
    return None


@functools.cache
def instruction_set() -> str:
    """Return the CPU's instruction set: a hash of all extensions, and those torch names."""
    capabilities = torch.cpu.get_capabilities()
    named = sorted(name for name, value in capabilities.items() if value is True)
    return " ".join((processor.instructions(), *named))


def with_planned_places() -> bool:
    """Compile the allocator of planned tensor memory; return whether it is usable."""
    path = compiler()
    if path is not None:
        with contextlib.suppress(CompilerError):  # costs memory, nothing else
            return arena.made(path)
    return arena.available()


def identity() -> str:
    """Return the C++ compiler's version with a hash of macros and environment variables.

    The macros are those it defines for our flags on this processor (which have the versions of
    the C++ and C libraries, too); the variables change what it does. Empty without a compiler.
    """
    path = compiler()
    if path is None:
        return ""
    about = os.stat(path)
    variables = tuple((name, os.environ[name]) for name in _ENVIRONMENT if os.environ.get(name))
    return _identity(os.path.realpath(path), path, about.st_size, about.st_mtime_ns, variables)


@functools.cache
def _identity(
    real: str, path: str, size: int, mtime_ns: int, variables: tuple[tuple[str, str], ...]
) -> str:
    """Query the compiler's version and macros, or read them from the user's cache.

    A query takes 15 ms. A compiler's binary is identified by size and time; a script or ``ccache``
    is not, so each process queries those.
    """
    flags = fitting(path, FLAGS)  # others once the user installs clang's OpenMP
    name = repr((real, size, mtime_ns, variables, instruction_set(), flags, _MACROS))
    kept = cache_folder() / f"compiler_{hashlib.sha256(name.encode()).hexdigest()[:16]}.txt"
    keeps = _tells_by_its_file(real)
    if keeps:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return kept.read_text(encoding="utf-8")
    try:
        version = tool_output([path, "--version"])
        macros = tool_output([path, *flags, *_MACROS])
    except CompilerError:
        return f"unknown: {real}"  # whoever compiles with it gets the message
    digest = hashlib.sha256("\0".join((version, macros, repr(variables))).encode()).hexdigest()[:12]
    said = f"{digest} {next(iter(version.splitlines()), '')}"
    if keeps:
        with contextlib.suppress(OSError):
            atomic.write_text(kept, said)
    return said


def why_unusable(path: str | None) -> str | None:
    """Return why a C++ compiler, None if there is none, is unusable; None if it probably works."""
    if path is None and not systems.POSIX:
        return systems.elsewhere("compiled programs need")
    if path is None:
        wanted = os.environ.get("CXX") or "g++ or clang++"
        return (
            f"no C++ compiler was found (looked for {wanted} on PATH). Install one ({_INSTALL}; "
            "where you may not: pip install 'abele[compiler]') or set CXX to its path."
        )
    if sys.platform != "darwin" or sources.has_openmp(path):
        return None
    return (
        f"{path} has no OpenMP, and without it no program has been compiled on macOS yet. "
        f"Install a compiler that has it ({_INSTALL}) and set CXX to its path."
    )


def _tells_by_its_file(real: str) -> bool:
    """Return whether a path is a compiler's binary, not a script or another program."""
    try:
        with open(real, "rb") as file:
            return any(each in Path(real).name for each in _NAMES) and file.read(4) == _ELF
    except OSError:
        return False


def kernel_problem(
    library: ctypes.CDLL, kinds: Collection[str] | None = None, *, noted: bool
) -> str | None:
    """Return why compiled kernels fail their self-test; None if they pass.

    Args:
        library: the code of a program, or all kernels.
        kinds: kernel kinds that the program calls; None: all that the code was linked with.
        noted: see ``Compiled.kernel_problem``.
    """
    path = compiler()
    if not noted or (path is None and packaged.folder() is None):
        return self_test.problem(library, kinds)
    objects = functools.partial(build.linkable, path or "g++", instruction_set())
    return self_test.problem(library, kinds, objects)
