"""Compiles the kernels once per machine: objects to link, an archive of them, a library to load.

Emitted programs link the objects whose kernels they call, and Inductor's the archive; programs that
run operator by operator load the library. The names of all hold a hash of everything that decides
their code; two versions never meet. Each object is kept as it is compiled, so that runs that end
sooner than the compiler come to the end of it together.
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
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

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
    "conv_depthwise.cpp": 2.3,
    "conv_pointwise.cpp": 0.9,
    "upsample.cpp": 0.5,
    "conv.cpp": 0.4,
    "adam.cpp": 0.4,
    "sgd.cpp": 0.4,
    "calls.cpp": 0.4,
}
#: What Inductor's code calls; only this knows torch, so it is in the archive alone.
SHIMS = {"shims.cpp": 0.6}
# Archive and library, of objects; the same unit.
_LINK_S = 0.3
#: The sources of which functions of these kinds are made, with all that they call.
KINDS = {
    "threads": ("calls.cpp",),
    "products": ("product.cpp", "calls.cpp"),
    "attention": ("attention.cpp", "calls.cpp"),
    "rows": ("rows.cpp",),
    "pools": ("max_pool.cpp",),
    "depthwise": ("conv_depthwise.cpp", "calls.cpp"),
    "convolutions": (
        *("conv.cpp", "conv_channels_last.cpp", "conv_pixels.cpp"),
        *("conv_planes.cpp", "conv_planes_half.cpp", "calls.cpp"),
    ),
}
#: What to do where they cannot be compiled.
ADVICE = "Set CXX to another C++ compiler (g++ 11 or clang++ 14, or later)."
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

#: In a command that makes a file: the path of that file; ``compile.native`` knows it, too.
RESULT = "{result}"


class Making(NamedTuple):
    """A file, and what makes it.

    Attributes:
        command: its part ``RESULT`` stands for the path of a file that will be moved to ``path``.
        path: where the file belongs.
    """

    command: list[str]
    path: str


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


def compile_objects(compiler: str, instruction_set: str, sources: Collection[str]) -> None:
    """Compile objects of some sources, unless they or the archive are there.

    Args:
        compiler: path of the C++ compiler.
        instruction_set: what this processor has; another one needs other objects.
        sources: of ``KERNELS``.

    Raises:
        CompilerError: the compiler does not accept the kernels.
    """
    paths = _paths(compiler, instruction_set)
    if _missing(paths, sources):
        kept = _objects_folder(paths)
        with turn(cache_folder(), WAITS_S):
            kept.mkdir(exist_ok=True)
            _compile(compiler, kept, sources)


def linkable(compiler: str, instruction_set: str, sources: Iterable[str]) -> list[str]:
    """Return what a program links that calls kernels of some sources: the archive if it is there.

    Takes what ``compile_objects`` does, which need not have come to its end.
    """
    paths = _paths(compiler, instruction_set)
    if paths[0].is_file():
        return [str(paths[0])]
    kept = _objects_folder(paths)
    return [str(_object(kept, source)) for source in sources]


def makings(
    compiler: str, instruction_set: str, sources: Collection[str] | None = None
) -> list[list[Making]]:
    """Return what makes the files that are missing, for another process to do.

    Args:
        compiler: path of the C++ compiler.
        instruction_set: what this processor has.
        sources: those whose objects are wanted; None: all, with archive and library.

    Returns:
        Stages: what one makes is there before the next begins; files of one may be made at once.
    """
    paths = _paths(compiler, instruction_set)
    kept = _objects_folder(paths)
    objects = [
        Making([*_compiling(compiler, source), "-o", RESULT], str(_object(kept, source)))
        for source in _missing(paths, sources)
    ]
    if sources is not None or _are_there(paths):
        return [objects]
    return [objects, _linking(compiler, paths)]


def make(making: Making) -> None:
    """Make a file; a crash of the system leaves all of it, or none.

    Raises:
        CompilerError: the command fails.
    """
    with temporary.folder(cache_folder()) as folder:
        made = os.path.join(folder, os.path.basename(making.path))
        tool_output([made if part == RESULT else part for part in making.command])
        _published(made, Path(making.path))


def missing_s(compiler: str, instruction_set: str, sources: Collection[str] | None = None) -> float:
    """Return the processor time that making what is not there takes, in seconds; 0 if nothing.

    Takes what ``makings`` does, and raises what ``static_library`` does.
    """
    paths, seconds = _paths(compiler, instruction_set), KERNELS | SHIMS
    compiling = sum(seconds[each] for each in _missing(paths, sources))
    return compiling + (_LINK_S if sources is None and not _are_there(paths) else 0.0)


def _missing(paths: tuple[Path, Path], sources: Collection[str] | None) -> list[str]:
    """Sources that are still to be compiled: for programs that link them, or for both libraries."""
    archive_does = sources is not None and paths[0].is_file()
    if archive_does or _are_there(paths):
        return []
    kept = _objects_folder(paths)
    wanted = _all() if sources is None else sources
    return [source for source in wanted if not _object(kept, source).is_file()]


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
    """Where the objects of archive and library are."""
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
            if not _are_there(paths):
                _make(compiler, paths)
    return paths


def _are_there(paths: tuple[Path, Path]) -> bool:
    return all(path.is_file() for path in paths)


def _make(compiler: str, paths: tuple[Path, Path]) -> None:
    kept = _objects_folder(paths)
    kept.mkdir(exist_ok=True)
    _compile(compiler, kept, _all())
    try:
        for each in _linking(compiler, paths):
            make(each)
    except CompilerError:  # one of them is damaged: the next run compiles all again
        shutil.rmtree(kept, ignore_errors=True)
        raise


def _all() -> tuple[str, ...]:
    return (*KERNELS, *SHIMS)


def _published(made: str, path: Path) -> None:
    """Move a file to where others look for it; a crash of the system leaves all of it, or none."""
    with open(made, "rb") as file:
        os.fsync(file.fileno())
    os.replace(made, path)


def _linking(compiler: str, paths: tuple[Path, Path]) -> list[Making]:
    """What makes archive and library of the objects."""
    kept, (archive, library) = _objects_folder(paths), paths
    kernels, shims = ([str(_object(kept, each)) for each in some] for some in (KERNELS, SHIMS))
    archiver = os.environ.get("AR") or "ar"
    return [
        Making([archiver, "rcs", RESULT, *kernels, *shims], str(archive)),
        Making([compiler, "-shared", "-fopenmp", "-s", "-o", RESULT, *kernels], str(library)),
    ]


def _compile(compiler: str, kept: Path, sources: Iterable[str]) -> None:
    """Compile what an earlier run has not; one that is ended meanwhile loses unfinished ones."""
    with temporary.folder(cache_folder()) as folder, ThreadPoolExecutor(os.cpu_count()) as pool:

        def one(source: str) -> None:
            path = _object(kept, source)
            if not path.is_file():
                (made,) = compiled(compiler, folder, [source])
                _published(made, path)

        list(pool.map(one, sources))


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
    objects = [os.path.join(folder, f"{Path(source).name}.o") for source in sources]

    def one(source: str, output: str) -> None:
        tool_output([*_compiling(compiler, source, flags), "-o", output])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, sources, objects))
    return objects


def _compiling(compiler: str, source: str, flags: Sequence[str] = FLAGS) -> list[str]:
    headers = Path(torch.__file__).parent / "include"
    return [compiler, *flags, f"-I{headers}", "-c", str(FOLDER / source)]


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
            f"abele's kernels could not be compiled: {command[0]} failed. {ADVICE}",
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
