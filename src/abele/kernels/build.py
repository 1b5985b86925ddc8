"""Compiles the kernels once per machine: objects to link, and a library of all to load.

Emitted programs link the objects whose kernels they call; programs that run operator by operator
load the library. The names of both hold a hash of everything that decides their code; two versions
never meet. Each object is kept as it is compiled, so that runs that end sooner than the compiler
come to the end of it together. A package that was installed from a wheel may bring objects and
library (``packaged.py``); then these are used.
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
from abele.kernels import packaged, sources
from abele.kernels.sources import KERNELS
from abele.storage import files, temporary
from abele.storage.files import folder_lock

#: Among names of sources: all kernels as a library for Python.
LIBRARY = "library"
_LINK_S = 0.2  # that linking it takes, in the same unit as ``KERNELS``
#: What to do where they cannot be compiled.
ADVICE = "Set CXX to another C++ compiler (g++ 11 or clang++ 14, or later)."
#: How long to wait for another process that compiles the same, in seconds.
WAITS_S = 120.0

#: In a command that makes a file: the path of that file; ``compile.native`` knows it, too.
RESULT = "{result}"


class Making(NamedTuple):
    """A file and the command that compiles or links it.

    Attributes:
        command: its part ``RESULT`` stands for the path of a file that will be moved to ``path``.
        path: where the file belongs.
    """

    command: list[str]
    path: str


class Places(NamedTuple):
    """Paths of compiled files, which may not exist yet.

    Attributes:
        library: for ``binding.load``.
        objects: a folder; one for each source that the package does not bring compiled.
        packaged: the folder of those that it brings, or None.
    """

    library: Path
    objects: Path
    packaged: Path | None

    def object(self, source: str) -> Path:
        """Return the object of a source."""
        return (self.packaged or self.objects) / f"{source}.o"


def shared_library(compiler: str, instruction_set: str) -> bytes:
    """Return the library for ``binding.load``, compiled unless it is there already.

    Args:
        compiler: path of the C++ compiler; not needed for a library that the package brings.
        instruction_set: what this processor has; another one needs another library.

    Raises:
        CompilerError: the compiler does not accept the kernels.
    """
    brought = packaged.folder()
    if brought is not None:
        return (brought / packaged.LIBRARY).read_bytes()
    with files.open_regular(library(compiler, instruction_set)) as file:
        return file.read()


def library(compiler: str, instruction_set: str) -> Path:
    """Return the path of the library; arguments and errors are those of ``shared_library``.

    Of processes that want it at once, instances of a program for example, one compiles.
    """
    places = _places(compiler, instruction_set)
    if not places.library.is_file():
        with folder_lock(cache_folder(), WAITS_S):
            if not places.library.is_file():
                _make(compiler, places)
    return places.library


def compile_objects(compiler: str, instruction_set: str, names: Collection[str]) -> None:
    """Compile objects of some sources, unless they are there.

    Args:
        compiler: path of the C++ compiler.
        instruction_set: what this processor has; another one needs other objects.
        names: of sources, and maybe ``LIBRARY``.

    Raises:
        CompilerError: the compiler does not accept the kernels.
    """
    places = _places(compiler, instruction_set)
    if LIBRARY in names:
        library(compiler, instruction_set)
    if _missing(places, names):
        with folder_lock(cache_folder(), WAITS_S):
            _compile(compiler, places, _missing(places, names))


def linkable(compiler: str, instruction_set: str, names: Iterable[str]) -> list[str]:
    """Return the objects that a program links which calls kernels of some sources.

    Args:
        compiler: path of the C++ compiler.
        instruction_set: what this processor has.
        names: of sources, whose objects need not be there yet.
    """
    folder = packaged.folder() or _places(compiler, instruction_set).objects
    return [str(folder / f"{name}.o") for name in names]


def makings(
    compiler: str, instruction_set: str, names: Collection[str] | None = None
) -> list[list[Making]]:
    """Return the commands for missing files, for another process to run.

    Args:
        compiler: path of the C++ compiler.
        instruction_set: what this processor has.
        names: what ``compile_objects`` takes; None: all of it.

    Returns:
        Stages: what one makes is there before the next begins; files of one may be made at once.
    """
    places = _places(compiler, instruction_set)
    objects = [
        Making([*_compiling(compiler, source), "-o", RESULT], str(places.object(source)))
        for source in _missing(places, names)
    ]
    wanted = names is None or LIBRARY in names
    if wanted and not places.library.is_file():
        return [objects, [_linking(compiler, places)]]
    return [objects]


def make(making: Making) -> None:
    """Run the command of a file; a crash of the system leaves all of the file, or none.

    Raises:
        CompilerError: the command fails.
    """
    with temporary.folder(cache_folder()) as folder:
        made = os.path.join(folder, os.path.basename(making.path))
        tool_output([made if part == RESULT else part for part in making.command])
        _published(made, Path(making.path))


def missing_s(compiler: str, instruction_set: str, names: Collection[str] | None = None) -> float:
    """Return the CPU seconds needed to build missing files; 0 if there are none.

    Takes what ``makings`` does, and raises what ``shared_library`` does.
    """
    places = _places(compiler, instruction_set)
    wanted = names is None or LIBRARY in names
    linking = _LINK_S if wanted and not places.library.is_file() else 0.0
    return sum(KERNELS[each] for each in _missing(places, names)) + linking


def _missing(places: Places, names: Collection[str] | None) -> list[str]:
    """Return the sources still to be compiled: for programs that link them, or for the library."""
    whole = (names is None or LIBRARY in names) and not places.library.is_file()
    wanted = KERNELS if whole else names or ()
    in_order = (source for source in KERNELS if source in wanted)
    return [source for source in in_order if not places.object(source).is_file()]


def _places(compiler: str, instruction_set: str) -> Places:
    parts = (
        sources.fingerprint(),
        _version(compiler),
        packaged.level() or instruction_set,
        platform.machine(),
        torch.__version__,
    )
    name = hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()[:16]
    made, brought = cache_folder() / f"abele_shared_{name}.so", packaged.folder()
    path = made if brought is None else brought / packaged.LIBRARY
    return Places(path, made.with_suffix(".objects"), brought)


@functools.cache
def _version(compiler: str) -> str:
    return tool_output([compiler, "--version"])


def _make(compiler: str, places: Places) -> None:
    _compile(compiler, places, _missing(places, [LIBRARY]))
    try:
        make(_linking(compiler, places))
    except CompilerError:  # one of them is damaged: the next run compiles all again
        shutil.rmtree(places.objects, ignore_errors=True)
        raise


def _published(made: str, path: Path) -> None:
    """Move a file to its final path; a crash of the system leaves all of it, or none."""
    try:
        with open(made, "rb") as file:
            os.fsync(file.fileno())
    except FileNotFoundError as error:
        raise CompilerError(f"The C++ compiler made no file, and said nothing. {ADVICE}") from error
    path.parent.mkdir(exist_ok=True)
    os.replace(made, path)


def _linking(compiler: str, places: Places) -> Making:
    """Return the command that links the objects to the library."""
    objects = [str(places.object(source)) for source in KERNELS]
    return Making(sources.linking(compiler, objects, RESULT), str(places.library))


def _compile(compiler: str, places: Places, names: Collection[str]) -> None:
    """Compile what an earlier run has not; one that is ended meanwhile loses unfinished ones."""
    with temporary.folder(cache_folder()) as folder, ThreadPoolExecutor(os.cpu_count()) as pool:

        def one(source: str) -> None:
            path = places.object(source)
            if not path.is_file():
                (made,) = compiled(compiler, folder, [source])
                _published(made, path)

        list(pool.map(one, names))


def compiled(
    compiler: str, folder: str, names: Sequence[str], flags: Sequence[str] | None = None
) -> list[str]:
    """Compile several sources at once.

    Args:
        compiler: path of the C++ compiler.
        folder: where the objects go.
        names: of sources in this folder, or paths.
        flags: for the compiler; None: those for kernels on this machine.

    Returns:
        Paths of the objects, in the order of ``names``.

    Raises:
        CompilerError: the compiler does not accept one of them.
    """
    objects = [os.path.join(folder, f"{Path(source).name}.o") for source in names]

    def one(source: str, output: str) -> None:
        tool_output([*_compiling(compiler, source, flags), "-o", output])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, names, objects))
    return objects


def _compiling(compiler: str, source: str, flags: Sequence[str] | None = None) -> list[str]:
    wanted = sources.flags(packaged.level()) if flags is None else flags
    return sources.compiling(compiler, source, wanted)


def tool_output(command: list[str]) -> str:
    """Return what a command prints.

    Raises:
        CompilerError: it fails; its output is the log.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="backslashreplace", check=False
        )
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
    with contextlib.suppress(OSError):
        folder = Path(base).absolute() / "abele"  # the program may change its working directory
        folder.mkdir(parents=True, exist_ok=True)
        if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
            return folder
    temporary.sweep()
    return Path(tempfile.mkdtemp(prefix=f"{temporary.prefix()}kernels-"))
