"""Execution of a program's loaded code as a function of its inputs."""

from __future__ import annotations

import ctypes
import operator
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele.arena import Arena
from abele.locks import Lock
from abele.program import Program, Role
from abele.targets.base import OfBatch, Run
from abele.targets.cpu.changes import Changes, Checksum
from abele.targets.cpu.emitted.calling import Calling
from abele.targets.cpu.emitted.memory import allocated
from abele.targets.cpu.emitted.prepared import constant_slots
from abele.targets.cpu.emitted.source import REPEAT, Segment
from abele.targets.translation.operations import Foreign, constants_of, places_changed
from abele.targets.translation.places import Buffer, Kind, Place, laid_out

_Part = Callable[[int], None]
_Batch = Sequence[torch.Tensor]
_empty, _address = torch.empty_strided, torch.Tensor.data_ptr
_version = operator.attrgetter("_version")
_NO_MEMORY = "A kernel found no memory for its sums."
# The number of an input, the input, and a copy of it in the order that the code expects.
_Copy = tuple[int, torch.Tensor, torch.Tensor]


class Runner:
    """A callable that runs compiled segments and ATen fallbacks of a program in order.

    Args:
        program: with the roles of the inputs and the constants.
        calling: the call plan.
        library: the compiled code.

    Attributes:
        repeats: whether ``repeated`` and ``bound`` are supported: without ATen calls, and with all
            results in output buffers.
        prepares: its first part runs when constants have changed, see ``prepared``.
    """

    def __init__(self, program: Program, calling: Calling, library: ctypes.CDLL):
        self._lock = Lock()  # a program has one arena
        self._constants = constants_of(program, calling.constants)
        self._arena, self._release = allocated(calling.size)
        self._offsets, self._freed = calling.offsets, calling.freed
        self._entries = {buffer: entry for entry, buffer in enumerate(calling.table)}
        self._table = (ctypes.c_void_p * (1 + len(calling.table)))()
        for buffer, entry in self._entries.items():
            if buffer.kind is Kind.CONSTANT:
                self._table[entry] = self._constants[buffer.index].data_ptr()
        self._memory: dict[Buffer, torch.Tensor] = {}
        self._last: Any = None  # of the segments: its function and arguments
        self._parts = [self._part(each, library) for each in calling.parts]
        (first,) = calling.parts[:1] or (None,)
        self._read_once = first.constants if isinstance(first, Segment) else None
        self.prepares = self._read_once is not None
        self._constant_slots = constant_slots(program) if self.prepares else []
        self._prepared_for: Changes | None = None  # whose constants; see ``with_constants``
        foreign = [each for each in calling.parts if isinstance(each, Foreign)]
        self._alone = not foreign
        # What torch makes has its places while nothing but it and the code between runs.
        self._places = Arena(calling.places) if foreign else None
        self._inputs = calling.inputs
        self._shown = {place.buffer for each in foreign for place in (*each.reads, *each.writes)}
        # These are looked at in every call: they are others each time, or torch reads them.
        self._looked_at = [
            slot.role is Role.INPUT or place.buffer in self._shown
            for slot, place in zip(program.inputs, self._inputs, strict=True)
        ]
        self._written = [slot.mutated for slot in program.inputs]
        self._addresses = [0] * len(self._inputs)
        self._known: list[Callable[[], torch.Tensor | None]] = [_nothing] * len(self._inputs)
        self._outputs = calling.outputs
        self._state: object = None  # whose addresses the table has; see ``bound``
        self.repeats = (
            self._alone
            and hasattr(library, REPEAT)
            and all(p.buffer.kind is Kind.OUTPUT for p in self._outputs)
        )
        if self.repeats:
            self._prepare_repeats(program, library)

    def _prepare_repeats(self, program: Program, library: ctypes.CDLL) -> None:
        """Record which pointer table entries change between micro-batches."""
        self._batch = [i for i, slot in enumerate(program.inputs) if slot.role is Role.INPUT]
        entries = [self._entries.get(self._inputs[i].buffer) for i in self._batch]
        # Of the tensors of a batch, those that the code reads.
        self._read = [i for i, entry in enumerate(entries) if entry is not None]
        self._results_at = [
            entry for buffer, entry in self._entries.items() if buffer.kind is Kind.OUTPUT
        ]
        changing = [entry for entry in entries if entry is not None] + self._results_at
        self._changing = (ctypes.c_int64 * max(1, len(changing)))(*changing)
        self._repeat = getattr(library, REPEAT)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        last = (number, number, pointer, pointer, pointer)
        self._repeat.argtypes = [pointer, pointer, ctypes.c_int, *last]

    def run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run the program: update state in place and return the results.

        Args:
            inputs: one tensor for each slot; the list is emptied.

        Raises:
            ValueError: the number of inputs differs from the number of slots.
        """
        with self._lock:
            return self._run_and_forget(inputs)

    def release(self) -> None:
        """Return the arena's memory to the system; the next run maps it and prepares constants."""
        with self._lock:
            self._prepared_for = None
            self._release()

    def with_constants(self, checksum: Checksum | None) -> Run:
        """Return ``run`` for calls that prepare constants when these have changed.

        Args:
            checksum: see ``Changes``.
        """
        if self._read_once is None:
            return self.run
        changes = Changes(self._read_once, checksum)

        def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            with self._lock:
                if not changes.found(inputs) and self._prepared_for is changes:
                    return self._run_and_forget(inputs, 1)
                results = self._run_and_forget(inputs)
                self._prepared_for = changes
                return results

        return run

    def _run_and_forget(self, inputs: list[torch.Tensor], first: int = 0) -> list[torch.Tensor]:
        try:
            if self._alone:
                return self._run(inputs, first)
            with torch.no_grad():
                return self._run(inputs, first)
        finally:
            inputs.clear()
            self._memory.clear()  # also after an error: a result must not be taken for the next

    def _run(self, inputs: list[torch.Tensor], first: int = 0) -> list[torch.Tensor]:
        copies = self._taken(inputs)  # they live until the call ends
        made = self._results()
        self._compute(torch.get_num_threads(), first)
        outputs = [
            self._tensor(place) if result is None else result
            for place, result in zip(self._outputs, made, strict=True)
        ]
        for index, tensor, ordered in copies:
            if self._written[index]:
                with torch.no_grad():
                    tensor.copy_(ordered)
        return outputs

    def _compute(self, threads: int, first: int) -> None:
        """Run segments and ATen calls from ``first``, freeing ATen results after their last use."""
        if not first:
            self._prepared_for = None
        if self._places is None:
            for part in self._parts[first:]:
                part(threads)
            return
        memory = self._memory
        with self._places.used():
            for part, freed in zip(self._parts[first:], self._freed[first:], strict=True):
                part(threads)
                for buffer in freed:
                    memory.pop(buffer, None)  # torch makes no gradient that nobody wants

    def _taken(self, inputs: list[torch.Tensor]) -> list[_Copy]:
        """Record the addresses of all inputs, and return copies of those in other layouts."""
        if len(inputs) != len(self._inputs):  # a missing one would be read at an old address
            raise ValueError(f"the program has {len(self._inputs)} inputs, not {len(inputs)}")
        self._state = None
        copies: list[_Copy] = []
        addresses, looked_at, known = self._addresses, self._looked_at, self._known
        for index, tensor in enumerate(inputs):
            # Where the same state lies as before, everything is known of it.
            same = known[index]() is tensor and tensor.data_ptr() == addresses[index]
            if looked_at[index] or not same:
                self._take(index, tensor, copies)
        return copies

    def _take(self, index: int, tensor: torch.Tensor, copies: list[_Copy]) -> None:
        """Record an input's address, copying the input if its strides differ from the plan."""
        place = self._inputs[index]
        address = tensor.data_ptr()
        if not place.stride_is(tensor.stride()):
            ordered = torch.empty_strided(place.shape, place.stride, dtype=place.dtype)
            once = tuple(slice(None, None if stride else 1) for stride in place.stride)  # expanded
            with torch.no_grad():
                ordered[once].copy_(tensor[once])
            copies.append((index, tensor, ordered))
            tensor, address = ordered, 0
        self._addresses[index], self._known[index] = address, weakref.ref(tensor)
        entry = self._entries.get(place.buffer)
        if entry is not None:
            self._table[entry] = tensor.data_ptr()
        if place.buffer in self._shown:
            self._memory[place.buffer] = tensor

    def _results(self) -> list[torch.Tensor | None]:
        """Allocate output tensors; None for outputs that ATen or the arena owns."""
        return [
            self._result(place) if place.buffer.kind is Kind.OUTPUT else None
            for place in self._outputs
        ]

    def _result(self, place: Place) -> torch.Tensor:
        if place.buffer in self._memory:  # returned twice
            return self._tensor(place)
        tensor = torch.empty_strided(place.shape, place.stride, dtype=place.dtype)
        entry = self._entries.get(place.buffer)
        if entry is not None:
            self._table[entry] = tensor.data_ptr()
        self._memory[place.buffer] = tensor
        return tensor

    # -- parts -----------------------------------------------------------------------------

    def _part(self, part: Segment | Foreign, library: ctypes.CDLL) -> _Part:
        if isinstance(part, Foreign):
            return self._foreign(part)
        function, arena, table = self._last = self._function(part, library)

        def call(threads: int) -> None:
            if function(arena, table, threads):
                raise MemoryError(_NO_MEMORY)

        return call

    def _function(
        self, part: Segment, library: ctypes.CDLL
    ) -> tuple[Callable[..., int], ctypes.c_void_p, ctypes.c_void_p]:
        """Return the function of a segment and its arguments but the number of threads."""
        # Without types of arguments that it would convert them to, a call takes two thirds.
        table = ctypes.c_void_p(ctypes.addressof(self._table))
        return getattr(library, part.name), ctypes.c_void_p(self._arena.data_ptr()), table

    def _foreign(self, part: Foreign) -> _Part:
        target: Any = part.target

        def call(threads: int) -> None:
            del threads  # torch knows
            arguments, options = places_changed((part.arguments, part.options), self._tensor)
            value = target(*arguments, **options)
            values = value if part.several else [value]
            for place, result in zip(part.results, values, strict=False):
                # Torch makes no gradient that nobody wants, whatever it says of its type.
                if place is not None and result is not None:
                    self._keep(place, result)

        return call

    def _keep(self, place: Place, tensor: torch.Tensor) -> None:
        """Record the address of an ATen result, copied if its strides differ from the plan."""
        lazy = tensor.is_conj() or tensor.is_neg()  # its memory holds other numbers
        if _is_short(tensor, place):
            assert place.buffer not in self._entries, "code would read beside it"
        elif lazy or not place.stride_is(tensor.stride()):
            tensor = laid_out(tensor, place)
        self._memory[place.buffer] = tensor
        entry = self._entries.get(place.buffer)
        if entry is not None:
            self._table[entry] = tensor.data_ptr()

    def _tensor(self, place: Place) -> torch.Tensor:
        """Return the tensor for a view of a buffer."""
        kind = place.buffer.kind
        if kind is Kind.ARENA:
            begin = self._offsets.get(place.buffer, 0)
            memory = self._arena[begin : begin + place.buffer.bytes].view(place.dtype)
        elif kind is Kind.CONSTANT:
            memory = self._constants[place.buffer.index]
        else:
            memory = self._memory[place.buffer]
            if _is_short(memory, place):
                return memory
        if memory.shape == place.shape and place.stride_is(memory.stride()) and not place.offset:
            return memory
        return memory.as_strided(place.shape, place.stride, memory.storage_offset() + place.offset)

    # -- several runs, and runs with the same state ------------------------------------------

    def repeated(
        self,
        inputs: list[torch.Tensor],
        batches: Sequence[_Batch],
        kept: Sequence[bool],
        marks: list[Any],
    ) -> list[list[torch.Tensor]]:
        """Run the program for each micro-batch in turn; see ``base.Repeated``."""
        given = self._with(inputs, batches[0])
        with self._lock:
            try:
                if not self._taken(given) and _lie_alike(batches):
                    self._prepare()
                    return self._run_all(batches, kept, marks)
            finally:
                self._memory.clear()
        return [self._run_one(inputs, batch, marks) for batch in batches]

    def _prepare(self) -> None:
        """Compute what following parts read of constants."""
        self._prepared_for = None
        for part in self._parts[: int(self.prepares)]:
            part(torch.get_num_threads())

    def _with(self, inputs: list[torch.Tensor], batch: _Batch) -> list[torch.Tensor]:
        given = inputs.copy()
        for position, tensor in zip(self._batch, batch, strict=True):
            given[position] = tensor
        return given

    def _run_one(
        self, inputs: list[torch.Tensor], batch: _Batch, marks: list[Any]
    ) -> list[torch.Tensor]:
        given = self._with(inputs, batch)
        marks.append(time.perf_counter_ns())
        results = self.run(given)
        marks.append(time.perf_counter_ns())
        return results

    def _run_all(
        self, batches: Sequence[_Batch], kept: Sequence[bool], marks: list[Any]
    ) -> list[list[torch.Tensor]]:
        results, addresses = self._all_results(batches, kept)
        moments = (ctypes.c_int64 * (2 * len(batches)))()
        marks.append(time.perf_counter_ns())  # before anything changes, also if that is stopped
        failed = self._repeat(
            self._arena.data_ptr(),
            self._table,
            torch.get_num_threads(),
            len(batches),
            len(self._read) + len(self._results_at),
            self._changing,
            (ctypes.c_void_p * max(1, len(addresses)))(*addresses),
            moments,
        )
        if failed:
            raise MemoryError(_NO_MEMORY)
        marks += moments[1:]
        return results

    def _all_results(
        self, batches: Sequence[_Batch], kept: Sequence[bool]
    ) -> tuple[list[list[torch.Tensor]], list[int | None]]:
        """Allocate the outputs of all micro-batches; return them with changing addresses."""
        results: list[list[torch.Tensor]] = []
        addresses: list[int | None] = []
        unwanted: tuple[list[torch.Tensor], list[int | None]] | None = None
        for batch, keep in zip(batches, kept, strict=True):
            made = None if keep else unwanted
            if made is None:
                self._memory.clear()
                tensors = [self._result(place) for place in self._outputs]
                made = tensors, [self._table[entry] for entry in self._results_at]
            if not keep:
                unwanted = made
            results.append(made[0])
            addresses += [batch[each].data_ptr() for each in self._read]
            addresses += made[1]
        return results, addresses

    def bound(self, arguments: _Batch, batch: Sequence[int], *, adopted: bool) -> OfBatch | None:
        """Return a callable with bound state that accepts only the batch's tensors."""
        positions = [i for i in range(len(arguments)) if i not in batch]
        if not self._is_bindable or self._constant_slots not in ([], positions):
            return None
        # Constants that are written have other versions. Whoever adopts state compares addresses.
        state = [arguments[i] for i in positions if self.prepares or not adopted]
        alive, known = [arguments[i].untyped_storage() for i in positions], list[int]()
        look, mark = _version if self.prepares else _address, object()  # a name, no reference
        lock, table, threads = self._lock, self._table, torch.get_num_threads
        (function, arena, given_table), count = self._last, len(batch)
        given = [(p.stride, self._entry(p)) for p in (self._inputs[i] for i in batch)]
        made, like = [(_pattern(p), self._entry(p)) for p in self._outputs], torch.empty_like

        def first(rows: Sequence[torch.Tensor], _: object = alive) -> list[torch.Tensor]:
            now = [*map(look, state)]
            results = self._looked_at_all(arguments, batch, rows)
            known[:] = now if self.prepares else map(look, state)
            if all(self._inputs[i].stride_is(arguments[i].stride()) for i in positions):
                self._state = mark
            return results

        def run(rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            with lock:
                # Another call may have left other addresses, and state may have moved.
                now = [*map(look, state)]
                if self._state is not mark or now != known or len(rows) != count:
                    return first(rows)
                for tensor, (stride, entry) in zip(rows, given):  # noqa: B905 - it takes 0.2 us
                    if tensor.stride() != stride:
                        return first(rows)
                    table[entry] = tensor.data_ptr()
                results: list[torch.Tensor] = []
                for pattern, entry in made:
                    result = like(pattern)
                    table[entry] = result.data_ptr()
                    results.append(result)
                if function(arena, given_table, threads()):
                    raise MemoryError(_NO_MEMORY)
                return results

        return run

    @property
    def _is_bindable(self) -> bool:
        """False if torch computes something, or a result is returned twice."""
        buffers = [place.buffer for place in self._outputs]
        return self.repeats and len(set(buffers)) == len(buffers)

    def _entry(self, place: Place) -> int:
        """Return a tensor's entry in the pointer table; the last if the code does not read it."""
        return self._entries.get(place.buffer, len(self._table) - 1)

    def _looked_at_all(
        self,
        arguments: Sequence[torch.Tensor],
        batch: Sequence[int],
        rows: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        """Run the program after checking addresses and layouts of all inputs."""
        inputs = list(arguments)
        for position, tensor in zip(batch, rows, strict=True):
            inputs[position] = tensor
        try:
            return self._run(inputs)
        finally:
            self._memory.clear()


def _pattern(place: Place) -> torch.Tensor:
    """Return a tensor without memory, from which torch makes a result in the least time."""
    pattern = _empty(place.shape, place.stride, dtype=place.dtype)
    pattern.untyped_storage().resize_(0)
    return pattern


def _is_short(tensor: torch.Tensor, place: Place) -> bool:
    """Return whether an ATen call returned an empty tensor in place of a declared result.

    For example ``embedding_bag`` in half precision, whose further results only its backward reads.
    """
    return place.buffer.kind is Kind.FOREIGN and not tensor.numel() and place.buffer.size > 0


def _nothing() -> None:
    """Return None, in place of a weak reference to an input before the first call."""


def _lie_alike(batches: Sequence[_Batch]) -> bool:
    """Return whether all micro-batches have the same memory layout."""
    strides = [tensor.stride() for tensor in batches[0]]
    return all([tensor.stride() for tensor in batch] == strides for batch in batches)
