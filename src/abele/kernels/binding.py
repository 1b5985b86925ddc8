"""Python binding of the kernel library: the structures and functions of ``abi.h`` as ctypes.

The header is plain C and is read when this module is imported. Every call checks the status that a
function returns.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from abele.errors import CorruptExecutable
from abele.kernels import sources, threads
from abele.kernels.build import cache_folder
from abele.locks import Lock
from abele.storage import atomic

_LOADED: dict[str, ctypes.CDLL] = {}
_LOADING = Lock()


def _header() -> str:
    """Return the declarations of ``abi.h`` without comments, in one line."""
    text = (sources.FOLDER / "abi.h").read_text(encoding="utf-8")
    return " ".join(re.sub(r"//[^\n]*", "", text).split())


def _type(declared: str, types: dict[str, Any]) -> Any:
    """Return the ctypes type of a C type; pointers to non-structures are void pointers."""
    name = declared.removeprefix("const ")
    if not name.endswith("*"):
        return types[name]
    to = types.get(name[:-1])
    return ctypes.POINTER(to) if to in STRUCTURES.values() else ctypes.c_void_p


def _arguments(text: str, types: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(_type(each.rpartition(" ")[0], types) for each in text.split(", "))


def _read(text: str) -> None:
    """Parse the declarations of a C header into the tables of this module."""
    types: dict[str, Any] = {
        "int": ctypes.c_int,
        "int64_t": ctypes.c_int64,
        "double": ctypes.c_double,
    }
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text):
        fields = re.findall(r"((?:const )?\w+\*?) (\w+(?:, \w+)*);", body)
        members = [
            (each, _type(kind, types)) for kind, names in fields for each in names.split(", ")
        ]
        types[name] = STRUCTURES[name] = type(name, (ctypes.Structure,), {"_fields_": members})
    for name, arguments in re.findall(r"typedef void \(\*(\w+)\)\(([^)]*)\);", text):
        types[name] = CALLBACKS[name] = ctypes.CFUNCTYPE(None, *_arguments(arguments, types))
    for values in re.findall(r"enum \{ (.*?) \};", text):
        CONSTANTS.update((name, int(value)) for name, value in re.findall(r"(\w+) = (\d+)", values))
    for name, arguments in re.findall(r"ABELE_API int (\w+)\(([^)]*)\);", text):
        SIGNATURES[name] = _arguments(arguments, types)


#: ctypes structures of ``abi.h`` by name.
STRUCTURES: dict[str, type[ctypes.Structure]] = {}
#: Enumerators of ``abi.h``, such as ``ABELE_OK``, by name.
CONSTANTS: dict[str, int] = {}
#: Numbers of tensor types in ``abi.h``.
TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
#: Callback types of ``abi.h`` by name.
CALLBACKS: dict[str, Any] = {}
#: Argument types of each kernel function; all but ``*_threads`` return a status.
SIGNATURES: dict[str, tuple[Any, ...]] = {}
_read(_header())

Adam = STRUCTURES["AbeleAdam"]
AdamTensor = STRUCTURES["AbeleAdamTensor"]
Attention = STRUCTURES["AbeleAttention"]
Clamped = STRUCTURES["AbeleClamped"]
Conv = STRUCTURES["AbeleConv"]
Depthwise = STRUCTURES["AbeleDepthwise"]
Dim = STRUCTURES["AbeleDim"]
Norm = STRUCTURES["AbeleNorm"]
Patches = STRUCTURES["AbelePatches"]
Pool = STRUCTURES["AbelePool"]
Product = STRUCTURES["AbeleProduct"]
Recurrent = STRUCTURES["AbeleRecurrent"]
Rows = CALLBACKS["AbeleRows"]
Sgd = STRUCTURES["AbeleSgd"]
SgdTensor = STRUCTURES["AbeleSgdTensor"]
Steps = STRUCTURES["AbeleSteps"]
Upsample = STRUCTURES["AbeleUpsample"]


def load(code: bytes) -> ctypes.CDLL:
    """Load a kernel library from its bytes into this process; cached by content.

    Its functions take pointers as integers, and raise ``MemoryError`` where there is no memory and
    ``CorruptExecutable`` where there is no code for what they are asked.

    Raises:
        CorruptExecutable: the bytes are no library for this machine.
    """
    name = hashlib.sha256(code).hexdigest()[:16]
    with _LOADING:
        if name not in _LOADED:
            path = cache_folder() / f"abele_kernels_{name}.so"
            if not _holds(path, code):
                # At once: other processes may be loading the file of this name.
                with atomic.replacing(path) as file:
                    file.write(code)
            try:
                _LOADED[name] = threads.follow(bound(path))
            except (OSError, AttributeError, ValueError) as error:
                raise CorruptExecutable(
                    f"The executable's kernels cannot be loaded: {error}."
                ) from error
        return _LOADED[name]


def _holds(path: Path, code: bytes) -> bool:
    try:
        return path.read_bytes() == code
    except OSError:
        return False


def bound(path: Path) -> ctypes.CDLL:
    """Load the kernel library at ``path`` and declare its functions' argument types.

    Raises:
        OSError: the file is no library for this machine.
        AttributeError: it lacks a function of ``abi.h``.
    """
    library = ctypes.CDLL(str(path))
    bind(library, SIGNATURES)
    return library


def bind(library: ctypes.CDLL, names: Iterable[str]) -> None:
    """Declare argument types of kernel functions of a library or compiled program.

    Raises:
        AttributeError: there is no such function.
    """
    for name in names:
        function = getattr(library, name)
        function.argtypes, function.restype = SIGNATURES[name], ctypes.c_int
        if not name.endswith("_threads"):
            function.errcheck = _checked


def _checked(status: int, function: Any, arguments: tuple[Any, ...]) -> None:
    del arguments
    if status == CONSTANTS["ABELE_NO_MEMORY"]:
        raise MemoryError(f"The kernel {function.__name__} found no memory for its sums.")
    if status != CONSTANTS["ABELE_OK"]:
        raise CorruptExecutable(
            f"The executable's kernel {function.__name__} has no code for these sizes. "
            "Compile the program again."
        )


def threads_for(library: ctypes.CDLL, floats: int, multiply_adds: int = 0) -> int:
    """Return the number of threads worth using for a kernel call of a given size; at least 1."""
    return library.abele_threads(floats, multiply_adds, torch.get_num_threads())
