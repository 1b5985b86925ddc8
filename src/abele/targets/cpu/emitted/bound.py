"""Calls of a program with the same state each time: little more than the batch is looked at.

After each step Python's own code comes out of memory again: what counts is how little of it runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from abele.targets.base import OfBatch
from abele.targets.cpu.emitted.repeated import RepeatedRunner

_empty, _address = torch.empty_strided, torch.Tensor.data_ptr


class BoundRunner(RepeatedRunner):
    """Calls a program with other state each time, or with the same; arguments as of ``Runner``."""

    def bound(self, arguments: Sequence[torch.Tensor], batch: Sequence[int]) -> OfBatch | None:
        """A call that takes the tensors of the batch alone; see ``base.Compiled.bound``."""
        buffers = [place.buffer for place in self._outputs]
        if not self.repeats or len(set(buffers)) < len(buffers):
            return None  # torch computes something, or a result is returned twice
        positions = [i for i in range(len(arguments)) if i not in batch]
        state, addresses = [arguments[i] for i in positions], list[int]()
        mark = object()  # the runner knows the state by it, and does not keep it alive
        lock, table, entries, (part,) = self._lock, self._table, self._entries, self._parts
        given = [(p.stride, entries.get(p.buffer)) for p in (self._inputs[i] for i in batch)]
        made = [(p.shape, p.stride, p.dtype, entries.get(p.buffer)) for p in self._outputs]

        def first(rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            results = self._looked_at_all(arguments, batch, rows)
            addresses[:] = map(_address, state)
            if all(self._inputs[i].stride_is(arguments[i].stride()) for i in positions):
                self._state = mark
            return results

        def run(rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            with lock:
                # Another call may have left other addresses, and state may have moved.
                if self._state is not mark or [*map(_address, state)] != addresses:
                    return first(rows)
                for tensor, (stride, entry) in zip(rows, given, strict=True):
                    if tensor.stride() != stride:
                        return first(rows)
                    if entry is not None:
                        table[entry] = tensor.data_ptr()
                results: list[torch.Tensor] = []
                for shape, stride, dtype, entry in made:
                    result = _empty(shape, stride, dtype=dtype)
                    if entry is not None:
                        table[entry] = result.data_ptr()
                    results.append(result)
                part(torch.get_num_threads())
                return results

        return run

    def _looked_at_all(
        self,
        arguments: Sequence[torch.Tensor],
        batch: Sequence[int],
        rows: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        """Runs the program where anything may lie elsewhere, or in another order."""
        inputs = list(arguments)
        for position, tensor in zip(batch, rows, strict=True):
            inputs[position] = tensor
        try:
            return self._run(inputs)
        finally:
            self._memory.clear()
