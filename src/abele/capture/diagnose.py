"""Diagnosis of failed captures: error messages with the user's line and a remedy."""

from __future__ import annotations

import contextlib
import linecache
import traceback
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from abele import _torch
from abele.containers import is_array
from abele.errors import CaptureError, DataDependentError
from abele.program.aliasing import INSTEAD
from abele.program.core import is_library
from abele.trace.decompositions import constant_value
from abele.warn import user_line

Function = Callable[..., Any]

# Phrases of torch's own errors for "this needs the tensor's data";
# see tests/unit/capture/test_capture.py.
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

# Remedies with static shapes, for operators whose result shape depends on values.
_MASKS = (
    "Keep the shape: torch.where(mask, x, 0), or (x * mask).sum() / mask.sum() for the mean of "
    "what a mask selects. A mask that is a constant may select."
)
_UNIQUE = "Find unique values of inputs in the data set and pass them, padded to one size."
_STATIC_INSTEAD = {
    "index": _MASKS,
    "masked_select": _MASKS,
    "nonzero": _MASKS,
    "linalg_lstsq": "Use torch.linalg.pinv(a) @ b, which is the solution.",
    "bincount": "Pass a minlength that is larger than every value.",
    "repeat_interleave": "Pass output_size, the sum of all repeats.",
    "_pack_padded_sequence": (
        "Lengths that are constants are no exception. Call the recurrent layer with the padded "
        "sequences: a direction forwards computes the same up to each length, so mask its output "
        "by torch.where(mask, output, 0) and take last states by gather at length - 1."
    ),
    **dict.fromkeys(("_unique", "_unique2", "unique_consecutive", "unique_dim"), _UNIQUE),
}

# Phrases of torch's errors for tensors that are not dense.
_NOT_DENSE = ("Cannot access storage of", "nested_tensor", "quantized nyi in meta tensors")

# Errors of torch.utils.swap_tensors for tensors of a trace, and of module.to(), which calls it.
_SWAPPED = ("because it has weakref associated with it", "_apply(): Couldn't swap")

_NAMED_OPERATORS: Any = (_torch.OpOverloadPacket, _torch.OpOverload)
# For other operators, torch's own errors name the remedy.
_OWN_OPERATORS = ("aten.", "prims.", "higher_order.", "abele.")

_Tensor: Any = torch.Tensor  # its methods have no types

# Functions that read a tensor's memory without calling an operator.
_READ_MEMORY: set[Function] = {_Tensor.tolist, _Tensor.numpy, _Tensor.__array__}

_SHOW_DATA: set[Function] = {_Tensor.__repr__, _Tensor.__format__, _Tensor.__reduce_ex__}


class _Shown(Exception):
    """An error: the user's forward printed, formatted or pickled a traced tensor."""


# In-place changes of a view's shape. While forward is traced, autograd derives the gradient of a
# later write from how the view was made, and misses its new shape; plain PyTorch reads its strides.
_RESHAPES: set[Function] = {
    *(_Tensor.t_, _Tensor.transpose_, _Tensor.swapaxes_, _Tensor.swapdims_),
    *(_Tensor.squeeze_, _Tensor.unsqueeze_, _Tensor.as_strided_),
}


