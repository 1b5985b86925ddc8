"""NumPy arrays among the arguments of a call, as inputs of a program.

    x = torch.from_numpy(array).float()   ->   the elements of the array are an input slot

The traced call gets a stand-in that can be sliced, cast and converted to a tensor. Computing with
its elements in NumPy is refused, because a program does not have them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Sequence
from typing import Any, cast

import numpy as np
import torch

from abele._torch.replaced import Function, replaced
from abele.capture.diagnose import user_frame
from abele.errors import CaptureError, DataDependentError
from abele.functions.varying import Unread
from abele.warn import user_line

_any_torch: Any = torch  # some of its functions have no types
_KINDS = (np.ndarray, np.memmap)


def as_tensor(value: Any) -> Any:
    """Return a tensor in the memory of an array of numbers; other values as they are."""
    if type(value) in _KINDS:
        with contextlib.suppress(TypeError, ValueError):  # elements or strides that torch lacks
            return _any_torch.from_numpy(value)
    return value


class GivenArray(Unread):
    """Stands for an argument that is an array, or a view or cast of one.

    Args:
        what: index of the argument.
        tensor: the traced tensor of its elements.
        dtype: of the array.
        now: computes it from the arguments of a call.
        errors: gets one where its elements are computed with.
    """

    def __init__(
        self,
        what: int,
        tensor: torch.Tensor,
        dtype: Any,
        now: Callable[[Sequence[Any]], Any],
        errors: list[CaptureError],
    ):
        super().__init__(what, np.ndarray)
        self._errors = errors
        self.tensor, self.dtype, self.now = tensor, dtype, now  # type: ignore[reportAttributeAccessIssue]
        self.shape, self.ndim, self.size = tuple(tensor.shape), tensor.dim(), tensor.numel()

    def refuse(self) -> Any:
        """Raise an error: NumPy has no elements to compute with."""
        error = DataDependentError(
            f"The function computes with the elements of an array at {user_line()}. A program has "
            "them as a tensor: convert the array first, by torch.from_numpy(array)."
        )
        self._errors.append(error)
        raise error

    def __getattr__(self, name: str) -> Any:
        protocol = name.startswith("__")  # which torch asks for, and Python 3.13 prints its errors
        return object.__getattribute__(self, name) if protocol else self.refuse()

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, key: Any) -> GivenArray:
        parts = cast("tuple[Any, ...]", key) if isinstance(key, tuple) else (key,)
        if not all(each is None or type(each) in (int, slice, type(...)) for each in parts):
            return self.refuse()
        return self._derived(self.tensor[key], self.dtype, lambda array: array[key])

    def astype(self, dtype: Any) -> GivenArray:
        """Cast the elements, as NumPy does."""
        kind = as_tensor(np.empty(0, dtype))
        if not isinstance(kind, torch.Tensor):
            return self.refuse()
        tensor = self.tensor.to(kind.dtype, copy=True)
        return self._derived(tensor, np.dtype(dtype), lambda array: array.astype(dtype))

    def copy(self) -> GivenArray:
        """Copy the elements."""
        return self._derived(self.tensor.clone(), self.dtype, lambda array: array.copy())

    def _derived(
        self, tensor: torch.Tensor, dtype: Any, compute: Callable[[Any], Any]
    ) -> GivenArray:
        before = self.now
        if not tensor.dim():  # a scalar in NumPy, and no array
            return self.refuse()
        what = cast("int", self.what)
        return GivenArray(what, tensor, dtype, lambda e: compute(before(e)), self._errors)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.refuse()


@contextlib.contextmanager
def conversions() -> Generator[None]:
    """Convert stand-ins of arrays to their tensors where torch converts arrays, in a block.

    Raises:
        DataDependentError: another function is called with a stand-in.
    """
    shared = functools.partial(_convert, torch.Tensor.detach)
    copied = functools.partial(_convert, torch.Tensor.clone)
    names = ("from_numpy", "from_dlpack", "as_tensor", "asarray")
    try:
        with replaced(*((torch, name, shared) for name in names), (torch, "tensor", copied)):
            yield
    except (AttributeError, TypeError, ValueError) as error:
        if GivenArray.__name__ not in str(error):
            raise
        file, line, code = user_frame(error)
        raise DataDependentError(
            f"The function passes an array to other code than torch.from_numpy, torch.as_tensor or "
            f"torch.tensor, at {file}:{line}: `{code}`. Convert it by one of these first."
        ) from error


def _convert(
    tensor_of: Callable[[torch.Tensor], torch.Tensor],
    original: Function,
    data: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    if type(data) is not GivenArray:
        return original(data, *args, **kwargs)
    if args or not {*kwargs} <= {"dtype", "device", "requires_grad"}:
        return data.refuse()
    tensor = tensor_of(data.tensor).to(kwargs.get("device"), kwargs.get("dtype"))
    return tensor.requires_grad_(bool(kwargs.get("requires_grad")))
