"""Helpers of the kernels' self-test: small calls of a kernel, with exact results."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from abele.errors import CorruptExecutable

Tensor = torch.Tensor

#: Lengths of rows: each remainder of one and of two of the widest registers (16 floats), and a few
#: lengths that span several blocks of a kernel.
TAILS = (*range(1, 34), 47, 63, 64, 65, 130, 257)
#: Rounding errors that a result may have, as a multiple of the type's precision and of the largest
#: exact element. Sums of these tables have a hundredth of it; a lost element is a hundred times it.
_ROUNDINGS = 64
_MARGIN = 64  # elements before and after a result; keeps its alignment
_SEVERAL = contextvars.ContextVar("threads", default=1)
#: Names of kernels without code for the sizes of the current case.
_REFUSED = list[str]()


class Case(NamedTuple):
    """Results of a kernel call, with the results of exact arithmetic.

    Attributes:
        sizes: of the call, by their names in ``abi.h``.
        results: float32 tensors that the kernel wrote.
        exact: float64 tensors by operators of torch or plain loops, in the same order.
    """

    sizes: Mapping[str, Any]
    results: Sequence[Tensor]
    exact: Sequence[Tensor]

    def problem(self) -> str | None:
        """Describe how a result exceeds the error tolerance or its memory; None if all agree."""
        for result, exact in zip(self.results, self.exact, strict=True):
            error = (result.double() - exact).abs().max().item()
            largest = max(1.0, exact.abs().max().item())
            sizes = ", ".join(f"{name} {size}" for name, size in self.sizes.items())
            if not error <= _ROUNDINGS * torch.finfo(torch.float32).eps * largest:  # NaN is wrong
                wrong = "it wrote no number" if math.isnan(error) else f"off by {error:.1e}"
                return f"{wrong} where numbers are up to {largest:.1e} (for {sizes})"
            if _is_overrun(result):
                return f"it wrote beyond its result (for {sizes})"
        return None


#: A test table: calls a library's kernel for each of its cases.
Table = Callable[[ctypes.CDLL], Iterator[Case]]


def first_problem(table: Table, library: ctypes.CDLL) -> str | None:
    """Describe the first wrong result of a kernel and its sizes; None if all cases agree.

    Cases without code are skipped: processors without wide registers lack some.
    """
    try:
        for case in table(library):
            found = None if _REFUSED else case.problem()
            if found is not None:
                return found
            _REFUSED.clear()
    except Exception as error:  # noqa: BLE001 - whatever it is, the kernel has not passed
        return f"it could not be called ({type(error).__name__}: {error})"
    finally:
        _REFUSED.clear()
    return None


def both(name: str, table: Callable[..., Iterator[Case]], forward: str = "") -> dict[str, Table]:
    """Return the test tables of a kernel and its backward, selected by ``table``'s ``backward``."""
    return {
        f"{name}{forward}": functools.partial(table, backward=False),
        f"{name}_backward": functools.partial(table, backward=True),
    }


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Return normally distributed float32 numbers, independent of global defaults and seeds."""
    generator = torch.Generator("cpu").manual_seed(1 + seed)
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def named(names: Sequence[str], sizes: Sequence[Any]) -> dict[str, Any]:
    """Map names of a kernel call's sizes to their values."""
    return dict(zip(names, sizes, strict=True))


def integers(limit: int, *shape: int, seed: int = 0) -> Tensor:
    """Return random int64 tensors of values below a limit, from a fixed seed."""
    generator = torch.Generator("cpu").manual_seed(1 + seed)
    return torch.randint(limit, shape, generator=generator, dtype=torch.int64, device="cpu")


def unwritten(*shapes: Sequence[int]) -> list[Tensor]:
    """Return float32 result tensors filled with NaN, which reveals unwritten elements.

    Each has a margin of NaN, which a kernel must not write.
    """
    results = list[Tensor]()
    for shape in shapes:
        size = math.prod(shape) + 2 * _MARGIN
        memory = torch.full((size,), math.nan, dtype=torch.float32, device="cpu")
        results.append(memory[_MARGIN:-_MARGIN].view(tuple(shape)))
    return results


def nearly(result: Tensor, exact: Tensor) -> Tensor:
    """Return exact numbers where a tensor in bfloat16 has no more than a few roundings' error."""
    if result.dtype is torch.float32:
        return result
    near = (result - exact).abs() <= torch.finfo(result.dtype).eps * exact.abs().max()
    return torch.where(near, exact.float(), result.float())


def _is_overrun(result: Tensor) -> bool:
    """Return whether a kernel wrote beyond a tensor of ``unwritten``."""
    whole = torch.empty(0, dtype=result.dtype, device="cpu").set_(result.untyped_storage())
    if whole.numel() != result.numel() + 2 * _MARGIN:
        return False
    return not bool(torch.cat([whole[:_MARGIN], whole[-_MARGIN:]]).isnan().all())


def call(function: Any, *arguments: Any) -> None:
    """Call a kernel with tensors passed by address.

    Results stay NaN if there is no code for the sizes.
    """
    try:
        function(*(each.data_ptr() if isinstance(each, Tensor) else each for each in arguments))
    except CorruptExecutable:
        _REFUSED.append(function.__name__)


def double(*tensors: Tensor) -> list[Tensor]:
    """Return float64 copies of tensors that require gradients."""
    return [each.double().requires_grad_() for each in tensors]


def gradients(result: Tensor, leaves: Tensor | Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    """Return the gradients of leaf tensors for a given gradient of a result."""
    return list(torch.autograd.grad((result * grad).sum(), leaves))  # as given, it imports SymPy


def last(images: Tensor) -> Tensor:
    """Permute NCHW images to NHWC memory order."""
    return images.permute(0, 2, 3, 1)


def first(images: Tensor) -> Tensor:
    """Permute NHWC images to NCHW."""
    return images.permute(0, 3, 1, 2)


def threads_of(index: int) -> int:
    """Return the number of threads of a test case: mostly one, as threads wait on busy machines."""
    return _SEVERAL.get() if index == 13 else 1


@contextlib.contextmanager
def few_threads() -> Generator[None]:
    """Limit torch to one thread and kernels to two, in a context.

    A program with one thread keeps it for kernels, too: it may be about to fork.
    """
    threads = torch.get_num_threads()
    token = _SEVERAL.set(min(2, threads))
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _SEVERAL.reset(token)
