"""Elements of a data set in memory that two processes share, and messages about them.

The memory is an anonymous file: it has no name that could outlive the processes, and it does not
count against the size of /dev/shm, which containers keep small. A slot holds one element; all
elements get the layout of the first one. The program is lent slots.

An exception may end any call of an `Inbox` or a `Lender`: an interrupt, a time limit, a notebook's
stop button. CPython raises it between two calls, never between two assignments of one statement. So
whatever belongs together is assigned in one statement, and everything before it can be done again.
"""

import contextlib
import io
import mmap
import multiprocessing
import os
import pickle
import struct
import tempfile
import weakref
from collections import deque
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
    """An element taken apart: its kind, the name of each tensor, the tensors."""

    kind: str
    names: tuple[Any, ...]
    tensors: list[torch.Tensor]

    @classmethod
    def of(cls, element: Any) -> Self:
        """Take an element apart.

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
    """Layout of one tensor of every element in a slot."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int


@dataclass(frozen=True)
class Layout:
    """Structure, shapes and dtypes that all elements share.

    Attributes:
        kind: What an element is made back into: tensor, list, dict or custom.
        names: Name of each tensor; the keys of a dict.
        fields: Shape, dtype and place of each tensor.
        slot_bytes: Size of a slot.
        rows: Dimension 0 of all tensors when elements are assembled from pieces, else None.
    """

    kind: str
    names: tuple[Any, ...]
    fields: tuple[Field, ...]
    slot_bytes: int
    rows: int | None

    @classmethod
    def of(cls, first: Parts, rows: int | None = None) -> Self:
        """Derive the layout from the first element."""
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
        """Return the tensors of a later element in the order of the first, or refuse it."""
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
                same and tensor.ndim == len(field.shape),
                f"All elements need the shapes of the first: element {name!r} is "
                f"{_describe(tensor)}, the first was {list(field.shape)} {field.dtype}. "
                "For a loader set drop_last=True; to merge smaller batches set rebatched_size",
            )
            if tensor.dtype != field.dtype:
                require_survival(f"Element {name!r}", tensor, field.dtype)
        return tensors

    def casts(self, tensors: list[torch.Tensor]) -> list[str]:
        """Say of each tensor with a type of its own that it is cast to the first one's."""
        return [
            f"Element {name!r} of the dataset is {tensor.dtype} here and was {field.dtype} in the "
            f"first element, whose types all others get: it is {how(tensor.dtype, field.dtype)}. "
            "Let the dataset return one type to avoid that."
            for name, field, tensor in zip(self.names, self.fields, tensors, strict=True)
            if tensor.dtype != field.dtype
        ]

    def assemble(self, tensors: list[torch.Tensor], structure: bytes | None) -> Any:
        """Make an element of its tensors; `structure` is what `structure_of` returned."""
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
    """Return dimension 0, which all tensors of an element must share to be rebatched.

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
    """Create a file without a name and return its descriptor."""
    try:
        descriptor = os.memfd_create("poptorch-accessor")
    except (AttributeError, OSError):  # not Linux, or forbidden there
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, num_bytes)
    return descriptor


class Slots:
    """The memory of all slots; the mapping keeps the memory of the file, which is closed."""

    def __init__(self, layout: Layout, number: int, descriptor: int) -> None:
        self.layout = layout
        self.number = number
        self._memory = mmap.mmap(descriptor, number * layout.slot_bytes)
        os.close(descriptor)

    def window(self, slot: int) -> memoryview:
        """Return the bytes of a slot: a new object, which lives as long as tensors made of it."""
        start = slot * self.layout.slot_bytes
        return memoryview(self._memory)[start : start + self.layout.slot_bytes]

    def tensors(self, window: memoryview, rows: int | None = None) -> list[torch.Tensor]:
        """Return a slot's tensors, which alias its memory; only the first rows if given."""
        raw = torch.frombuffer(window, dtype=torch.uint8)
        views = [_view(raw, field) for field in self.layout.fields]
        return views if rows is None else [view[:rows] for view in views]


def structure_of(element: Any, tensors: list[torch.Tensor]) -> bytes:
    """Return everything of a custom-typed element but its tensors."""
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
    """Iterate over a data set, by index where that is the only way."""
    if hasattr(dataset, "__iter__") or not hasattr(dataset, "__len__"):
        return iter(dataset)
    # Python would index until an IndexError, which a data set need not raise.
    return (dataset[index] for index in range(len(dataset)))


_ALIVE_CHECK_S = 1.0
_HEADER = struct.Struct("!Q")


def send(connection: Connection, message: tuple[Any, ...]) -> None:
    """Send a message to an ``Inbox``.

    Raises:
        OSError: the other end is closed.
    """
    payload = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    data = memoryview(_HEADER.pack(len(payload)) + payload)
    while data:
        data = data[os.write(connection.fileno(), data) :]


