"""Compiles the kernels once per machine: object files to link, and a shared library.

Emitted programs link the objects whose kernels they call; programs that run operator by operator
load the library. File names contain a hash of everything that decides the code, so versions never
mix. Each object is cached as soon as it is compiled, so that interrupted runs make progress. A
package installed from a wheel may contain objects and library (``packaged.py``), used instead.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from abele.compilers import compiler_pool, run_compiler
from abele.errors import CompilerError
from abele.kernels import packaged, sources
from abele.kernels.sources import KERNELS
from abele.storage import files, temporary
from abele.storage.files import folder_lock
from abele.warn import warn_user

#: A pseudo source name: the library of all kernels for Python.
LIBRARY = "library"
_LINK_S = 0.2  # that linking it takes, in the same unit as ``KERNELS``
#: Advice in errors of what a compiler rejects, and of files that cannot be read or written.
ADVICE = "Set CXX to another C++ compiler (g++ 11 or clang++ 14, or later)."
FOLDERS = (
    "Compiling needs a temporary folder (TMPDIR) and a cache (XDG_CACHE_HOME, else ~/.cache) that "
    "can be written and have free space."
)
#: Seconds to wait for another process that compiles the same kernels.
WAITS_S = 120.0

#: Placeholder of the output path in a compile command; also used by ``compile.native``.
RESULT = "{result}"


class Making(NamedTuple):
    """A compile or link command and its output file.

    Attributes:
        command: its part ``RESULT`` stands for the path of a file that will be moved to ``path``.
        path: where the file belongs.
    """

    command: list[str]
    path: str


class Places(NamedTuple):
    """Paths of the compiled kernel library and object files, which may not exist yet.

    Attributes:
        library: for ``binding.load``.
        objects: the folder of the objects, one for each source.
    """

    library: Path
    objects: Path

    def object(self, source: str) -> Path:
        """Return the object-file path of a kernel source."""
        return self.objects / f"{source}.o"


def shared_library(compiler: str, instruction_set: str) -> bytes:
    """Return the bytes of the kernel library, compiled if missing.

    Args:
        compiler: path of the C++ compiler; not needed for a library that the package contains.
        instruction_set: what this processor has; another one needs another library.

    Raises:
        CompilerError: the compiler does not accept the kernels.
    """
    with files.open_regular(library(compiler, instruction_set)) as file:
        return file.read()


def library(compiler: str, instruction_set: str) -> Path:
    """Return the path of the kernel library; arguments and errors as in ``shared_library``."""
    compile_objects(compiler, instruction_set, [LIBRARY])
    return _places(compiler, instruction_set).library


def compile_objects(compiler: str, instruction_set: str, names: Collection[str]) -> None:
    """Compile kernel sources to object files if missing.

    If several processes (instances of a program) need them at the same time, one compiles.

    Args:
        compiler: path of the C++ compiler.
        instruction_set: what this processor has; another one needs other objects.
        names: of sources, and maybe ``LIBRARY``.

    Raises:
        CompilerError: the compiler does not accept the kernels.
    """
    if not any(makings(compiler, instruction_set, names)):
        return
    with folder_lock(cache_folder(), WAITS_S), compiler_pool(os.cpu_count()) as pool:
        try:
            for stage in makings(compiler, instruction_set, names):
                list(pool.map(make, stage))
        except CompilerError:  # an object may be damaged: the next run compiles all again
            shutil.rmtree(_places(compiler, instruction_set).objects, ignore_errors=True)
            raise


def linkable(compiler: str, instruction_set: str, names: Iterable[str]) -> list[str]:
    """Return the paths of kernel sources' object files, which may not exist yet, for linking."""
    places = _places(compiler, instruction_set)
    return [str(places.object(name)) for name in names]


def makings(
    compiler: str, instruction_set: str, names: Collection[str] | None = None
) -> list[list[Making]]:
    """Return the compile and link commands of missing kernel files, for any process to run.

    Args:
        compiler: path of the C++ compiler.
        instruction_set: what this processor has.
        names: as for ``compile_objects``; None: all.

    Returns:
        Stages of commands: those of a stage may run in parallel, after the stage before.
    """
    places = _places(compiler, instruction_set)
    flags = sources.flags(packaged.level())
    objects = [
        Making(
            [*sources.compiling(compiler, source, flags), "-o", RESULT], str(places.object(source))
        )
        for source in _missing(places, names)
    ]
    if not _wants_library(places, names):
        return [objects]
    linked = [str(places.object(source)) for source in KERNELS]
    return [
        objects,
        [Making(sources.linking(compiler, linked, RESULT), str(places.library))],
    ]


