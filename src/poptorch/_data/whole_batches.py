"""Reading an in-memory data set batch by batch instead of item by item, with the same bits.

Compared with single items whenever an epoch begins; where anything differs or is not known, items
are fetched one by one. Indices of an epoch are tensors where its sampler is known to draw them all
in one call: torch's batch sampler makes lists, which become tensors again to index with.

Known are ``TensorDataset`` and ``Subset``, torchvision's data sets that keep their pictures in one
array, and classes whose ``__getitem__`` does nothing but index tensors. Nothing is cached between
batches: a program may exchange arrays and transforms at any time.
"""

import functools
import inspect
import random
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, cast

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from poptorch._data.samplers import PartitionSampler


class UnknownError(Exception):
    """The error that a data set's items must be fetched one by one; its message says why."""


_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
#: Indices of items, in order: any list, or a tensor without negative numbers.
Indices = Sequence[int] | torch.Tensor

_FIRST, _AT_RANDOM = 2, 6  # items that are compared
_AT_ONCE = 64  # batches: a long epoch need not wait until the last of them is divided off

#: Errors of reading a whole batch; reading its items one by one then raises the data set's own.
_FAILURES = (UnknownError, RuntimeError, TypeError, ValueError, IndexError, AttributeError)


class WholeBatches:
    """An epoch of an in-memory data set; indices are lists, or tensors without negatives."""

    def __init__(self, dataset: Any, indices: Any, *, pinned: bool):
        self._dataset, self._sampler, self._pinned = dataset, indices, pinned
        self._indices = iter(indices)

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        return len(self._sampler)

    def __next__(self) -> Any:
        indices = next(self._indices)
        try:
            batch = _batch(self._dataset, indices)
        except _FAILURES:  # the program may have changed the data set meanwhile
            batch = _from_items(self._dataset, _numbers(indices))
        return _pinned(batch) if self._pinned else batch


def _pinned(batch: Any) -> Any:
    if isinstance(batch, list):
        return [_pinned(each) for each in batch]
    return batch.pin_memory() if isinstance(batch, torch.Tensor) else batch


def why_single(dataset: Any, collate: Callable[[list], Any]) -> str | None:
    """Return why a data set's items must be fetched one by one; None if batches have the same bits.

    Reads a few items. Neither torch's random numbers nor Python's are touched.
    """
    if collate is not default_collate:
        return "the loader has a collate function of its own"
    try:
        count = len(dataset)
        some = _compared(count)
        batch = _batch(dataset, some)
    except _FAILURES as problem:
        name = type(dataset).__name__
        return str(problem) if isinstance(problem, UnknownError) else f"{name} is not known"
    try:
        same = _equal(batch, _from_items(dataset, some))
    except Exception:  # noqa: BLE001 - the loop will meet it where it belongs
        same = False
    return None if same else f"{type(dataset).__name__} gives other bits item by item"


@functools.lru_cache(maxsize=16)
def _compared(count: int) -> tuple[int, ...]:
    # Not for secrets: which items are compared does not matter.
    at_random = random.Random(0).sample(range(count), min(_AT_RANDOM, count))
    return (*range(min(_FIRST, count)), *at_random)


def _from_items(dataset: Any, indices: Sequence[Any]) -> Any:
    several = getattr(dataset, "__getitems__", None)
    if callable(several):
        return default_collate(cast("list[Any]", several(indices)))
    return default_collate([dataset[index] for index in indices])


def _equal(some: Any, others: Any) -> bool:
    """Return whether two batches are equal in types, shapes, layout and every bit."""
    if type(some) is not type(others):
        return False
    if isinstance(some, list):
        return len(some) == len(others) and all(map(_equal, some, others))
    return (
        isinstance(some, torch.Tensor)
        and (some.dtype, some.shape, some.stride(), some.device)
        == (others.dtype, others.shape, others.stride(), others.device)
        and torch.equal(_bits(some), _bits(others))
    )


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(-1).view(torch.uint8)


# -- order of an epoch ----------------------------------------------------------------------------


class TensorBatches:
    """The batches of indices that torch's batch sampler would draw, as int64 tensors.

    Args:
        sampler: one of which ``draws_at_once`` is true.
    """

    def __init__(self, sampler: BatchSampler):
        self._sampler = sampler

    def __iter__(self) -> Iterator[torch.Tensor]:
        rows: Any = self._sampler.sampler
        order = _ORDERS[type(rows)](rows)
        size, count = self._sampler.batch_size, len(order)
        if self._sampler.drop_last:
            count -= count % size
        for first in range(0, count, _AT_ONCE * size):
            yield from order[first : min(count, first + _AT_ONCE * size)].split(size)

    def __len__(self) -> int:
        return len(self._sampler)


