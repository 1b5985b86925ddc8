"""Named tensors: torch tensors bound to an input or output of a program."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch

from sambaflow.errors import UsageError
from sambaflow.logging import hint

_ids = itertools.count()

# Methods whose result is the same tensor in another form, and keeps its name.
_KEEP_NAME = frozenset(
    {
        "float", "double", "half", "bfloat16", "long", "int", "short", "bool", "to", "type",
        "contiguous", "detach", "clone", "cpu", "requires_grad_", "pin_memory",
    }
)  # fmt: skip
_CARRIED = ("_sn_name", "batch_dim", "named_dims", "host_memory", "sn_region_name")


class SambaTensor(torch.Tensor):
    """A tensor with a name, a batch dimension and a gradient on the device.

    It computes like any torch tensor; results are SambaTensors too.

    Args:
        torch_tensor: the data, whose memory is shared; None makes a tensor without data.
        shape: of a tensor without data.
        dtype: of a tensor without data; default torch's.
        name: which input or output it is; by default ``sambatensor_ID``.
        batch_dim: the dimension of the samples.
        named_dims: names of the dimensions, kept and not read.
        sized_dims: accepted, without effect.
        materializer: called without arguments for the data when they are first asked for.
        is_complex: accepted, without effect.
        region_name: kept as ``sn_region_name``, not read.
    """

    batch_dim: int | None = None
    named_dims: Sequence[str] | None = None
    host_memory: bool = False  # a hint where the tensor is kept; without effect
    sn_region_name: str | None = None
    _sn_name: str | None = None
    _materializer: Callable[[], torch.Tensor] | None = None
    _sn_grad: torch.Tensor | None = None
    _origin: SambaTensor | None = None  # of a result: the output of the program that it is of

    @staticmethod
    def __new__(
        cls,
        torch_tensor: torch.Tensor | None = None,
        shape: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        **settings: Any,
    ):
        """Create a named tensor that shares memory with ``torch_tensor``, or has only a shape."""
        del settings
        if torch_tensor is None:
            if shape is None:
                raise ValueError(
                    "A SambaTensor needs torch_tensor, or a shape to be without data; both are "
                    "None."
                )
            torch_tensor = torch.empty(tuple(shape), dtype=dtype, device="meta")
        elif dtype is not None and torch_tensor.dtype is not dtype:
            torch_tensor = torch_tensor.to(dtype)
        return torch_tensor.as_subclass(cls)

    def __init__(
        self,
        torch_tensor: torch.Tensor | None = None,
        shape: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        name: str | None = None,
        batch_dim: int | None = None,
        named_dims: Sequence[str] | None = None,
        sized_dims: Any = None,
        materializer: Callable[[], torch.Tensor] | None = None,
        is_complex: bool | None = None,
        region_name: str | None = None,
    ):
        del torch_tensor, shape, dtype, is_complex
        if sized_dims is not None:
            hint("SambaTensor(sized_dims=...)", "shapes are static")
        self._sn_name, self.batch_dim, self.named_dims = name, batch_dim, named_dims
        self._materializer, self.sn_region_name = materializer, region_name

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ):
        """Call torch's function; a converted or moved tensor keeps its name."""
        result = super().__torch_function__(func, types, args, kwargs or {})
        name = getattr(func, "__name__", "")
        if name in _KEEP_NAME and isinstance(result, SambaTensor) and result is not args[0]:
            for key in _CARRIED:
                if key in getattr(args[0], "__dict__", {}):
                    setattr(result, key, args[0].__dict__[key])
        return result

    @property
    def sn_name(self) -> str:
        """The tensor's name, assigned at the first read."""
        if self._sn_name is None:
            self._sn_name = f"sambatensor_{next(_ids)}"
        return self._sn_name

    @sn_name.setter
    def sn_name(self, name: str) -> None:
        self._sn_name = name

    @property
    def has_data(self) -> bool:
        """True if the tensor has memory, not only a shape."""
        return self.device.type != "meta"

    @property
    def sn_data(self) -> torch.Tensor:
        """The tensor's values on the device; for outputs, those of the run that computed it."""
        return self.torch()

    @property
    def sn_grad(self) -> torch.Tensor | None:
        """The output gradient from which backward starts; assign it, then run backward.

        It stays until it is assigned again; None means ones.
        """
        return self._sn_grad if self._origin is None else self._origin._sn_grad

    @sn_grad.setter
    def sn_grad(self, value: torch.Tensor | None) -> None:
        target = self if self._origin is None else self._origin
        if value is not None and tuple(value.shape) != tuple(target.shape):
            raise ValueError(
                f"The gradient of {target.sn_name} has shape {list(value.shape)}, the tensor "
                f"{list(target.shape)}. Pass one of the tensor's shape."
            )
        target._sn_grad = value

    def torch(self) -> torch.Tensor:
        """Return a plain torch tensor that shares the data, materialized first if needed.

        Raises:
            ValueError: it has a shape alone.
        """
        if self.has_data:
            return self.as_subclass(torch.Tensor)
        if self._materializer is None:
            raise ValueError(
                f"{self.sn_name} has a shape and no data. Make it from a torch tensor, or pass a "
                "materializer."
            )
        return torch.as_tensor(self._materializer(), dtype=self.dtype).reshape(self.shape)

    def rdu(self) -> Self:
        """Return the tensor itself, since runs move inputs to the device."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SambaTensor:
        """Copy data and name; torch's ``deepcopy`` refuses tensors without data."""
        if id(self) not in memo:
            copied = SambaTensor(self.as_subclass(torch.Tensor).detach().clone())
            copied.requires_grad_(self.requires_grad)
            for key, value in self.__dict__.items():
                setattr(copied, key, value)
            memo[id(self)] = copied
        return memo[id(self)]

    def __repr__(self, **unused: Any) -> str:
        return (
            f"samba.SambaTensor(name: {self.sn_name}, shape: {tuple(self.shape)}, "
            f"dtype: {self.dtype}, batch_dim: {self.batch_dim}, named_dims: {self.named_dims}, "
            f"keep_data: {self.has_data}, "
            f"materializer_provided: {self._materializer is not None})"
        )


def from_torch_tensor(
    tensor: torch.Tensor, name: str | None = None, batch_dim: int | None = None
) -> SambaTensor:
    """Return a named tensor that shares memory with a torch tensor; refuse anything else."""
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(
            f"from_torch_tensor was given a {type(tensor).__name__}, needed is a tensor. Convert "
            "it by torch.as_tensor."
        )
    if isinstance(tensor, SambaTensor):
        name = tensor._sn_name if name is None else name
        batch_dim = tensor.batch_dim if batch_dim is None else batch_dim
        tensor = tensor.torch()
    return SambaTensor(tensor, name=name, batch_dim=batch_dim)


def to_torch(tensor: Any) -> Any:
    """Return a plain torch tensor with the device's values.

    Tuples and lists are converted item by item.
    """
    if isinstance(tensor, list | tuple):
        return type(tensor)(to_torch(item) for item in tensor)
    method = getattr(type(tensor), "torch", None)
    return tensor.torch() if method is not None else tensor
