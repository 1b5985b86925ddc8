"""Compiles the kernels once per machine: objects to link, an archive of them, a library to load.

Emitted programs link the objects whose kernels they call, and Inductor's the archive; programs that
run operator by operator load the library. The names of all hold a hash of everything that decides
their code; two versions never meet. Each object is kept as it is compiled, so that runs that end
sooner than the compiler come to the end of it together. A package that was installed from a wheel
may bring objects and library (``packaged.py``); then these are used.
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
from abele.kernels.sources import KERNELS, SHIMS
from abele.storage import files, temporary
from abele.storage.turns import turn

#: Among names of sources: all kernels as a library for Python, or with the shims as an archive.
LIBRARY, ARCHIVE = "library", "archive"
# To link either, in the same unit as ``KERNELS``.
_LINK_S = {LIBRARY: 0.2, ARCHIVE: 0.1}
#: What to do where they cannot be compiled.
ADVICE = "Set CXX to another C++ compiler (g++ 11 or clang++ 14, or later)."
#: How long to wait for another process that compiles the same, in seconds.
WAITS_S = 120.0

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


class Places(NamedTuple):
    """Where files are, or will be.

    Attributes:
        archive: for compiled programs to link.
        library: for ``binding.load``.
        objects: a folder; one for each source that the package does not bring compiled.
        packaged: the folder of those that it brings, or None.
    """

    archive: Path
    library: Path
    objects: Path
    packaged: Path | None

    def linked(self, name: str) -> Path:
        """The file that ``LIBRARY`` or ``ARCHIVE`` stands for."""
        return self.library if name == LIBRARY else self.archive

    def object(self, source: str) -> Path:
        """The object of a source."""
        if self.packaged is None or source not in KERNELS:
            return self.objects / f"{source}.o"
        return self.packaged / f"{source}.o"


def static_library(compiler: str, instruction_set: str) -> Path:
    """Return the archive for compiled programs to link, compiled unless it is there already.

    Args:
        compiler: path of the C++ compiler.
        instruction_set: what this processor has; another one needs another library.

    Raises:
        CompilerError: the compiler does not accept the kernels.
    """
    return _linked(compiler, instruction_set, ARCHIVE)


def shared_library(compiler: str, instruction_set: str) -> bytes:
    """Return the library for ``binding.load``, compiled unless it is there already.

    Takes and raises what ``static_library`` does. What the package brings needs no compiler.
    """
    brought = packaged.folder()
    if brought is not None:
        return (brought / packaged.LIBRARY).read_bytes()
    with files.open_regular(_linked(compiler, instruction_set, LIBRARY)) as file:
        return file.read()


def everything(compiler: str, instruction_set: str) -> None:
    """Make all that is missing. Takes and raises what ``static_library`` does."""
    for name in (LIBRARY, ARCHIVE):  # the latter may be there without the former
        _linked(compiler, instruction_set, name)


def compile_objects(compiler: str, instruction_set: str, names: Collection[str]) -> None:
    """Compile objects of some sources, unless they or the archive are there.

    Args:
        compiler: path of the C++ compiler.
        instruction_set: what this processor has; another one needs other objects.
        names: of sources, and maybe ``LIBRARY`` and ``ARCHIVE``.

    Raises:
        CompilerError: the compiler does not accept the kernels.
    """
    places = _places(compiler, instruction_set)
    for name in _unlinked(places, names):
        _linked(compiler, instruction_set, name)
    if _missing(places, names):
        with turn(cache_folder(), WAITS_S):
            _compile(compiler, places, _missing(places, names))


def linkable(compiler: str, instruction_set: str, names: Iterable[str]) -> list[str]:
    """Return what a program links that calls kernels of some sources: the archive if it is there.

    Args:
        compiler: path of the C++ compiler.
        instruction_set: what this processor has.
        names: of sources, whose objects need not be there yet.
    """
    places = _places(compiler, instruction_set)
    if places.archive.is_file():
        return [str(places.archive)]
    return [str(places.object(name)) for name in names]


def makings(
    compiler: str, instruction_set: str, names: Collection[str] | None = None
) -> list[list[Making]]:
    """Return what makes the files that are missing, for another process to do.

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
    linked = [_linking(compiler, places, name) for name in _unlinked(places, names)]
    return [objects, linked] if linked else [objects]