def make(making: Making) -> None:
    """Run a compile or link command; its output file appears atomically.

    Raises:
        CompilerError: the command fails.
    """
    path = Path(making.path)
    with temporary.folder(cache_folder()) as folder:
        made = os.path.join(folder, path.name)
        tool_output([made if part == RESULT else part for part in making.command])
        try:
            with open(made, "rb") as file:
                os.fsync(file.fileno())
        except FileNotFoundError as error:
            raise CompilerError(
                f"The C++ compiler made no file, and said nothing. {ADVICE}"
            ) from error
        path.parent.mkdir(exist_ok=True)
        os.replace(made, path)


def compile_with(
    compiler: str, folder: str, names: Iterable[str], flags: Collection[str]
) -> list[str]:
    """Compile kernel sources with other flags than the library's; return the object files.

    Args:
        compiler: path of the C++ compiler.
        folder: receives the objects.
        names: names of sources of this package, or paths.
        flags: arguments of the compiler.

    Raises:
        CompilerError: the compiler does not accept a source.
    """
    objects = {name: os.path.join(folder, f"{Path(name).name}.o") for name in names}

    def one(name: str) -> None:
        tool_output([*sources.compiling(compiler, name, flags), "-o", objects[name]])

    with compiler_pool(os.cpu_count()) as pool:
        list(pool.map(one, objects))
    return list(objects.values())


def missing_s(compiler: str, instruction_set: str, names: Collection[str] | None = None) -> float:
    """Return the CPU seconds needed to build missing kernel files; 0 if there are none.

    Arguments as for ``makings``, errors as for ``shared_library``.
    """
    places = _places(compiler, instruction_set)
    linking = _LINK_S if _wants_library(places, names) else 0.0
    return sum(KERNELS[each] for each in _missing(places, names)) + linking


def _wants_library(places: Places, names: Collection[str] | None) -> bool:
    return (names is None or LIBRARY in names) and not places.library.is_file()


def _missing(places: Places, names: Collection[str] | None) -> list[str]:
    """Return the kernel sources still to be compiled."""
    wanted = KERNELS if _wants_library(places, names) else names or ()
    in_order = (source for source in KERNELS if source in wanted)
    return [source for source in in_order if not places.object(source).is_file()]


def _places(compiler: str, instruction_set: str) -> Places:
    brought = packaged.folder()
    # Objects of a wheel call OpenMP.
    if brought is not None and sources.has_openmp(compiler):
        return Places(brought / packaged.LIBRARY, brought)
    parts = (
        sources.fingerprint(),
        _version(compiler),
        *sources.fitting(compiler, ("-fopenmp",)),
        packaged.level() or instruction_set,
        platform.machine(),
        torch.__version__,
    )
    name = hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()[:16]
    made = cache_folder() / f"abele_shared_{name}.so"
    return Places(made, made.with_suffix(".objects"))


@functools.cache
def _version(compiler: str) -> str:
    return tool_output([compiler, "--version"])


def tool_output(command: list[str]) -> str:
    """Return the standard output of a compiler command.

    Raises:
        CompilerError: it fails; its output is the log.
    """
    try:
        done = run_compiler(command)
    except OSError as error:
        raise CompilerError(f"{command[0]} could not be started: {error.strerror}.") from error
    if done.returncode != 0:
        raise CompilerError(
            f"abele's kernels could not be compiled: {command[0]} failed. {advice(done.stderr)}",
            log=f"{' '.join(command)}\n{done.stdout}{done.stderr}",
        )
    return done.stdout


def advice(log: str) -> str:
    """Return what to do about a compiler that failed, by its output."""
    return FOLDERS if re.search("No space left|Read-only file system", log) else ADVICE


@functools.cache
def cache_folder() -> Path:
    """Return the user's cache folder, or a temporary folder of this process if not writable.

    Where neither can be written it is one that cannot exist: nothing is found or kept there.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base).absolute() / "abele"  # the program may change its working directory
    if base.startswith("~"):
        problem = "There is no home folder for them"
    else:
        problem = f"{folder} cannot be written"
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
                return folder
    warn_user(
        "Compiled kernels are not kept for the next process, which compiles them again. "
        f"{problem}: set XDG_CACHE_HOME to a folder that can be written.",
        RuntimeWarning,
    )
    with contextlib.suppress(OSError):
        return Path(temporary.made_folder("kernels-"))
    return Path(os.devnull) / "abele"
