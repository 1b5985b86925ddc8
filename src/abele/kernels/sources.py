"""Kernel source files and compiler flags; needs only Python's standard library.

``hatch_build.py`` reads this file, too: it compiles the kernels that a wheel brings.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

FOLDER = Path(__file__).parent

#: Sources of the functions in abi.h, which need only the C++ library and threads, with the
#: compile time by g++ 12 in CPU seconds; the longest comes first.
KERNELS = {
    "conv_winograd.cpp": 5.1,
    "product.cpp": 4.3,
    "conv_channels_last.cpp": 3.9,
    "conv_winograd_half.cpp": 3.5,
    "attention.cpp": 2.7,
    "conv_planes.cpp": 2.7,
    "conv_planes_half.cpp": 2.5,
    "rows.cpp": 2.4,
    "conv_depthwise.cpp": 2.3,
    "conv_patches.cpp": 2.1,
    "norm_activation.cpp": 1.9,
    "conv_pixels.cpp": 1.5,
    "recurrent.cpp": 1.0,
    "conv_pointwise.cpp": 0.9,
    "conv_clamped.cpp": 2.0,
    "max_pool.cpp": 0.8,
    "upsample.cpp": 0.5,
    "conv.cpp": 0.4,
    "updates.cpp": 0.7,
    "calls.cpp": 0.4,
    "checksum.cpp": 0.4,
    "product_bfloat16.cpp": 0.8,
}
#: Sources of each kind of kernels, with the sources of all functions that they call.
KINDS = {
    "threads": ("calls.cpp",),
    "products": ("product.cpp", "calls.cpp"),
    "bfloat16_products": ("product_bfloat16.cpp", "calls.cpp"),
    "attention": ("attention.cpp", "calls.cpp"),
    "recurrent": ("recurrent.cpp", "product.cpp", "calls.cpp"),
    "rows": ("rows.cpp",),
    "pools": ("max_pool.cpp",),
    "depthwise": ("conv_depthwise.cpp", "calls.cpp"),
    "convolutions": (
        *("conv.cpp", "conv_channels_last.cpp", "conv_pixels.cpp"),
        *("conv_planes.cpp", "conv_planes_half.cpp", "calls.cpp"),
    ),
    "winograd": ("conv_winograd.cpp", "conv_winograd_half.cpp", "calls.cpp"),
    "pointwise": ("conv_pointwise.cpp", "product.cpp", "calls.cpp"),
    "patches": ("conv_patches.cpp", "calls.cpp"),
    "clamped": ("conv_clamped.cpp", "product.cpp", "calls.cpp"),
    "upsampling": ("upsample.cpp", "calls.cpp"),
    "norms": ("norm_activation.cpp", "calls.cpp"),
    "checksums": ("checksum.cpp",),
    "adam": ("updates.cpp",),
    "sgd": ("updates.cpp",),
}

_OPENMP = ("-std=c++17", "-fopenmp")
# What own_threads.h needs, the threads of kernels where a compiler lacks OpenMP.
_OWN_THREADS = ("-std=c++20", "-pthread")
# No -ffast-math: NaN and infinity must keep their meaning.
_FLAGS = (
    *_OPENMP,
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wno-psabi",
)
#: Compiler flags of programs that only this machine runs.
FLAGS = (*_FLAGS, "-march=native")

_V3 = frozenset(("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"))
#: The levels of processors that kernels are compiled for, with instructions that Linux lists for
#: each; the highest comes first. Source: "micro-architecture levels" of the x86-64 psABI.
LEVELS = {
    "x86-64-v4": _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": _V3,
    "armv8.2-a": frozenset(("asimd", "asimdrdm", "atomics", "crc32")),
}


def compiler() -> str | None:
    """Return the path of the C++ compiler of this machine, or None; Windows has none that fits."""
    if sys.platform == "win32":
        return None
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    return next((path for path in map(shutil.which, names) if path), None)


def level(machine: str, instructions: Collection[str]) -> str | None:
    """Return the level of a processor; None if below all levels.

    Args:
        machine: its architecture, by Linux's name: an emulator of another one may list the
            instructions of the processor below it.
        instructions: that it has, by Linux's names.
    """
    has = frozenset(instructions)
    own = {name: needed for name, needed in LEVELS.items() if architecture(name) == machine}
    return next((name for name, needed in own.items() if needed <= has), None)


def architecture(level: str) -> str:
    """Return the architecture of a level, by the name that Linux and tags of wheels have for it."""
    return "x86_64" if level.startswith("x86-64") else "aarch64"


def flags(level: str | None) -> tuple[str, ...]:
    """Return the compiler's flags for kernels.

    Kernels for a level are as fast as those for one processor alone, and serve all of a cluster.

    Args:
        level: of ``LEVELS``; None: what this machine has.
    """
    if level is None:
        return FLAGS
    # clang divides vectors of 512 bits otherwise: this level does not say that they are fast.
    wide = ("-mprefer-vector-width=512",) if level == "x86-64-v4" else ()
    return (*_FLAGS, f"-march={level}", *wide)


@functools.cache
def has_openmp(compiler: str) -> bool:
    """Return whether a compiler has OpenMP; Apple's clang and zig have not."""
    if sys.platform == "linux" and Path(compiler).name.startswith("g++"):
        return True  # GCC, known without starting it
    header = (compiler, "-fopenmp", "-x", "c++", "-include", "omp.h", "-E", os.devnull)
    try:
        return subprocess.run(header, capture_output=True, check=False).returncode == 0
    except OSError:
        return True  # compiling says what is wrong


def fitting(compiler: str, flags: Collection[str]) -> tuple[str, ...]:
    """Return flags for a compiler: without OpenMP if it has none, with our own threads then."""
    if has_openmp(compiler):
        return tuple(flags)
    return (*_OWN_THREADS, *(flag for flag in flags if flag not in _OPENMP))


def compiling(compiler: str, source: str, flags: Collection[str]) -> list[str]:
    """Return the command that compiles a kernel source, without its output (``-o``).

    Args:
        compiler: path of the C++ compiler.
        source: a name in this folder, or a path.
        flags: for the compiler.
    """
    return [compiler, *fitting(compiler, flags), "-c", str(FOLDER / source)]


def linking(compiler: str, objects: Collection[str], library: str) -> list[str]:
    """Return the command that links the objects of all ``KERNELS`` to a shared library."""
    flags = fitting(compiler, ("-fopenmp",))
    return [compiler, "-shared", *flags, "-s", "-o", library, *objects]


@functools.cache
def fingerprint() -> str:
    """Return a hash of the kernel sources and flags; needs no compiler."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    digest.update(" ".join(flag for each in LEVELS for flag in flags(each)).encode())
    for source in sorted((*FOLDER.glob("*.cpp"), *FOLDER.glob("*.h"))):
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
