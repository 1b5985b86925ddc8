"""Memory slots through which two processes share the elements of a data set.

The memory is an anonymous file: it has no name that could outlive the processes, and it does not
count against the size of /dev/shm, which containers keep small. A slot holds one element; all
elements get the layout of the first one. The program is lent slots.
"""

import contextlib
import io
import mmap
import os
import pickle
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Self

import torch

from poptorch._error import require
from poptorch._forward.structure import parser_for

_ALIGNMENT = 64  # a cache line; also suits every dtype


@dataclass(frozen=True)
class Parts:
    """A data set element as its container kind, tensor names and tensors."""

    kind: str
    names: tuple[Any, ...]
    tensors: list[torch.Tensor]

    @classmethod
    def of(cls, element: Any) -> Self:
        """Split a data set element into container kind, tensor names and tensors.

        Raises:
            AssertionError: It is neither a tensor nor a flat container of tensors.
        """
        if isinstance(element, torch.Tensor):
            return cls("tensor", ("",), [element])
        if parser := parser_for(element):
            tensors = list(parser.yieldTensors(element))
            return cls("custom", tuple(range(len(tensors))), tensors)
        kind = "dict" if isinstance(element, dict) else "list"
        require(
            isinstance(element, dict | tuple | list) and len(element) > 0,
            "AsynchronousDataAccessor takes a tensor, a flat 1D container of tensors or a type "
            f"with a custom parser, not {_describe(element)}",
        )
        items = element if isinstance(element, dict) else dict(enumerate(element))
        for name, item in items.items():
            require(
                isinstance(item, torch.Tensor),
                "AsynchronousDataAccessor takes a flat 1D container of tensors: element "
                f"{name!r} is {_describe(item)}. Let the dataset return tensors only, or "
                "register a custom parser",
            )
        return cls(kind, tuple(items), list(items.values()))


@dataclass(frozen=True)
class Field:
    """The shape, dtype and byte offset of one tensor in a memory slot."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int


@dataclass(frozen=True)
class Layout:
    """The structure, shapes and dtypes shared by all elements of a data set.

    Attributes:
        kind: Container to assemble an element in: tensor, list, dict or custom.
        names: Name of each tensor; the keys of a dict.
        fields: Shape, dtype and byte offset of each tensor.
        slot_bytes: Size of a slot.
        rows: Dimension 0 of all tensors when elements are assembled from slices, else None.
    """

    kind: str
    names: tuple[Any, ...]
    fields: tuple[Field, ...]
    slot_bytes: int
    rows: int | None

    @classmethod
    def of(cls, first: Parts, rows: int | None = None) -> Self:
        """Derive the slot layout from the first element of a data set."""
        fields, end = [], 0
        if rows is not None:
            num_rows(first)
        for tensor in first.tensors:
            require(
                tensor.layout is torch.strided,
                f"AsynchronousDataAccessor takes dense tensors, not {_describe(tensor)}",
            )
            shape = tuple(tensor.shape) if rows is None else (rows, *tensor.shape[1:])
            fields.append(Field(shape, tensor.dtype, end))
            size = torch.Size(shape).numel() * tensor.element_size()
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        return cls(first.kind, first.names, tuple(fields), max(end, _ALIGNMENT), rows)

    def ordered(self, parts: Parts) -> list[torch.Tensor]:
        """Return an element's tensors in the first element's order; raise an error if unlike it."""
        require(
            parts.kind == self.kind and set(parts.names) == set(self.names),
            "All elements need the structure of the first, which was a "
            f"{self.kind} with {list(self.names)}: found a {parts.kind} with {list(parts.names)}",
        )
        by_name = dict(zip(parts.names, parts.tensors, strict=True))
        tensors = [by_name[name] for name in self.names]
        skip = 0 if self.rows is None else 1
        for name, field, tensor in zip(self.names, self.fields, tensors, strict=True):
            same = tensor.layout is torch.strided and tensor.shape[skip:] == field.shape[skip:]
            require(
                same and tensor.ndim == len(field.shape) and tensor.dtype == field.dtype,
                f"All elements need the shapes and types of the first: element {name!r} is "
                f"{_describe(tensor)}, the first was {list(field.shape)} {field.dtype}. Let the "
                "dataset return one type; for a loader set drop_last=True; to merge smaller "
                "batches set rebatched_size",
            )
        return tensors

    def assemble(self, tensors: list[torch.Tensor], structure: bytes | None) -> Any:
        """Build an element from its tensors; `structure` is the result of `structure_of`."""
        if self.kind == "tensor":
            return tensors[0]
        if self.kind == "dict":
            return dict(zip(self.names, tensors, strict=True))
        if structure is None:
            return tensors
        original = _StructureReader(io.BytesIO(structure), tensors).load()
        parser = parser_for(original)
        require(parser is not None, f"{_describe(original)} has no custom parser any more")
        return parser.reconstruct(original, iter(tensors)) if parser else original


def num_rows(parts: Parts) -> int:
    """Return the common size of dimension 0 of an element's tensors, for rebatching.

    Raises:
        AssertionError: The tensors have different sizes, or none.
    """
    sizes = {tuple(tensor.shape[:1]) for tensor in parts.tensors}
    require(
        len(sizes) == 1 and () not in sizes,
        "rebatched_size needs elements whose tensors all have the same number of rows; "
        f"found {', '.join(map(_describe, parts.tensors))}",
    )
    return parts.tensors[0].shape[0]


def anonymous_file(num_bytes: int) -> int:
    """Create an anonymous file of a size in memory and return its descriptor."""
    try:
        descriptor = os.memfd_create("poptorch-accessor")
    except (AttributeError, OSError):  # not Linux, or forbidden there
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, num_bytes)
    return descriptor


class Slots:
    """Memory-mapped slots for data set elements; the mapping outlives the closed file."""

    def __init__(self, layout: Layout, number: int, descriptor: int) -> None:
        self.layout = layout
        self.number = number
        self._memory = mmap.mmap(descriptor, number * layout.slot_bytes)
        os.close(descriptor)

    def window(self, slot: int) -> memoryview:
        """Return a new view of the bytes of a slot; tensors created from it keep it alive."""
        start = slot * self.layout.slot_bytes
        return memoryview(self._memory)[start : start + self.layout.slot_bytes]

    def tensors(self, window: memoryview, rows: int | None = None) -> list[torch.Tensor]:
        """Return the tensors that alias a slot's memory, truncated to ``rows`` unless None."""
        raw = torch.frombuffer(window, dtype=torch.uint8)
        views = [_view(raw, field) for field in self.layout.fields]
        return views if rows is None else [view[:rows] for view in views]


