"""Several runs of a program as one call of its code."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import torch

from abele.program import Program, Role
from abele.targets.cpu.emitted.calling import Calling
from abele.targets.cpu.emitted.run import Runner
from abele.targets.cpu.emitted.source import REPEAT, Segment
from abele.targets.translation.places import Kind

_Batch = Sequence[torch.Tensor]


class RepeatedRunner(Runner):
    """Calls a program, or the same for one micro-batch after the other.

    Arguments are those of ``Runner``.

    Attributes:
        repeats: whether ``repeated`` may be called: where torch computes nothing, and what is
            returned lies in memory of its own.
    """

    def __init__(self, program: Program, calling: Calling, library: ctypes.CDLL):
        super().__init__(program, calling, library)
        parts = calling.parts
        single = len(parts) == 1 and isinstance(parts[0], Segment)
        self.repeats = single and all(p.buffer.kind is Kind.OUTPUT for p in self._outputs)
        if not self.repeats:
            return
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

    def repeated(
        self,
        inputs: list[torch.Tensor],
        batches: Sequence[_Batch],
        kept: Sequence[bool],
        marks: list[Any],
    ) -> list[list[torch.Tensor]]:
        """Run the program for each of ``batches`` in turn; see ``base.Repeated``."""
        given = self._with(inputs, batches[0])
        with self._lock:
            try:
                if not self._taken(given) and _lie_alike(batches):
                    return self._run_all(batches, kept, marks)
            finally:
                self._memory.clear()
        return [self._run_one(inputs, batch, marks) for batch in batches]

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
            raise MemoryError("A kernel found no memory for its sums.")
        marks += moments[1:]
        return results

    def _all_results(
        self, batches: Sequence[_Batch], kept: Sequence[bool]
    ) -> tuple[list[list[torch.Tensor]], list[int | None]]:
        """Memory for what is returned, and the addresses that change from run to run."""
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


def _lie_alike(batches: Sequence[_Batch]) -> bool:
    """Whether the elements of all micro-batches lie in the order of those of the first."""
    strides = [tensor.stride() for tensor in batches[0]]
    return all([tensor.stride() for tensor in batch] == strides for batch in batches)