class Inbox:
    """Messages of a worker, in order; none is torn or lost when an exception ends a call.

    ``chunks`` are bytes of the first message; without them the next one is the first.
    """

    def __init__(self, process: multiprocessing.Process, connection: Connection) -> None:
        self._process, self._connection = process, connection
        self.chunks: deque[bytes] = deque()

    def first(self) -> tuple[Any, ...]:
        """Return the first message, waiting for it; it stays the first until it is dropped."""
        while True:
            data = b"".join(self.chunks)
            missing = _HEADER.size - len(data)
            if missing <= 0:
                missing += _HEADER.unpack_from(data)[0]
                if not missing:
                    return pickle.loads(data[_HEADER.size :])  # noqa: S301 - the worker's
            if not data:
                self._wait()
            # In one call of C, so that no exception comes between reading bytes and keeping them.
            self.chunks.extend(map(os.read, (self._connection.fileno(),), (missing,)))
            if not self.chunks[-1]:
                raise EOFError

    def drop(self) -> None:
        """Let the next message be the first."""
        self.chunks.clear()

    def _wait(self) -> None:
        # The dead worker's own children may keep the connection open, hence the second question.
        while not self._connection.poll(_ALIVE_CHECK_S):
            if not self._process.is_alive() and not self._connection.poll(0):
                raise EOFError


class _Loan(weakref.ref):
    """A lent slot: a reference to the window that its tensors keep alive.

    Its serial number lets giving it back twice do no harm.
    """

    slot: int
    serial: int


class Lender:
    """Hands slots to the program and, when their tensors are gone, back to the worker."""

    def __init__(self, connection: Connection, slots: Slots) -> None:
        self._connection = connection
        self._slots = slots
        self._lent: dict[int, _Loan] = {}
        self._process_id = os.getpid()

    def lend(
        self, inbox: Inbox, serial: int, slot: int, rows: int | None, structure: bytes | None
    ) -> Any:
        """Make an element of a slot, of which the first message tells."""
        window = self._slots.window(slot)
        loan = _Loan(window, self._window_gone)
        loan.slot, loan.serial = slot, serial
        tensors = self._slots.tensors(window, rows)
        if len(self._lent) + 1 >= self._slots.number:
            # The program keeps elements; one slot at least must go on circulating.
            tensors = [tensor.clone() for tensor in tensors]
        element = self._slots.layout.assemble(tensors, structure)
        nothing: deque[bytes] = deque()
        # Lent exactly when the message is dropped: see the top of this file.
        self._lent[serial], inbox.chunks = loan, nothing
        return element

    def give_back(self, serial: int, slot: int) -> None:
        """Let the worker fill a slot again."""
        with contextlib.suppress(OSError):  # the worker is gone, nobody needs the slot
            self._connection.send(("free", serial, slot))

    def collect(self) -> None:
        """Give back slots whose tensors are gone, where an exception ended that before."""
        for loan in [*self._lent.values()]:
            if loan() is None:
                self._window_gone(loan)

    def _window_gone(self, loan: _Loan) -> None:
        if os.getpid() != self._process_id:
            return  # a fork's copy of a tensor is gone, the original may be in use
        if self._lent.get(loan.serial) is loan:  # else lending came to an exception
            self.give_back(loan.serial, loan.slot)
            self._lent.pop(loan.serial, None)


def require_survival(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Check that a tensor may be cast: numbers stay the same, except that floats may be rounded.

    Args:
        name: What the tensor is, for the message.
        tensor: The values; any shape and dtype.
        dtype: The type that they are about to get.

    Raises:
        AssertionError: A value would become another one (0.5 as an integer, 300 as int8), lose
            digits as an integer that floats cannot hold, or overflow to an infinity. Complex
            numbers do not become real.
    """
    lost = _lost(tensor.detach(), dtype)
    require(
        not bool(lost.any()),
        f"{name} is {tensor.dtype} and holds {_first(tensor, lost)}, which {dtype}, the type of "
        "the first element, cannot hold. Let the dataset return tensors of one type, for example "
        f"with .to({tensor.dtype}) on all of them",
    )


def how(source: torch.dtype, target: torch.dtype) -> str:
    """Return words for a cast that `require_survival` allows."""
    rounds = (
        _is_inexact(source)
        and _is_inexact(target)
        and torch.finfo(target).eps > torch.finfo(source).eps
    )
    return f"rounded to {target}" if rounds else f"cast to {target}"


def _lost(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Mark the values that a cast would lose."""
    if tensor.is_complex() and not dtype.is_complex:
        return torch.ones_like(tensor, dtype=torch.bool)
    cast = tensor.to(dtype)
    if _is_inexact(tensor.dtype) and _is_inexact(dtype):
        return _comparable(tensor).isfinite() & ~_comparable(cast).isfinite()
    restored = cast.real if dtype.is_complex else cast
    # The sign, because -1 as uint8 comes back as -1.
    same_sign = (_comparable(restored) < 0) == (_comparable(tensor) < 0)
    return (restored.to(tensor.dtype) != tensor) | ~same_sign


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    # torch does not compare uint32 or float8 with numbers.
    return tensor if tensor.is_complex() else tensor.double()


def _first(tensor: torch.Tensor, marked: torch.Tensor) -> object:
    return tensor[marked][0].item() if marked.any() else None