def draws_at_once(sampler: Any) -> bool:
    """Return whether all indices of an epoch may be drawn early without a visible difference."""
    if type(sampler) is not BatchSampler:
        return False
    rows: Any = sampler.sampler
    if type(rows) is not RandomSampler:
        return type(rows) in _ORDERS
    # A generator of the program's is drawn from once more when the epoch ends.
    whole = not rows.replacement and rows.num_samples == len(rows.data_source)
    return whole and rows.generator is None


def _shuffled(sampler: RandomSampler) -> torch.Tensor:
    seed = int(torch.empty((), dtype=torch.int64).random_().item())
    return torch.randperm(len(sampler.data_source), generator=torch.Generator().manual_seed(seed))


_ORDERS: dict[type, Callable[[Any], torch.Tensor]] = {
    RandomSampler: _shuffled,
    SequentialSampler: lambda sampler: torch.arange(len(sampler.data_source), device="cpu"),
    PartitionSampler: lambda sampler: sampler.order(),
}


# -- data sets ------------------------------------------------------------------------------------


def _batch(dataset: Any, indices: Indices) -> Any:
    """Return items of a map-style data set as torch's default collate function batches them.

    Returns:
        New tensors whose dimension 0 counts the items: a list of them where an item is a tuple.

    Raises:
        UnknownError: items have to be fetched one by one; the message says why.
    """
    return _reader_of(type(dataset))(dataset, indices)


@functools.lru_cache(maxsize=256)
def _reader_of(kind: type) -> Callable[[Any, Indices], Any]:
    """Return a function that reads whole batches from data sets of a given class."""
    if kind is Subset:
        return _of_subset
    if kind is TensorDataset:
        return lambda dataset, indices: _rows(dataset.tensors, indices)
    method = getattr(kind, "__getitem__", None)
    home = getattr(method, "__module__", ""), getattr(method, "__qualname__", "")
    if home in _TORCHVISION:
        return functools.partial(_of_pictures, _TORCHVISION[home])
    form, names = _indexed_attributes(kind)
    for name in names:
        if hasattr(kind, name):
            raise _not_plain(kind, name)
    return functools.partial(_of_attributes, form, names)


def _of_subset(dataset: Any, indices: Indices) -> Any:
    chosen, indices = dataset.indices, _numbers(indices)
    _check(indices, len(chosen))
    if isinstance(chosen, torch.Tensor | np.ndarray):
        chosen = chosen.tolist()
    return _batch(dataset.dataset, [chosen[index] for index in indices])


def _of_attributes(form: type, names: tuple[str, ...], dataset: Any, indices: Indices) -> Any:
    attributes, tensors = getattr(dataset, "__dict__", {}), []
    for name in names:
        if name not in attributes:
            raise _not_plain(type(dataset), name)
        tensors.append(attributes[name])
    values = _rows(tensors, indices)
    return values if form is tuple else values[0]


def _not_plain(kind: type, name: str) -> UnknownError:
    return UnknownError(f"{kind.__name__}.{name} is not a plain attribute")


def _numbers(indices: Indices) -> Sequence[int]:
    """Return item indices as a sequence of numbers; convert a tensor to a list."""
    return indices.tolist() if isinstance(indices, torch.Tensor) else indices


def _check(indices: Sequence[int], count: int) -> None:
    """Raise UnknownError for indices that are negative, too large or not plain integers."""
    if not indices or set(map(type, indices)) != {int}:
        raise UnknownError("indices are not plain integers")
    if min(indices) < 0 or max(indices) >= count:
        raise UnknownError("indices count from the end, or are beyond it")


def _rows(tensors: Sequence[Any], indices: Indices) -> list[torch.Tensor]:
    for tensor in tensors:
        if not _is_plain(tensor):
            raise UnknownError("its items do not come from plain tensors on the host")
    if not isinstance(indices, torch.Tensor):
        _check(indices, min(map(len, tensors)))
        # Several times as fast as a tensor made of a list.
        indices = torch.from_numpy(np.array(indices, np.int64))
    return [torch.index_select(tensor, 0, indices) for tensor in tensors]


