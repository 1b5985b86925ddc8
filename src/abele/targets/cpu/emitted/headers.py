"""Precompiled headers of generated C++ files, compiled once per machine.

Parsing them takes 0.4 s of CPU time, a third of a small program's compilation. GCC stores the
precompiled form in a ``.gch`` file next to the header, and reads the header if that does not fit.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
from pathlib import Path

from abele import processor
from abele.errors import CompilerError
from abele.kernels import build as kernels
from abele.kernels import sources
from abele.locks import Lock
from abele.storage import temporary

FOLDER = Path(__file__).parent / "cpp"
#: Where files look for them; not for <math.h>, which system headers include.
INCLUDES = ("-iquote", str(FOLDER), "-iquote", str(sources.FOLDER))
#: What files include: from this folder, and from that of the kernels, which have some of it too.
NAMES = (
    *("math.h", "half.h", "activations.h", "parallel.h", "sums.h", "norms.h", "losses.h"),
    *("tables.h", "matrix.h", "kernels.h", "repeat.h"),
)
_NAME = "abele_headers_"
_GCC = "Free Software Foundation"  # what its --version says

_thread: threading.Thread | None = None  # compiles them; not alive in a forked child
_starting = Lock()


def arguments(compiler: str, instruction_set: str) -> list[str]:
    """Return compiler arguments that include the precompiled headers; none before ``make``.

    Args:
        compiler: path of the C++ compiler.
        instruction_set: of the host CPU, as in ``compiler.instruction_set``.
    """
    path = _path(compiler, instruction_set)
    return [] if path is None or not _is_whole(path) else ["-include", str(path)]


def make(compiler: str, instruction_set: str) -> None:
    """Precompile the C++ headers for this compiler and CPU, unless cached."""
    with contextlib.suppress(CompilerError, OSError):
        path = _path(compiler, instruction_set)
        if path is None or _is_whole(path):
            return
        with temporary.folder(kernels.cache_folder()) as folder:
            header = Path(folder) / path.name
            header.write_text(_text(), encoding="utf-8")
            flags = sources.fitting(compiler, sources.FLAGS)
            command = [compiler, *flags, *INCLUDES, "-x", "c++-header", str(header)]
            kernels.tool_output([*command, "-o", str(_read(header))])
            for old in path.parent.glob(f"{_NAME}*.gch"):  # 40 MB each; their headers do as well
                old.unlink(missing_ok=True)
            header.write_text(f"{_text()}{_note(_read(header))}", encoding="utf-8")
            os.replace(_read(header), _read(path))
            os.replace(header, path)


def make_beside(compiler: str, instruction_set: str) -> None:
    """Precompile the C++ headers in a background thread, while a program compiles.

    The process exits only after the thread. On one core, the caller precompiles them itself.
    """
    global _thread
    if processor.cores() == 1:
        make(compiler, instruction_set)
    elif not arguments(compiler, instruction_set):
        with _starting:
            if _thread is None or not _thread.is_alive():
                here = (compiler, instruction_set)
                _thread = threading.Thread(target=make, args=here, name="abele-headers")
                _thread.start()


def _is_whole(path: Path) -> bool:
    """Return whether the precompiled header is complete: a system crash may truncate it."""
    try:
        return path.read_text(encoding="utf-8").endswith(_note(_read(path)))
    except OSError:
        return False


def _note(read: Path) -> str:
    return f"// {read.stat().st_size} bytes when read\n"


def _read(header: Path) -> Path:
    return header.with_name(f"{header.name}.gch")


def _text() -> str:
    return "".join(f'#include "{name}"\n' for name in NAMES)


def is_gcc(compiler: str) -> bool:
    """Return whether a compiler is GCC.

    Args:
        compiler: path of the C++ compiler.
    """
    return _GCC in _version(compiler)


@functools.cache
def _version(compiler: str) -> str:
    """Return a compiler's version text; empty if it cannot be run."""
    try:
        return kernels.tool_output([compiler, "--version"])
    except CompilerError:
        return ""


@functools.cache
def _path(compiler: str, instruction_set: str) -> Path | None:
    """Return the path of the precompiled header; None if the compiler does not support any."""
    version = _version(compiler)
    if _GCC not in version:
        return None
    digest = hashlib.sha256("\n".join((version, instruction_set, *sources.FLAGS)).encode())
    for each in sorted((*FOLDER.glob("*.h"), *sources.FOLDER.glob("*.h"))):
        digest.update(each.name.encode() + each.read_bytes())
    return kernels.cache_folder() / f"{_NAME}{digest.hexdigest()[:16]}.h"
