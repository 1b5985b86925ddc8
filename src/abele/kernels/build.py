"""Compiles the kernels once per machine, into an archive to link and a library to load.

Compiled programs link the archive, programs that run operator by operator load the library; both
hold the same objects. Their names hold a hash of everything that decides their code; two versions
never meet. Objects are kept as they are compiled, so that runs that end sooner than the compiler
come to the end of it together.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import shutil
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

#: The functions of abi.h; they need nothing but the C++ library and OpenMP. Beside each, the
#: processor time that g++ 12 takes, in seconds; what takes longest comes first.
KERNELS = {
    "product.cpp": 4.3,
    "conv_winograd.cpp": 4.3,
    "conv_channels_last.cpp": 3.9,
    "conv_winograd_half.cpp": 3.7,
    "attention.cpp": 2.7,
    "conv_planes.cpp": 2.7,
    "conv_planes_half.cpp": 2.5,
    "rows.cpp": 2.4,
    "conv_patches.cpp": 2.1,
    "norm_activation.cpp": 1.9,
    "conv_pixels.cpp": 1.5,
    "max_pool.cpp": 0.8,
    "upsample.cpp": 0.5,
    "conv.cpp": 0.4,
    "adam.cpp": 0.4,
    "calls.cpp": 0.4,
}
#: What Inductor's code calls; only this knows torch, so it is in the archive alone.
SHIMS = {"shims.cpp": 0.6}
# Archive and library, of objects; the same unit.
_LINK_S = 0.3
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


def missing_s(compiler: str, instruction_set: str) -> float:
    """Return the processor time that compiling what is not there takes, in seconds; 0 if nothing.

    Takes and raises what ``static_library`` does.
    """
    paths = _paths(compiler, instruction_set)
    if all(path.is_file() for path in paths):
        return 0.0
    kept = _objects_folder(paths)
    sources = (KERNELS | SHIMS).items()
    return _LINK_S + sum(s for source, s in sources if not _object(kept, source).is_file())


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


def _objects_folder(paths: tuple[Path, Path]) -> Path:
    """Where objects are until both libraries are there."""
    return paths[0].with_suffix(".objects")


def _object(folder: Path, source: str) -> Path:
    return folder / f"{source}.o"


def _libraries(compiler: str, instruction_set: str) -> tuple[Path, Path]:
    """Return archive and library; if one is missing, both are made.

    Of processes that start at once, instances of a program for example, one compiles.
    """
    paths = _paths(compiler, instruction_set)
    if not _are_there(paths):
        with turn(cache_folder(), WAITS_S):
            try:
                if not _are_there(paths):
                    _make(compiler, paths)
            except (CompilerError, OSError):
                # One that did not wait any longer has made them, and deleted the objects.
                if not _are_there(paths):
                    raise
    return paths


def _are_there(paths: tuple[Path, Path]) -> bool:
    return all(path.is_file() for path in paths)


def _make(compiler: str, paths: tuple[Path, Path]) -> None:
    kept = _objects_folder(paths)
    kept.mkdir(exist_ok=True)
    objects = _objects(compiler, kept)
    try:
        with temporary.folder(cache_folder()) as folder:
            archive, library = (os.path.join(folder, path.name) for path in paths)
            tool_output([os.environ.get("AR") or "ar", "rcs", archive, *objects])
            kernels = objects[: len(KERNELS)]
            tool_output([compiler, "-shared", "-fopenmp", "-s", "-o", library, *kernels])
            for made, path in zip((archive, library), paths, strict=True):
                os.replace(made, path)
    finally:  # also where one of them is damaged: the next run compiles all again
        shutil.rmtree(kept, ignore_errors=True)


def _objects(compiler: str, kept: Path) -> list[str]:
    """Compile what an earlier run has not; one that is ended meanwhile loses unfinished ones."""
    with temporary.folder(cache_folder()) as folder, ThreadPoolExecutor(os.cpu_count()) as pool:

        def one(source: str) -> str:
            path = _object(kept, source)
            if not path.is_file():
                (made,) = compiled(compiler, folder, [source])
                os.replace(made, path)
            return str(path)

        return list(pool.map(one, (*KERNELS, *SHIMS)))


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
