"""A program whose code is loaded, as a function of its inputs."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from abele.arena import Arena
from abele.program import Program, Role
from abele.targets.cpu.emitted.calling import Calling
from abele.targets.cpu.emitted.memory import allocated
from abele.targets.cpu.emitted.source import Segment
from abele.targets.translation.operations import Foreign, constants_of, places_changed
from abele.targets.translation.places import Buffer, Kind, Place, laid_out

_Part = Callable[[int], None]
# The number of an input, the input, and a copy of it in the order that the code expects.
_Copy = tuple[int, torch.Tensor, torch.Tensor]


class Runner:
    """Calls the pieces of a program in order.

    Args:
        program: says what its inputs are for, and has the constants.
        calling: where tensors lie, and what torch computes.
        library: the compiled code.
    """

    def __init__(self, program: Program, calling: Calling, library: ctypes.CDLL):
        self._lock = threading.Lock()  # a program has one arena
        self._constants = constants_of(program, calling.constants)
        self._arena = allocated(calling.size)
        self._offsets = calling.offsets
        self._entries = {buffer: entry for entry, buffer in enumerate(calling.table)}
        self._table = (ctypes.c_void_p * max(1, len(calling.table)))()
        for buffer, entry in self._entries.items():
            if buffer.kind is Kind.CONSTANT:
                self._table[entry] = self._constants[buffer.index].data_ptr()
        self._memory: dict[Buffer, torch.Tensor] = {}
        self._parts = [self._part(each, library) for each in calling.parts]
        foreign = [each for each in calling.parts if isinstance(each, Foreign)]
        self._alone = not foreign
        # What torch makes has its places while nothing but it and the code between runs.
        self._places = Arena(calling.places) if foreign else None
        self._freed = calling.freed
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
        self._state: object = None  # whose addresses the table has; see ``BoundRunner``

    def run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Update state in place and return the results.

        Args:
            inputs: one tensor for each slot; the list is emptied.

        Raises:
            ValueError: another number of inputs than the program has slots.
        """
        with self._lock:
            try:
                if self._alone:
                    return self._run(inputs)
                with torch.no_grad():
                    return self._run(inputs)
            finally:
                inputs.clear()
                self._memory.clear()  # also after an error: a result must not be taken for the next

    def _run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        copies = self._taken(inputs)  # they live until the call ends
        made = self._results()
        self._compute(torch.get_num_threads())
        outputs = [
            self._tensor(place) if result is None else result
            for place, result in zip(self._outputs, made, strict=True)
        ]
        for index, tensor, ordered in copies:
            if self._written[index]:
                with torch.no_grad():
                    tensor.copy_(ordered)
        return outputs

    def _compute(self, threads: int) -> None:
        """Run all parts; what torch makes is freed where nothing reads it any more."""
        if self._places is None:
            for part in self._parts:
                part(threads)
            return
        memory = self._memory
        with self._places.used():
            for part, freed in zip(self._parts, self._freed, strict=True):
                part(threads)
                for buffer in freed:
                    memory.pop(buffer, None)  # torch makes no gradient that nobody wants

    def _taken(self, inputs: list[torch.Tensor]) -> list[_Copy]:
        """Note where all inputs lie, and return copies of those that lie in another order."""
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
        """Note where an input lies; a copy takes its place if its elements lie in another order."""
        place = self._inputs[index]
        address = tensor.data_ptr()
        if not place.stride_is(tensor.stride()):
            ordered = torch.empty_strided(place.shape, place.stride, dtype=place.dtype)
            with torch.no_grad():
                copies.append((index, tensor, ordered.copy_(tensor)))
            tensor, address = ordered, 0
        self._addresses[index], self._known[index] = address, weakref.ref(tensor)
        entry = self._entries.get(place.buffer)
        if entry is not None:
            self._table[entry] = tensor.data_ptr()
        if place.buffer in self._shown:
            self._memory[place.buffer] = tensor

    def _results(self) -> list[torch.Tensor | None]:
        """Memory for what is returned; None where torch or the arena has it."""
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
        function = getattr(library, part.name)
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
        arena, table = self._arena.data_ptr(), ctypes.addressof(self._table)

        def call(threads: int) -> None:
            if function(arena, table, threads):
                raise MemoryError("A kernel found no memory for its sums.")

        return call

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
        """Note where a result of torch lies, in the order that the code expects."""
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
        """A tensor of what lies at a place."""
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


def _is_short(tensor: torch.Tensor, place: Place) -> bool:
    """Whether torch has made none of what it says that an operator makes.

    So it is of ``embedding_bag`` in half, whose further results only its own gradient reads.
    """
    return place.buffer.kind is Kind.FOREIGN and not tensor.numel() and place.buffer.size > 0


def _nothing() -> None:
    """What is known of an input before there was one."""
