"""The casts of weights that ``torch.autocast`` keeps until its outermost block ends."""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from abele._torch.replaced import replaced

_UNTYPED: Any = torch
_is_autocast_enabled: Callable[[], bool] = _UNTYPED._C._is_any_autocast_enabled
_precision_of: Callable[[str, str], str] = _UNTYPED._C._get_fp32_precision_getter
_increment_nesting: Callable[[], int] = _UNTYPED.autocast_increment_nesting
_decrement_nesting: Callable[[], int] = _UNTYPED.autocast_decrement_nesting
TO_COPY: Any = torch.ops.aten._to_copy.default


def types() -> list[tuple[str, torch.dtype]]:
    """Return the types that autocast of this thread casts to, by device; none where it is off."""
    if not _is_autocast_enabled():
        return []
    casting = [each for each in ("cpu", "cuda") if torch.is_autocast_enabled(each)]
    return [(each, torch.get_autocast_dtype(each)) for each in casting]


def of_products() -> str:
    """Return the type that oneDNN casts factors to, in products of float32: bf16, tf32 or none."""
    return _precision_of("mkldnn", "matmul")


def are_kept() -> bool:
    """Return whether casts are kept beyond blocks of autocast that begin now."""
    depth = _increment_nesting()
    _decrement_nesting()
    return depth > 1


class Cast(NamedTuple):
    """A cast of a weight that autocast keeps.

    Attributes:
        weight: a float32 leaf that requires a gradient.
        dtype: of the cast.
    """

    weight: torch.Tensor
    dtype: torch.dtype

    def get(self) -> torch.Tensor:
        """Return the cast that is kept, maybe of earlier values; it is made if there is none."""
        weight, shape = self.weight, self.weight.shape
        none = weight.detach().new_zeros(shape[-1] if shape else 1, 0)
        autocast = torch.autocast(weight.device.type, self.dtype, cache_enabled=True)
        with autocast, _First(weight) as seen:
            torch.matmul(weight, none) if shape else torch.addmm(weight, none, none.t())
        assert seen.found is not None, "autocast casts operands of a matrix multiplication"
        return seen.found


class _First(TorchDispatchMode):
    """Finds the first operand in half precision with the shape of a weight."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self._shape, self.found = weight.shape, None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for each in args:
            halved = isinstance(each, torch.Tensor) and each.dtype.itemsize == 2
            if self.found is None and halved and each.shape == self._shape:
                self.found: Any = each
        return func(*args, **(kwargs or {}))


class Casts(TorchDispatchMode):
    """Finds the weights that autocast casts and would keep, while it keeps none.

    Attributes:
        found: by ``id`` of the weight, the first cast of each.
    """

    def __init__(self):
        super().__init__()
        self.found = dict[int, Cast]()
        self._is_paused = False

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """Find nothing in a ``with`` block, in which code converts a tensor itself."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is TO_COPY and not self._is_paused and _is_cast_once(args[0], kwargs.get("dtype")):
            self.found.setdefault(id(args[0]), Cast(args[0], kwargs["dtype"]))
        return func(*args, **kwargs)


@contextlib.contextmanager
def caching(casts: Casts | None, *, enabled: bool) -> Generator[None]:
    """Let autocast cast each weight once in a ``with`` block, if enabled.

    Args:
        casts: finds the casts, of which autocast keeps none then; None to find none.
        enabled: the cache of casts is on, in a trace of torch's, which turns it off.
    """
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(enabled and casts is None)
    try:
        with contextlib.ExitStack() as finding:
            if casts is not None:
                finding.enter_context(replaced((torch, "set_autocast_cache_enabled", _ignore)))
                finding.enter_context(casts)
            yield
    finally:
        torch.set_autocast_cache_enabled(before)


def _ignore(original: Any, enabled: bool) -> None:
    """Leave the cache of casts as it is."""


def _is_cast_once(tensor: torch.Tensor, dtype: Any) -> bool:
    """Return whether autocast keeps the cast of a tensor to a type."""
    is_weight = tensor.requires_grad and tensor.is_leaf
    halved = dtype == torch.get_autocast_dtype(tensor.device.type)
    return is_weight and halved and tensor.dtype == torch.float32
