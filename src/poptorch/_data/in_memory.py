"""Data sets in memory whose items can be fetched many at a time, as the batch that they make.

Known are ``TensorDataset`` and ``Subset``, torchvision's data sets that keep their pictures in one
array, and classes whose ``__getitem__`` does nothing but index tensors. Nothing is kept between
batches: a program may exchange arrays and transforms at any time.
"""

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from poptorch._data import transforms
from poptorch._data.transforms import Pictures, UnknownError

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def batch(dataset: Any, indices: Sequence[int]) -> Any:
    """Return what torch's default collate function makes of some items.

    Args:
        dataset: map-style.
        indices: of the items, in order.

    Returns:
        New tensors whose dimension 0 counts the items: a list of them where an item is a tuple.

    Raises:
        UnknownError: items have to be fetched one by one; the message says why.
    """
    kind = type(dataset)
    if kind is Subset:
        return batch(dataset.dataset, _of_subset(dataset.indices, indices))
    if kind is TensorDataset:
        return _rows(dataset.tensors, indices)
    method = getattr(kind, "__getitem__", None)
    home = getattr(method, "__module__", ""), getattr(method, "__qualname__", "")
    pictures = _TORCHVISION.get(home)
    if pictures is not None:
        return _with_transforms(dataset, pictures(dataset, indices), indices)
    form, names = indexed_attributes(kind)
    values = _rows([_attribute(dataset, name) for name in names], indices)
    return values if form is tuple else values[0]


def _of_subset(chosen: Any, indices: Sequence[int]) -> list[int]:
    _check(indices, len(chosen))
    if isinstance(chosen, torch.Tensor | np.ndarray):
        chosen = chosen.tolist()
    return [chosen[index] for index in indices]


def _check(indices: Sequence[int], count: int) -> None:
    """Refuse what a list and a tensor do not index alike; items say what is wrong with it."""
    if not indices or set(map(type, indices)) != {int}:
        raise UnknownError("indices are not plain integers")
    if min(indices) < 0 or max(indices) >= count:
        raise UnknownError("indices count from the end, or are beyond it")


def _rows(tensors: Sequence[Any], indices: Sequence[int]) -> list[torch.Tensor]:
    if not all(map(_is_plain, tensors)):
        raise UnknownError("its items do not come from plain tensors on the host")
    _check(indices, min(map(len, tensors)))
    # Several times as fast as a tensor made of a list.
    places = torch.from_numpy(np.array(indices, np.int64))
    return [tensor.index_select(0, places) for tensor in tensors]


def _is_plain(value: Any) -> bool:
    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and value.ndim > 0
        and not value.requires_grad
        and not value.is_quantized
    )


# -- torchvision -----------------------------------------------------------------------------------


def _of_mnist(dataset: Any, indices: Sequence[int]) -> torch.Tensor:
    (values,) = _rows([dataset.data], indices)
    return values.unsqueeze(1)


def _of_usps(dataset: Any, indices: Sequence[int]) -> torch.Tensor:
    (values,) = _rows([torch.from_numpy(dataset.data)], indices)
    return values.unsqueeze(1)


def _of_cifar(dataset: Any, indices: Sequence[int]) -> torch.Tensor:
    (values,) = _rows([torch.from_numpy(dataset.data)], indices)
    return values.permute(0, 3, 1, 2).contiguous()


#: What pictures [rows, channels, height, width] a ``__getitem__`` begins with, by its home.
_TORCHVISION: dict[tuple[str, str], Callable[[Any, Sequence[int]], torch.Tensor]] = {
    ("torchvision.datasets.mnist", "MNIST.__getitem__"): _of_mnist,
    ("torchvision.datasets.usps", "USPS.__getitem__"): _of_usps,
    ("torchvision.datasets.cifar", "CIFAR10.__getitem__"): _of_cifar,
}


def _with_transforms(dataset: Any, values: torch.Tensor, indices: Sequence[int]) -> list:
    if values.dtype is not torch.uint8 or dataset.target_transform is not None:
        raise UnknownError("its pictures are not bytes, or it has a target_transform")
    images = transforms.apply(dataset.transform, Pictures(values))
    if not isinstance(images, torch.Tensor):
        raise UnknownError("its items are objects of PIL")
    return [images.contiguous(), _targets(dataset.targets, indices)]


def _targets(targets: Any, indices: Sequence[int]) -> torch.Tensor:
    if isinstance(targets, list):
        chosen = [targets[index] for index in indices]
        if set(map(type, chosen)) != {int}:
            raise UnknownError("its targets are not plain integers")
        return torch.tensor(chosen)
    (chosen,) = _rows([targets], indices)
    if chosen.dtype not in _INTEGERS or chosen.ndim != 1:
        raise UnknownError("its targets are not integers")
    return chosen.to(torch.int64)


# -- classes of programs ---------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def indexed_attributes(kind: type) -> tuple[type, tuple[str, ...]]:
    """Return what a class whose items are rows of its tensors indexes.

    Its code is compared with that of ``return self.a[index]`` and of
    ``return self.a[index], self.b[index]``, with any number of attributes.

    Returns:
        The type of an item, tuple or Tensor, and the names of the attributes.

    Raises:
        UnknownError: it does something else.
    """
    method = getattr(kind, "__getitem__", None)
    unusual = UnknownError(f"{kind.__name__}.__getitem__ does more than to index tensors")
    if hasattr(kind, "__getitems__") or kind.__getattribute__ is not object.__getattribute__:
        raise unusual
    if not isinstance(method, types.FunctionType) or method.__defaults__ or method.__closure__:
        raise unusual
    code, names = method.__code__, method.__code__.co_names
    if names and len(inspect.signature(method).parameters) == len(code.co_varnames) == 2:
        owner, index = code.co_varnames
        fields = [f"{owner}.{name}[{index}]" for name in names]
        forms = [(tuple, ", ".join(fields) + ("," if len(fields) == 1 else ""))]
        forms += [(torch.Tensor, fields[0])] * (len(fields) == 1)
        for form, text in forms:
            if code.co_code == _code_of(f"def f({owner}, {index}): return {text}"):
                return form, names
    raise unusual


def _code_of(function: str) -> bytes:
    (code,) = (
        constant
        for constant in compile(function, "<items>", "exec").co_consts
        if isinstance(constant, types.CodeType)
    )
    return code.co_code


def _attribute(dataset: Any, name: str) -> Any:
    attributes = getattr(dataset, "__dict__", {})
    if name not in attributes or hasattr(type(dataset), name):
        raise UnknownError(f"{type(dataset).__name__}.{name} is not a plain attribute")
    return attributes[name]