def _is_plain(value: Any) -> bool:
    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and value.is_cpu
        and value.ndim > 0
        and not value.requires_grad
        and not value.is_quantized
    )


# -- torchvision -----------------------------------------------------------------------------------


class Pictures:
    """Images, uint8 [rows, channels, height, width], which items would return as PIL objects."""

    def __init__(self, values: torch.Tensor):
        self.values = values


def _of_mnist(dataset: Any, indices: Indices) -> torch.Tensor:
    (values,) = _rows([dataset.data], indices)
    return values.unsqueeze(1)


def _of_cifar(dataset: Any, indices: Indices) -> torch.Tensor:
    (values,) = _rows([torch.from_numpy(dataset.data)], indices)
    return values.permute(0, 3, 1, 2).contiguous()


#: Readers of images [rows, channels, height, width], by (module, name) of ``__getitem__``.
_TORCHVISION: dict[tuple[str, str], Callable[[Any, Indices], torch.Tensor]] = {
    ("torchvision.datasets.mnist", "MNIST.__getitem__"): _of_mnist,
    ("torchvision.datasets.cifar", "CIFAR10.__getitem__"): _of_cifar,
}


def _of_pictures(
    read: Callable[[Any, Indices], torch.Tensor], dataset: Any, indices: Indices
) -> list[torch.Tensor]:
    values = read(dataset, indices)
    if values.dtype is not torch.uint8 or dataset.target_transform is not None:
        raise UnknownError("its pictures are not bytes, or it has a target_transform")
    images = _transformed(dataset.transform, Pictures(values))
    if not isinstance(images, torch.Tensor):
        raise UnknownError("its items are objects of PIL")
    return [images.contiguous(), _targets(dataset.targets, indices)]


def _transformed(transform: Any, images: Any) -> Any:
    """Apply a torchvision transform to every image of a batch, with the same bits.

    Classes are known by name and module: torchvision need not import. Parameters are read at each
    call, so a program may change them at any time.

    Args:
        transform: ``ToTensor``, ``Normalize``, or ``Compose`` of them.
        images: ``Pictures``, or a tensor whose dimension 0 counts items.
    """
    kind = type(transform).__name__
    if type(transform).__module__ != "torchvision.transforms.transforms":
        kind = ""
    if kind == "Compose":
        for each in transform.transforms:
            images = _transformed(each, images)
        return images
    if kind == "ToTensor" and isinstance(images, Pictures):
        return images.values.to(torch.get_default_dtype()).div_(255)
    if kind == "Normalize" and isinstance(images, torch.Tensor):
        mean, deviation = (_column(each, images.dtype) for each in (transform.mean, transform.std))
        # Earlier transforms have made these values, so nobody else sees that they are written.
        return images.sub_(mean).div_(deviation)
    raise UnknownError(
        f"the transform {type(transform).__name__} is not known to act on each item alone"
    )


def _column(numbers: Any, dtype: torch.dtype) -> torch.Tensor:
    if not isinstance(numbers, list | tuple):
        raise UnknownError("Normalize by other than a list of numbers is not known")
    # As text, because 0.0 and -0.0 are equal.
    return _cached_column(tuple(float(number).hex() for number in numbers), dtype)


@functools.lru_cache(maxsize=64)
def _cached_column(numbers: tuple[str, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([*map(float.fromhex, numbers)], dtype=dtype).view(-1, 1, 1)


def _targets(targets: Any, indices: Indices) -> torch.Tensor:
    if isinstance(targets, list):
        chosen = [targets[index] for index in _numbers(indices)]
        if set(map(type, chosen)) != {int}:
            raise UnknownError("its targets are not plain integers")
        return torch.tensor(chosen)
    (chosen,) = _rows([targets], indices)
    if chosen.dtype not in _INTEGERS or chosen.ndim != 1:
        raise UnknownError("its targets are not integers")
    return chosen.to(torch.int64)


# -- classes of programs ---------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _indexed_attributes(kind: type) -> tuple[type, tuple[str, ...]]:
    """Return the tensor attributes that a data set class indexes in ``__getitem__``.

    Its code is compared with that of ``return self.a[index]`` and of
    ``return self.a[index], self.b[index]``, with any number of attributes.

    Returns:
        The type of an item, tuple or Tensor, and the names of the attributes.

    Raises:
        UnknownError: ``__getitem__`` does something else.
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
