"""The kernels' library in Python: what ``abi.h`` declares, as ctypes.

Every call checks what the function returns. A test compares this file with the header.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from abele.errors import CorruptExecutable
from abele.kernels.build import cache_folder
from abele.storage import atomic

_LOADED: dict[str, ctypes.CDLL] = {}
_LOADING = threading.Lock()
#: Of what functions return; every other status means that there is no code.
OK, NO_MEMORY = 0, 1


def _integers(*names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_int64) for name in names]


def _doubles(*names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_double) for name in names]


class Conv(ctypes.Structure):
    """``AbeleConv``: sizes of the images, the kernel and the way it moves."""

    _fields_ = [
        *_integers("images", "in_channels", "in_height", "in_width"),
        *_integers("out_channels", "kernel_height", "kernel_width"),
        *_integers("stride_height", "stride_width", "pad_height", "pad_width", "channels_last"),
        *_doubles("slope"),
    ]


class Patches(ctypes.Structure):
    """``AbelePatches``: the small images, and windows of the large ones."""

    _fields_ = [
        *_integers("images", "height", "width"),
        *_integers("small_channels", "large_channels", "kernel_height", "kernel_width"),
    ]


class Pool(ctypes.Structure):
    """``AbelePool``: the larger images."""

    _fields_ = _integers("images", "channels", "height", "width", "channels_last")


class Upsample(ctypes.Structure):
    """``AbeleUpsample``: the smaller images."""

    _fields_ = _integers("images", "channels", "height", "width")


class Norm(ctypes.Structure):
    """``AbeleNorm``: rows are images times pixels."""

    _fields_ = [*_integers("rows", "channels"), *_doubles("momentum", "eps", "slope")]


class Depthwise(ctypes.Structure):
    """``AbeleDepthwise``: sizes of a convolution with a kernel for each channel."""

    _fields_ = [
        *_integers("images", "channels", "in_height", "in_width", "size", "step"),
        *_integers("pad_height", "pad_width"),
    ]


class Product(ctypes.Structure):
    """``AbeleProduct``: sizes and steps of the factors."""

    _fields_ = [
        *_integers("count", "rows", "columns", "inner", "a_next", "a_row", "a_column"),
        *_integers("b_next", "b_row", "b_column", "c_next", "c_row", "b_packed", "added", "halves"),
    ]


class Recurrent(ctypes.Structure):
    """``AbeleRecurrent``: sizes of a layer, and what is kept of its steps."""

    _fields_ = _integers("steps", "batch", "units", "reverse", "kept", "relu")


class Attention(ctypes.Structure):
    """``AbeleAttention``: sizes of all heads, and what becomes of scores."""

    _fields_ = [
        *_integers("samples", "heads", "queries", "keys", "depth", "value_depth", "causal"),
        *_doubles("scale"),
    ]


class Steps(ctypes.Structure):
    """``AbeleSteps``: of a tensor of heads, one for each dimension but the depth."""

    _fields_ = _integers("sample", "head", "position")


class Dim(ctypes.Structure):
    """``AbeleDim``: of one dimension, in the source and in the result."""

    _fields_ = _integers("size", "stride", "result")


class Adam(ctypes.Structure):
    """``AbeleAdam``: settings that all parameters share."""

    _fields_ = _doubles("beta1", "beta2", "eps", "decay")


class AdamTensor(ctypes.Structure):
    """``AbeleAdamTensor``: one parameter and its state."""

    _fields_ = [
        *_integers("size"),
        *((name, ctypes.c_void_p) for name in ("param", "first", "second", "grad", "step")),
    ]


class Sgd(ctypes.Structure):
    """``AbeleSgd``: settings that all parameters share."""

    _fields_ = _doubles("rate", "momentum", "rest", "decay", "nesterov")


class SgdTensor(ctypes.Structure):
    """``AbeleSgdTensor``: one parameter and its state."""

    _fields_ = [
        *_integers("size"),
        *((name, ctypes.c_void_p) for name in ("param", "velocity", "grad")),
    ]


STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "AbeleConv": Conv,
    "AbeleDepthwise": Depthwise,
    "AbelePatches": Patches,
    "AbelePool": Pool,
    "AbeleUpsample": Upsample,
    "AbeleNorm": Norm,
    "AbeleProduct": Product,
    "AbeleRecurrent": Recurrent,
    "AbeleAttention": Attention,
    "AbeleSteps": Steps,
    "AbeleDim": Dim,
    "AbeleAdam": Adam,
    "AbeleAdamTensor": AdamTensor,
    "AbeleSgd": Sgd,
    "AbeleSgdTensor": SgdTensor,
}


#: ``AbeleRows``: the context, where the rows lie, the first of them and how many there are.
Rows = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def _takes(structure: type[ctypes.Structure], pointers: int, *more: Any) -> tuple[Any, ...]:
    return (ctypes.POINTER(structure), *[ctypes.c_void_p] * pointers, *more, ctypes.c_int)


def _of_heads(pointers: int) -> tuple[Any, ...]:
    steps = ctypes.POINTER(Steps)
    return (ctypes.POINTER(Attention), steps, *[ctypes.c_void_p] * pointers, ctypes.c_int)


def _of_rows(kinds: int, integers: int, *more: Any) -> tuple[Any, ...]:
    return (*[ctypes.c_int] * kinds, *[ctypes.c_int64] * integers, *more, ctypes.c_int)


_SUM = (*[Dim] * 4, ctypes.c_double, *[ctypes.c_void_p] * 2)


#: Arguments of each function; all but those that count threads return a status.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "abele_threads": (ctypes.c_int64, ctypes.c_int64, ctypes.c_int),
    "abele_conv_threads": _takes(Conv, 0),
    "abele_conv_forward": _takes(Conv, 4),
    "abele_conv_backward": _takes(Conv, 6),
    "abele_winograd_forward": _takes(Conv, 4),
    "abele_winograd_backward": _takes(Conv, 6),
    "abele_pointwise_forward": _takes(Conv, 4),
    "abele_pointwise_backward": _takes(Conv, 6),
    "abele_depthwise_forward": _takes(Depthwise, 4),
    "abele_depthwise_backward": _takes(Depthwise, 6),
    "abele_conv_pool": _takes(Conv, 5),
    "abele_conv_pool_backward": _takes(Conv, 7),
    "abele_patches_spread": _takes(Patches, 4),
    "abele_patches_gather": _takes(Patches, 4),
    "abele_patches_weight": _takes(Patches, 3),
    "abele_channel_sums": (*[ctypes.c_int64] * 3, *[ctypes.c_void_p] * 2, ctypes.c_int),
    "abele_max_pool": _takes(Pool, 4),
    "abele_max_pool_backward": _takes(Pool, 3),
    "abele_upsample": _takes(Upsample, 2),
    "abele_upsample_backward": _takes(Upsample, 2),
    "abele_norm_statistics": _takes(Norm, 9),
    "abele_norm_apply": _takes(Norm, 6),
    "abele_norm_backward": _takes(Norm, 8),
    "abele_norm_sum_backward": _takes(Norm, 10),
    "abele_scale_shift": _takes(Norm, 4),
    "abele_product": _takes(Product, 3),
    "abele_product_by_rows": _takes(Product, 2, Rows, ctypes.c_void_p),
    "abele_product_pack": _takes(Product, 2),
    "abele_lstm": _takes(Recurrent, 8),
    "abele_lstm_backward": _takes(Recurrent, 9),
    "abele_gru": _takes(Recurrent, 6),
    "abele_gru_backward": _takes(Recurrent, 8),
    "abele_rnn": _takes(Recurrent, 5),
    "abele_rnn_backward": _takes(Recurrent, 6),
    "abele_attention": _of_heads(5),
    "abele_attention_backward": _of_heads(9),
    "abele_layer_norm": _of_rows(1, 2, ctypes.c_double, *[ctypes.c_void_p] * 6),
    "abele_layer_norm_backward": _of_rows(1, 2, *[ctypes.c_void_p] * 6),
    "abele_layer_norm_weights": _of_rows(0, 2, *[ctypes.c_void_p] * 6),
    "abele_group_norm": _of_rows(0, 4, ctypes.c_double, *[ctypes.c_void_p] * 6),
    "abele_group_norm_backward": _of_rows(1, 4, *[ctypes.c_void_p] * 7),
    "abele_batch_statistics": _of_rows(0, 3, *[ctypes.c_double] * 2, *[ctypes.c_void_p] * 7),
    "abele_batch_norm_sums": _of_rows(0, 3, *[ctypes.c_void_p] * 6),
    "abele_channel_statistics": (
        *[ctypes.c_int64] * 5,
        *[ctypes.c_double] * 2,
        *[ctypes.c_void_p] * 7,
    ),
    "abele_channel_gradients": (*[ctypes.c_int64] * 6, *[ctypes.c_void_p] * 6),
    "abele_softmax": _of_rows(1, 3, *[ctypes.c_void_p] * 2),
    "abele_softmax_backward": _of_rows(1, 3, *[ctypes.c_void_p] * 3),
    "abele_nll_loss_backward": _of_rows(1, 4, *[ctypes.c_void_p] * 5),
    "abele_sum_columns": _of_rows(1, 0, *_SUM),
    "abele_sum_rows": _of_rows(1, 0, *_SUM),
    "abele_embedding_backward": _of_rows(0, 4, *[ctypes.c_void_p] * 3),
    "abele_adam": _takes(Adam, 0, ctypes.POINTER(AdamTensor), ctypes.c_int64, ctypes.c_double),
    "abele_sgd": _takes(Sgd, 0, ctypes.POINTER(SgdTensor), ctypes.c_int64),
}


def load(code: bytes) -> ctypes.CDLL:
    """Map the library with these bytes into this process, once.

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
                _LOADED[name] = bound(path)
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


def bound(path: Path) -> ctypes.CDLL:
    """Return the library at ``path`` with functions that know their arguments.

    Raises:
        OSError: the file is no library for this machine.
        AttributeError: it lacks a function of ``abi.h``.
    """
    library = ctypes.CDLL(str(path))
    bind(library, SIGNATURES)
    return library


def bind(library: ctypes.CDLL, names: Iterable[str]) -> None:
    """Make functions of a library, or of a program that has them, know their arguments.

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
    if status == NO_MEMORY:
        raise MemoryError(f"The kernel {function.__name__} found no memory for its sums.")
    if status != OK:
        raise CorruptExecutable(
            f"The executable's kernel {function.__name__} has no code for these sizes. "
            "Compile the program again."
        )


def threads_for(library: ctypes.CDLL, floats: int, multiply_adds: int = 0) -> int:
    """Return how many of torch's threads a pass of this size keeps busy; at least 1."""
    return library.abele_threads(floats, multiply_adds, torch.get_num_threads())
