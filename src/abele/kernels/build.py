"""Compiles the kernels once per machine, into an archive to link and a library to load.

Compiled programs link the archive, programs that run operator by operator load the library; both
hold the same objects. Their names hold a hash of everything that decides their code; two versions
never meet.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from abele.errors import CompilerError
from abele.storage import files, temporary
from abele.storage.turns import turn

FOLDER = Path(__file__).parent

#: The functions of abi.h; they need nothing but the C++ library and OpenMP. What takes longest to
#: compile comes first.
KERNELS = (
    *(
        "conv_winograd.cpp",
        "conv_winograd_half.cpp",
        "conv_planes.cpp",
        "conv_planes_half.cpp",
        "conv_channels_last.cpp",
    ),
    "conv_patches.cpp",
    *("conv_pixels.cpp", "attention.cpp", "product.cpp", "conv.cpp"),
    *("max_pool.cpp", "norm_activation.cpp", "upsample.cpp", "adam.cpp", "rows.cpp"),
    "calls.cpp",
)
#: What Inductor's code calls; only this knows torch, so it is in the archive alone.
SHIMS = ("shims.cpp",)
#: Processor time that compiling all of it takes, in seconds; measured with g++ 12.
COMPILE_S = 35.0
#: How long to wait for another process that compiles the same, in seconds.
WAITS_S = 120.0

# No -ffast-math: NaN and infinity must keep their meaning.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wno-psabi",
)


@functools.cache
def fingerprint() -> str:
    """Return a hash of the sources and flags; needs no compiler."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for source in sorted((*FOLDER.glob("*.cpp"), *FOLDER.glob("*.h"))):
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def static_library(compiler: str, instruction_set: str) -> Path:
    """Return the archive for compiled programs to link, compiled unless it is there already.

    Args:
        compiler: path of the C++ compiler.
        instruction_set: what this processor has; another one needs another library.

    Raises:
        CompilerError: the compiler does not accept the kernels.
    """
    return _libraries(compiler, instruction_set)[0]


def shared_library(compiler: str, instruction_set: str) -> bytes:
    """Return the library for ``binding.load``, compiled unless it is there already.

    Takes and raises what ``static_library`` does.
    """
    with files.open_regular(_libraries(compiler, instruction_set)[1]) as file:
        return file.read()


def missing(compiler: str, instruction_set: str) -> bool:
    """Whether they would be compiled now. Takes and raises what ``static_library`` does."""
    return not all(path.is_file() for path in _paths(compiler, instruction_set))


def _paths(compiler: str, instruction_set: str) -> tuple[Path, Path]:
    """Of archive and library, which may not be there yet."""
    parts = (
        fingerprint(),
        _version(compiler),
        instruction_set,
        platform.machine(),
        torch.__version__,
    )
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    # Names that differ: where both could be meant, linkers take the shared one.
    folder = cache_folder()
    return folder / f"libabele_archive_{name}.a", folder / f"abele_shared_{name}.so"


@functools.cache
def _version(compiler: str) -> str:
    return tool_output([compiler, "--version"])


def _libraries(compiler: str, instruction_set: str) -> tuple[Path, Path]:
    """Return archive and library; if one is missing, both are made.

    Of processes that start at once, instances of a program for example, one compiles.
    """
    paths = _paths(compiler, instruction_set)
    if missing(compiler, instruction_set):
        with turn(cache_folder(), WAITS_S):
            if missing(compiler, instruction_set):
                _make(compiler, paths)
    return paths


def _make(compiler: str, paths: tuple[Path, Path]) -> None:
    with temporary.folder(cache_folder()) as folder:
        objects = compiled(compiler, folder, (*KERNELS, *SHIMS))
        kernels = objects[: len(KERNELS)]
        archive, library = (os.path.join(folder, path.name) for path in paths)
        tool_output([os.environ.get("AR") or "ar", "rcs", archive, *objects])
        tool_output([compiler, "-shared", "-fopenmp", "-s", "-o", library, *kernels])
        for made, path in zip((archive, library), paths, strict=True):
            os.replace(made, path)


def compiled(
    compiler: str, folder: str, sources: Sequence[str], flags: Sequence[str] = FLAGS
) -> list[str]:
    """Compile several sources at once.

    Args:
        compiler: path of the C++ compiler.
        folder: where the objects go.
        sources: names in this folder, or paths.
        flags: for the compiler.

    Returns:
        Paths of the objects, in the order of ``sources``.

    Raises:
        CompilerError: the compiler does not accept one of them.
    """
    headers = Path(torch.__file__).parent / "include"
    objects = [os.path.join(folder, f"{Path(source).name}.o") for source in sources]

    def one(source: str, output: str) -> None:
        tool_output([compiler, *flags, f"-I{headers}", "-c", str(FOLDER / source), "-o", output])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, sources, objects))
    return objects


def tool_output(command: list[str]) -> str:
    """Return what a command prints.

    Raises:
        CompilerError: it fails; its output is the log.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompilerError(f"{command[0]} could not be started: {error.strerror}.") from error
    if done.returncode != 0:
        raise CompilerError(
            f"abele's kernels could not be compiled: {command[0]} failed. "
            "Set CXX to another C++ compiler (g++ 11 or clang++ 14, or later).",
            log=f"{' '.join(command)}\n{done.stdout}{done.stderr}",
        )
    return done.stdout


@functools.cache
def cache_folder() -> Path:
    """Return the user's cache, or a folder of this process alone where that cannot be written."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "abele"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if folder.is_dir() and os.access(folder, os.W_OK):
        return folder
    temporary.sweep()
    return Path(tempfile.mkdtemp(prefix=f"{temporary.prefix()}kernels-"))
