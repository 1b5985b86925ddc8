"""Turning a failed capture into a sentence that names the user's line and the way out."""

from __future__ import annotations

import contextlib
import linecache
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from abele import _torch
from abele.dense import INSTEAD
from abele.errors import CaptureError, DataDependentError
from abele.printing import is_library

# Phrases of torch's own errors for "this needs the tensor's data"; see tests/unit/test_capture.py.
_NEEDS_DATA = (
    "trying to get value out of a tracing tensor",
    "data-dependent",
    "Data dependent",
    "Cannot convert a FakeTensor",
    "is not supported for tensor subclasses",
    "is not allocated yet",
    "aten._local_scalar_dense",
    "aten.nonzero",
)

# The same for tensors that are not dense.
_NOT_DENSE = ("Cannot access storage of", "nested_tensor", "quantized nyi in meta tensors")

_SHOW_DATA = {torch.Tensor.__repr__, torch.Tensor.__format__, torch.Tensor.__reduce_ex__}


class _Shown(Exception):
    """A tensor was printed, formatted or pickled."""


class _NoPrinting(TorchFunctionMode):
    """Refuses what torch would answer with a tensor's shape alone, as if that were its value."""

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None):
        if func in _SHOW_DATA:
            raise _Shown(f"{func.__name__} of a tensor")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Translates what torch says of a forward that cannot be captured.

    Every other exception of the user's forward passes unchanged.

    Raises:
        DataDependentError: the value that it reads is not there yet.
        CaptureError: it makes a tensor that is not dense.
    """
    try:
        with _NoPrinting():
            yield
    except Exception as error:
        if _is_data_dependent(error):
            raise DataDependentError(_sentence(error)) from error
        if isinstance(error, RuntimeError) and any(text in str(error) for text in _NOT_DENSE):
            file, line, code = user_frame(error)
            raise CaptureError(
                "forward makes a tensor that is not dense, at "
                f"{file}:{line}: `{code}`; a program computes with dense tensors. {INSTEAD}"
            ) from error
        raise


def _is_data_dependent(error: Exception) -> bool:
    kinds = (_Shown, _torch.DataDependentOutputException, _torch.DynamicOutputShapeException)
    if isinstance(error, kinds):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NEEDS_DATA)


def _sentence(error: Exception) -> str:
    file, line, code = user_frame(error)
    if is_library(file):  # in backward no line of the user's is under way
        return (
            "The gradient of an operation in forward needs the value of a tensor while the program "
            "is being captured, as does that of x[mask] = values with a boolean mask. Use tensor "
            "operations such as torch.where(mask, values, x)."
        )
    return (
        "forward reads the value of a tensor while the program is being captured, "
        f"at {file}:{line}: `{code}`. "
        "A static program has no values yet, only shapes and dtypes. Avoid .item(), "
        "int(tensor), `if tensor`, .tolist() and printing in forward: use tensor operations such "
        "as torch.where, or branch on shapes or on poptorch.isRunningOnIpu()."
    )


def user_frame(error: BaseException) -> tuple[str, int, str]:
    """File, line and source text of the innermost frame outside torch and this project."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if not is_library(frame.filename):
            code = frame.line or linecache.getline(frame.filename, frame.lineno or 0)
            return frame.filename, frame.lineno or 0, code.strip()
    last = frames[-1]
    return last.filename, last.lineno or 0, (last.line or "").strip()