def structure_of(element: Any, tensors: list[torch.Tensor]) -> bytes:
    """Pickle a custom-typed element without its tensors."""
    buffer = io.BytesIO()
    _StructureWriter(buffer, tensors).dump(element)
    return buffer.getvalue()


class _StructureWriter(pickle.Pickler):
    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._numbers = {id(tensor): number for number, tensor in enumerate(tensors)}

    def persistent_id(self, obj: Any) -> int | None:
        return self._numbers.get(id(obj)) if isinstance(obj, torch.Tensor) else None


class _StructureReader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, pid: int) -> torch.Tensor:
        return self._tensors[pid]


def _view(raw: torch.Tensor, field: Field) -> torch.Tensor:
    size = torch.Size(field.shape).numel() * field.dtype.itemsize
    return raw[field.offset : field.offset + size].view(field.dtype).view(field.shape)


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        kind = "" if value.layout is torch.strided else f" {value.layout}"
        return f"a tensor {list(value.shape)} {value.dtype}{kind}"
    return f"a {type(value).__name__}"


def elements_of(dataset: Any) -> Iterator[Any]:
    """Iterate over a data set, by index if it defines no iterator."""
    if hasattr(dataset, "__iter__") or not hasattr(dataset, "__len__"):
        return iter(dataset)
    # Python would index until an IndexError, which a data set need not raise.
    return (dataset[index] for index in range(len(dataset)))


class _Loan(weakref.ref):
    """A weak reference to the memory window of a lent slot, which the slot's tensors keep alive."""

    slot: int


class Lender:
    """Lends memory slots to the program, and reclaims them once their tensors are freed."""

    def __init__(self, connection: Connection, slots: Slots) -> None:
        self._connection = connection
        self._slots = slots
        self._lent: dict[int, _Loan] = {}
        self._process_id = os.getpid()

    def lend(self, slot: int, rows: int | None, structure: bytes | None) -> Any:
        """Build an element in a slot that is reclaimed once all the element's tensors are freed."""
        window = self._slots.window(slot)
        loan = self._lent[slot] = _Loan(window, self._window_gone)
        loan.slot = slot
        tensors = self._slots.tensors(window, rows)
        if len(self._lent) >= self._slots.number:
            # The program keeps elements; one slot at least must go on circulating.
            tensors = [tensor.clone() for tensor in tensors]
        return self._slots.layout.assemble(tensors, structure)

    def give_back(self, slot: int) -> None:
        """Notify the worker that a slot may be filled again."""
        with contextlib.suppress(OSError):  # the worker is gone, nobody needs the slot
            self._connection.send(("free", slot))

    def _window_gone(self, loan: _Loan) -> None:
        if os.getpid() != self._process_id:
            return  # a fork's copy of a tensor is gone, the original may be in use
        self.give_back(loan.slot)  # first: if an interrupt prevents it, the slot stays lent
        if self._lent.get(loan.slot) is loan:
            del self._lent[loan.slot]
