"""The kernels as a shared library: made once per machine, carried by executables."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from pathlib import Path

from abele import kernels
from abele.errors import CorruptExecutable
from abele.storage import atomic

_LOADED: dict[str, ctypes.CDLL] = {}
_LOADING = threading.Lock()


class Norm(ctypes.Structure):
    """``AbeleNorm`` of norm_activation.h."""

    _fields_ = [
        ("rows", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("momentum", ctypes.c_double),
        ("eps", ctypes.c_double),
        ("slope", ctypes.c_double),
    ]


class Adam(ctypes.Structure):
    """``AbeleAdam`` of adam.h."""

    _fields_ = [(name, ctypes.c_double) for name in ("beta1", "beta2", "eps", "decay")]


class AdamTensor(ctypes.Structure):
    """``AbeleAdamTensor`` of adam.h."""

    _fields_ = [("size", ctypes.c_int64)] + [
        (name, ctypes.c_void_p) for name in ("param", "first", "second", "grad", "step")
    ]


class Conv(ctypes.Structure):
    """``AbeleConv`` of image_conv.h."""

    _fields_ = [
        (name, ctypes.c_int64) for name in ("images", "height", "width", "inputs", "out", "kernel")
    ] + [("slope", ctypes.c_double)]


class ImagePool(ctypes.Structure):
    """``AbeleImagePool`` of image_pool.h."""

    _fields_ = [(name, ctypes.c_int64) for name in ("images", "height", "width", "channels")]


def load(code: bytes) -> ctypes.CDLL:
    """Maps the library with these bytes into this process, once.

    Raises:
        CorruptExecutable: the bytes are no library for this machine.
    """
    name = hashlib.sha256(code).hexdigest()[:16]
    with _LOADING:
        if name not in _LOADED:
            path = kernels.cache_folder() / f"abele_op_by_op_{name}.so"
            if not _holds(path, code):
                # At once: other processes may be loading the file of this name.
                with atomic.replacing(path) as file:
                    file.write(code)
            try:
                _LOADED[name] = _typed(ctypes.CDLL(str(path)))
            except (OSError, AttributeError) as error:
                raise CorruptExecutable(
                    f"The executable's kernels cannot be loaded: {error}."
                ) from error
        return _LOADED[name]


def _holds(path: Path, code: bytes) -> bool:
    try:
        return path.read_bytes() == code
    except OSError:
        return False


def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """Says what each function takes; without that, ctypes cuts pointers."""
    pointer, number = ctypes.c_void_p, ctypes.c_int
    norm, adam = ctypes.POINTER(Norm), ctypes.POINTER(Adam)
    library.abele_norm_statistics.argtypes = [norm, *[pointer] * 8, number]
    library.abele_norm_apply.argtypes = [norm, *[pointer] * 5, number]
    library.abele_norm_backward.argtypes = [norm, *[pointer] * 8, number]
    library.abele_scale_shift.argtypes = [norm, *[pointer] * 4, number]
    typed_convolutions(library)
    pool = ctypes.POINTER(ImagePool)
    for name in ("abele_image_pool", "abele_image_pool_backward"):
        function = getattr(library, name)
        function.argtypes, function.restype = [pool, *[pointer] * 3, number], None
    tensors = ctypes.POINTER(AdamTensor)
    library.abele_adam.argtypes = [adam, tensors, ctypes.c_int64, ctypes.c_double, number]
    library.abele_adam.restype = None
    return library


def typed_convolutions(library: ctypes.CDLL) -> ctypes.CDLL:
    """The same for the functions of image_conv.h alone."""
    conv, pointer, number = ctypes.POINTER(Conv), ctypes.c_void_p, ctypes.c_int
    library.abele_conv.argtypes = [conv, *[pointer] * 4, number, number]
    library.abele_conv_weight_gradient.argtypes = [conv, *[pointer] * 3, number]
    return library
