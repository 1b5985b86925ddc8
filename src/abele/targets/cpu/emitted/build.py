"""Compilation and loading of a program's generated C++ file."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from abele.compilers import run_compiler
from abele.errors import CompilerError, CorruptExecutable
from abele.kernels import build as kernels
from abele.kernels import sources, threads
from abele.storage import atomic, temporary
from abele.targets import translation
from abele.targets.cpu.compiler import compiler, instruction_set
from abele.targets.cpu.emitted import headers

FLAGS = (*sources.FLAGS, "-shared")
# What stands in the text of programs that call kernels, and which these are; ``KINDS`` has them.
_CALLS = {
    "abele_conv_": "convolutions",
    "abele_max_pool": "pools",
    "abele_depthwise": "depthwise",
    "abele_clamped": "clamped",
    "abele_product": "products",
    "abele_product_bfloat16": "bfloat16_products",
    "abele::multiply": "products",
    "abele::attention": "attention",
    "abele_recurrent": "recurrent",
    "abele::at_most": "rows",
    "abele_channel_": "rows",
    "abele_threads": "threads",
    "abele_checksum": "checksums",
}
# Parts of operator names, one of which a program has that calls a kernel of a kind.
_OF_OPERATORS = {
    "convolutions": ("conv",),
    "depthwise": ("conv",),
    "clamped": ("conv",),
    "pools": ("pool",),
    "attention": ("attention",),
    "recurrent": ("lstm", "recurrent"),
}
# With GCC, long files are compiled with these passes alone, in half of the time that -O3 takes and
# to code that is as fast: kernels take most of a step. Small programs keep -O3: templates gain up
# to a quarter from it. Without the second flag, products and sums would not become one instruction.
_LONG = 32_768  # characters
_QUICK_FLAGS = (
    *("-O1", "-fexpensive-optimizations", "-ftree-loop-vectorize", "-fvect-cost-model=dynamic"),
    *("-ftree-slp-vectorize", "-funswitch-loops", "-fsplit-loops"),
    *("-finline-small-functions", "-fstrict-aliasing", "-fipa-cp", "-fipa-cp-clone"),
)
# g++ 11.3 and 12.2 read several vectors under the mask of the first one where a short inner loop
# becomes several vectors and its body reads in a branch. Emitted loops read all elements first
# (``translation.loops``); without these passes, no read moves from there into a branch.
_READS_STAY = ("-fno-tree-sink", "-fno-thread-jumps")
# Vectorizers are the parts of compilers that were found to be wrong: g++ 11.3 and 12.2 at -O3.
_CONSERVATIVE_FLAGS = (
    *("-O2", "-fno-tree-vectorize", "-fno-tree-slp-vectorize", "-fno-strict-aliasing"),
)


@functools.cache
def unavailable() -> str | None:
    """Return why generated C++ code cannot run here, or None if it can."""
    library = _library()
    try:
        found = library is not None and hasattr(ctypes.CDLL(str(library)), "sgemm_")
    except OSError as error:
        return f"torch's library cannot be loaded ({error})"
    if not found:
        return "torch's library has no matrix product that can be called from C"
    return None


@functools.cache
def _library() -> Path | None:
    folder = Path(torch.__file__).parent / "lib"
    return next(iter(sorted(folder.glob("libtorch_cpu.*"))), None)


@functools.cache
def fingerprint() -> str:
    """Return a hash of the sources of the C++ code generator."""
    digest = hashlib.sha256()
    for folder in (Path(__file__).parent, Path(translation.__file__).parent):
        for source in sorted(folder.rglob("*")):
            if source.suffix in (".py", ".h"):
                digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def kernels_of(text: str) -> list[str]:
    """Return the library kernel sources that generated C++ text calls."""
    called = {s for call, kind in _CALLS.items() if call in text for s in sources.KINDS[kind]}
    return sorted(called)


def kernels_for(operators: Iterable[str]) -> set[str]:
    """Return all library kernel sources that code for these operators may call."""
    text = " ".join(operators)
    kinds = [
        k for k in _CALLS.values() if any(part in text for part in _OF_OPERATORS.get(k, ("",)))
    ]
    return {source for kind in kinds for source in sources.KINDS[kind]}


def command(
    text: str, source: str, result: str, conservative_objects: Sequence[str] | None = None
) -> list[str]:
    """Return the command that compiles a generated C++ file and links its kernels.

    The objects of these kernels have to be compiled before the command runs.

    Args:
        text: the C++ source.
        source: path of the C++ source.
        result: path of the shared library.
        conservative_objects: kernel objects compiled without vectorizers, to compile the file
            likewise; None: the shared kernel objects.
    """
    path = _compiler()
    gcc = headers.is_gcc(path)
    reads = _READS_STAY if gcc else ()
    if conservative_objects is not None:  # headers that were read with other flags do not fit
        flags = _CONSERVATIVE_FLAGS
    else:
        quick = _QUICK_FLAGS if len(text) >= _LONG and gcc else ()
        flags = (*quick, *headers.arguments(path, instruction_set()))
    flags = (*sources.fitting(path, FLAGS), *reads, *flags)
    parts = [path, *flags, *headers.INCLUDES, source]
    called, objects = kernels_of(text), conservative_objects
    if objects is None:
        objects = kernels.linkable(path, instruction_set(), called) if called else []
    parts += objects
    return [*parts, *_linked(path), "-o", result]


def _linked(compiler: str) -> list[str]:
    """Return linker arguments that make the result need torch's library, which is loaded already.

    A linker would read its symbols for 0.15 s, a seventh of a small program's compilation, so it
    gets an empty library of the same name, kept in the cache folder.
    """
    library = _library()
    assert library is not None
    if sys.platform != "linux":
        return [f"-L{library.parent}", "-ltorch_cpu"]
    empty = kernels.cache_folder() / "abele_empty_libraries" / library.name
    with contextlib.suppress(CompilerError, OSError), temporary.folder() as folder:
        if not empty.is_file():
            result = Path(folder, library.name)
            named = (f"-Wl,-soname,{library.name}", "-nostdlib", "-x", "c", os.devnull)
            kernels.tool_output([compiler, "-shared", *named, "-o", str(result)])
            with atomic.replacing(empty) as file:
                file.write(result.read_bytes())
    # On ARM, sgemm_ is in a library that torch's needs: a linker would leave out torch's.
    return [f"-L{empty.parent}", f"-L{library.parent}", "-Wl,--no-as-needed", "-ltorch_cpu"]


def _compiler() -> str:
    return compiler() or "g++"


def compiled(name: str, text: str, *, conservative: bool = False) -> bytes:
    """Compile generated C++ text to a shared library.

    Args:
        name: the program's name.
        text: the C++ source.
        conservative: use ``-O2`` without vectorizers, for code that a compiler got wrong at
            ``-O3``, and compile the kernels that the file calls likewise.

    Raises:
        CompilerError: the compiler rejects the file or a kernel.
    """
    called, objects = kernels_of(text), None
    if not conservative:
        headers.make_beside(_compiler(), instruction_set())
        kernels.compile_objects(_compiler(), instruction_set(), called)
    with temporary.folder() as folder:
        source, result = os.path.join(folder, "program.cpp"), os.path.join(folder, "program.so")
        Path(source).write_text(text, encoding="utf-8", errors="backslashreplace")
        if conservative:
            flags = (*sources.FLAGS, *_CONSERVATIVE_FLAGS)
            objects = kernels.compile_with(_compiler(), folder, called, flags)
        parts = command(text, source, result, objects)
        done = run_compiler(parts)
        if done.returncode != 0 or not os.path.isfile(result):
            what = "failed" if done.returncode else "made no file"
            raise CompilerError(
                f"Program {name!r} could not be compiled: the C++ compiler {what}. "
                f"{kernels.advice(done.stderr)}",
                log=f"{' '.join(parts)}\n{done.stdout}{done.stderr}",
            )
        return Path(result).read_bytes()


def loaded(code: bytes) -> ctypes.CDLL:
    """Load a compiled shared library into this process.

    Raises:
        CorruptExecutable: the bytes are no shared library for this machine.
    """
    with temporary.folder() as folder:
        path = os.path.join(folder, "program.so")
        Path(path).write_bytes(code)
        try:
            return threads.follow(ctypes.CDLL(path))
        except (OSError, ValueError) as error:
            raise CorruptExecutable(f"The compiled code cannot be loaded: {error}.") from error