class _NoPrinting(TorchFunctionMode):
    """A dispatch mode that refuses to print traced tensors, which have no data.

    What reads memory gets the value that a tensor has in the trace, if that is known. An array of
    it cannot be written: the program would not see that.
    """

    def __init__(self, shows: bool):
        super().__init__()
        self._shows = shows
        # Views, the version of their memory without later writes, and the line.
        self._reshaped = list[tuple[torch.Tensor, int, str]]()

    def check_writes(self) -> None:
        """Raise CaptureError for views that are reshaped in place and written to, with the line."""
        for view, version, line in self._reshaped:
            if view.requires_grad and view._version != version:
                raise CaptureError(
                    f"forward changes the shape of a view in place at {line}, and writes into its "
                    "memory later; a program does not get the gradient of that. Make another view "
                    "instead, such as `view = view.transpose(...)`."
                )

    def __torch_function__(
        self, func: Function, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _SHOW_DATA and not self._shows:
            raise _Shown(f"{func.__name__} of a tensor")
        if func in _READ_MEMORY:
            known = constant_value(args[0])
            if known is None:
                raise _Shown(f"{func.__name__} of a tensor")
            with _torch.outside_the_trace():
                value = func(known, *args[1:], **(kwargs or {}))
            if is_array(value) and _torch.traced_node(args[0]) is not None:
                value.flags.writeable = False
            return value
        if isinstance(func, _NAMED_OPERATORS):
            return self._library_operator(func, args, kwargs or {})
        return self._called(func, args, kwargs or {})

    def _called(self, func: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        if func not in _RESHAPES or not args[0]._is_view():
            return func(*args, **kwargs)
        view, before = args[0], args[0]._version
        result = func(*args, **kwargs)
        # A new shape counts as a write, and leaves the memory as it was.
        self._reshaped = [
            (each, version + (each._base is view._base) * (view._version - before), line)
            for each, version, line in self._reshaped
        ]
        self._reshaped.append((view, view._version, user_line()))
        return result

    def _library_operator(self, func: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call an operator by its name in ``torch.ops``, in its library's form if not torch's."""
        try:
            return self._called(func, args, kwargs)
        except Exception as error:
            if str(func).startswith(_OWN_OPERATORS) or not _is_data_dependent(error):
                raise
            raise CaptureError(
                f"forward calls {func} at {user_line()}, and this operator of a library reads the "
                "memory or values of its arguments while the program is being captured. Write it "
                "with torch's operations, or define it by torch.library.custom_op with its "
                "register_fake and register_autograd."
            ) from error


@contextlib.contextmanager
def explained(*, shows: bool = False, subject: str = "forward") -> Generator[None]:
    """Translate torch's errors for a forward that cannot be captured, in a ``with`` block.

    Every other exception of the user's forward passes unchanged.

    Args:
        shows: forward may print, format and pickle tensors, of which torch shows the shape alone.
        subject: what is captured, at the beginning of messages.

    Raises:
        DataDependentError: it reads a value, which a trace does not have.
        CaptureError: it creates a tensor that is not dense, or writes outside the trace.
    """
    try:
        with _NoPrinting(shows) as mode:
            yield
        mode.check_writes()
    except Exception as error:
        if _is_data_dependent(error):
            raise DataDependentError(_sentence(error, subject)) from error
        if isinstance(error, RuntimeError) and any(text in str(error) for text in _NOT_DENSE):
            file, line, code = user_frame(error)
            raise CaptureError(
                f"{subject} makes a tensor that is not dense, at "
                f"{file}:{line}: `{code}`; a program computes with dense tensors. {INSTEAD}"
            ) from error
        if isinstance(error, RuntimeError) and any(text in str(error) for text in _SWAPPED):
            file, line, code = user_frame(error)
            raise CaptureError(
                f"{subject} puts other tensors in the place of parameters, at "
                f"{file}:{line}: `{code}`. A program keeps the tensors it was compiled with. Call "
                "module.to() and the like before the model is wrapped, and exchange values by "
                "`a.data, b.data = b.data, a.data`."
            ) from error
        raise


def _is_data_dependent(error: Exception) -> bool:
    kinds = (_Shown, _torch.DataDependentOutputException, _torch.DynamicOutputShapeException)
    if isinstance(error, kinds):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NEEDS_DATA)


_IN_FUNCTIONS = (
    "Numbers that are only logged or returned: return the tensor, and call item() in a statement "
    "of the decorated function itself, or after its call. Others: use tensor operations such as "
    "torch.where."
)
_IN_LOOPS = " A loop over batches: decorate a function of one batch, which the loop calls."


def _sentence(error: Exception, subject: str) -> str:
    file, line, code = user_frame(error)
    if is_library(file):  # in backward no line of the user's is under way
        return (
            f"The gradient of an operation in {subject.lower()} needs the value of a tensor while "
            "the program is being captured, as does that of x[mask] = values with a boolean mask. "
            "Use tensor operations such as torch.where(mask, values, x)."
        )
    read = (
        f"{subject} reads the value of a tensor while the program is being captured, "
        f"at {file}:{line}: `{code}`. {_on_shapes(error)}"
    )
    if subject != "forward":
        return read + _IN_FUNCTIONS + (_IN_LOOPS if code.startswith("for ") else "")
    return read + (
        "A static program has no values yet, only shapes and dtypes. Avoid .item(), "
        "int(tensor), `if tensor`, .tolist() and printing in forward: use tensor operations such "
        "as torch.where, or branch on shapes. Pass num_classes to one_hot, a momentum to "
        "BatchNorm, positions as a list to tensor_split, and output sizes to functions that take "
        "them."
    )


def _on_shapes(error: Exception) -> str:
    """Explain an operator whose result has no static shape; empty for other errors."""
    if not isinstance(error, _torch.DynamicOutputShapeException):
        return ""
    operator = str(error).removeprefix("aten.").partition(".")[0]
    remedy = _STATIC_INSTEAD.get(operator, _MASKS)
    return f"How many elements {operator.lstrip('_')} returns depends on values. {remedy} "


def user_frame(error: BaseException) -> tuple[str, int, str]:
    """Return file, line and text of the innermost frame outside torch and this project."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if not is_library(frame.filename):
            code = frame.line or linecache.getline(frame.filename, frame.lineno or 0)
            return frame.filename, frame.lineno or 0, code.strip()
    last = frames[-1]
    return last.filename, last.lineno or 0, (last.line or "").strip()
