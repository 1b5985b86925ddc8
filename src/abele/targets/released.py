"""Compiled code of the host, called so that other threads of Python run meanwhile.

The loader of torch holds the interpreter's lock while compiled code runs, so threads would take
turns. The code has a C interface (torch/csrc/inductor/aoti_runtime/interface.h), and ``ctypes``
gives up the lock for a call.
"""

from __future__ import annotations

import ctypes
import io
import weakref
import zipfile
from pathlib import Path

import torch

from abele import _torch
from abele.storage import temporary
from abele.targets.base import Run

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def load(payload: bytes) -> Run | None:
    """The call of a package.

    Args:
        payload: the package.

    Returns:
        ``None`` if its code calls operators by name, which needs the loader of torch.
    """
    with zipfile.ZipFile(io.BytesIO(payload)) as package:
        names = package.namelist()
        libraries = [name for name in names if name.endswith(".so")]
        described = [n for n in names if n.endswith(".json") and not n.endswith("_metadata.json")]
        if len(libraries) != 1 or described:
            return None
        with temporary.folder() as folder:
            path = Path(folder) / "program.so"
            path.write_bytes(package.read(libraries[0]))
            # Once it is mapped, its file may go.
            return _Code(ctypes.CDLL(str(path)))


class _Code:
    """A library with one compiled program."""

    def __init__(self, library: ctypes.CDLL):
        self._run = library.AOTInductorModelContainerRun
        self._run.argtypes = [
            ctypes.c_void_p,  # the program
            ctypes.c_void_p,  # handles of inputs, which it takes over
            ctypes.c_size_t,
            ctypes.c_void_p,  # room for handles of outputs, which are ours
            ctypes.c_size_t,
            ctypes.c_void_p,  # stream
            ctypes.c_void_p,  # what calls operators by name
        ]
        self._program, outputs = ctypes.c_void_p(), ctypes.c_size_t()
        create = library.AOTInductorModelContainerCreateWithDevice
        _check(create(ctypes.byref(self._program), ctypes.c_size_t(1), b"cpu", None))
        weakref.finalize(self, library.AOTInductorModelContainerDelete, self._program)
        count = library.AOTInductorModelContainerGetNumOutputs
        _check(count(self._program, ctypes.byref(outputs)))
        self._outputs = outputs.value

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        handles = _torch.aoti_handles()
        given = handles.unsafe_alloc_void_ptrs_from_tensors(inputs)
        inputs.clear()
        taken = (ctypes.c_void_p * len(given))(*[_pointer_of(each, None) for each in given])
        made = (ctypes.c_void_p * self._outputs)()
        _check(self._run(self._program, taken, len(given), made, self._outputs, None, None))
        return handles.alloc_tensors_by_stealing_from_void_ptrs(
            [_capsule(pointer, None, None) for pointer in made]
        )


def _check(status: int) -> None:
    if status:
        raise RuntimeError(
            "A compiled program ended with an error; its text is on the standard error stream."
        )