def make(making: Making) -> None:
    """Make a file; a crash of the system leaves all of it, or none.

    Raises:
        CompilerError: the command fails.
    """
    with temporary.folder(cache_folder()) as folder:
        made = os.path.join(folder, os.path.basename(making.path))
        tool_output([made if part == RESULT else part for part in making.command])
        _published(made, Path(making.path))


def missing_s(compiler: str, instruction_set: str, names: Collection[str] | None = None) -> float:
    """Return the processor time that making what is not there takes, in seconds; 0 if nothing.

    Takes what ``makings`` does, and raises what ``static_library`` does.
    """
    places, seconds = _places(compiler, instruction_set), KERNELS | SHIMS
    compiling = sum(seconds[each] for each in _missing(places, names))
    return compiling + sum(_LINK_S[name] for name in _unlinked(places, names))


def _unlinked(places: Places, names: Collection[str] | None) -> list[str]:
    """Of library and archive, what is wanted and not there.

    Archives take any object. That all are whole shows when the library is linked, so that is first.
    """
    if names is None or (ARCHIVE in names and not places.archive.is_file()):
        wanted = [LIBRARY, ARCHIVE]
    else:
        wanted = [LIBRARY] if LIBRARY in names else []
    return [name for name in wanted if not places.linked(name).is_file()]


def _missing(places: Places, names: Collection[str] | None) -> list[str]:
    """Sources still to be compiled: for programs that link them, or for archive and library."""
    wanted = {source for name in _unlinked(places, names) for source in _parts(name)}
    if names is not None and not places.archive.is_file():
        wanted.update(name for name in names if name not in (LIBRARY, ARCHIVE))
    in_order = (source for source in _parts(ARCHIVE) if source in wanted)
    return [source for source in in_order if not places.object(source).is_file()]


def _parts(name: str) -> tuple[str, ...]:
    """The sources of archive or library."""
    return (*KERNELS, *SHIMS) if name == ARCHIVE else (*KERNELS,)


def _places(compiler: str, instruction_set: str) -> Places:
    parts = (
        sources.fingerprint(),
        _version(compiler),
        packaged.level() or instruction_set,
        platform.machine(),
        torch.__version__,
    )
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    # Names that differ: where both could be meant, linkers take the shared one.
    folder, brought = cache_folder(), packaged.folder()
    archive = folder / f"libabele_archive_{name}.a"
    made = folder / f"abele_shared_{name}.so"
    library = made if brought is None else brought / packaged.LIBRARY
    return Places(archive, library, archive.with_suffix(".objects"), brought)


@functools.cache
def _version(compiler: str) -> str:
    return tool_output([compiler, "--version"])


def _linked(compiler: str, instruction_set: str, name: str) -> Path:
    """Return archive or library, made if it is missing.

    Of processes that start at once, instances of a program for example, one compiles.
    """
    places = _places(compiler, instruction_set)
    if _unlinked(places, [name]):
        with turn(cache_folder(), WAITS_S):
            for each in _unlinked(places, [name]):
                _make(compiler, places, each)
    return places.linked(name)


def _make(compiler: str, places: Places, name: str) -> None:
    _compile(compiler, places, _missing(places, [name]))
    try:
        make(_linking(compiler, places, name))
    except CompilerError:  # one of them is damaged: the next run compiles all again
        shutil.rmtree(places.objects, ignore_errors=True)
        raise


def _published(made: str, path: Path) -> None:
    """Move a file to where others look for it; a crash of the system leaves all of it, or none."""
    with open(made, "rb") as file:
        os.fsync(file.fileno())
    path.parent.mkdir(exist_ok=True)
    os.replace(made, path)


def _linking(compiler: str, places: Places, name: str) -> Making:
    """What makes archive or library of the objects."""
    objects = [str(places.object(source)) for source in _parts(name)]
    if name == LIBRARY:
        return Making(sources.linking(compiler, objects, RESULT), str(places.library))
    archiver = os.environ.get("AR") or "ar"
    return Making([archiver, "rcs", RESULT, *objects], str(places.archive))


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
    command = sources.compiling(compiler, source, wanted)
    if os.path.basename(source) in SHIMS:
        command.append(f"-I{Path(torch.__file__).parent / 'include'}")
    return command


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
