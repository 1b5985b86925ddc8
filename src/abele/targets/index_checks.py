"""Indices, looked at before a compiled program runs.

Generated code checks each index where it uses it, inside a parallel region, and can only end the
process. So what indices follow from is computed first, apart, and looked at; nothing was written by
then. Programs stay as they are, and so do executables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from abele.errors import IndexCheckError
from abele.program import Program, Role
from abele.targets import index_slices
from abele.targets.base import Compiled, OfBatch, Repeated, Run
from abele.targets.interpreter import function_of

# So many numbers are compared sooner as a list: a small step takes half a millisecond.
_FEW = 64

Check = Callable[[list[torch.Tensor]], Any]
_CheckOfBatch = Callable[[Sequence[torch.Tensor]], None]


class Checked(Compiled):
    """A compiled program that raises ``IndexCheckError`` instead of ending the process."""

    def __init__(self, compiled: Compiled, check: Check, of_batch: _CheckOfBatch | None = None):
        super().__init__(_after(check, compiled.run), compiled.payload, compiled.plan)
        self._compiled, self._check, self._of_batch = compiled, check, of_batch

    def kernel_problem(self, *, noted: bool) -> str | None:
        """Return that of the code behind the check."""
        return self._compiled.kernel_problem(noted=noted)

    def repeated(self) -> Repeated | None:
        """Return repeated runs with a check of each, if the check reads nothing but the batch."""
        repeated = self._compiled.repeated()
        if self._of_batch is None or repeated is None:
            return None
        return _each_checked(self._of_batch, repeated)

    def bound(self, arguments: Sequence[torch.Tensor], batch: Sequence[int]) -> OfBatch | None:
        """Return a bound call with a check before it, if the check reads nothing but the batch."""
        check, run = self._of_batch, self._compiled.bound(arguments, batch)
        if check is None or run is None:
            return None

        def checked(rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            check(rows)
            return run(rows)

        return checked


def checked(program: Program, compiled: Compiled) -> Compiled:
    """``compiled`` with a look at the indices of ``program`` in front, if it has any."""
    looks = index_slices.of_program(program.graph, refuse)
    if not looks.inputs and looks.graph is None:
        return compiled
    computed = None if looks.graph is None else _run_of(looks.graph)
    batch = [i for i, slot in enumerate(program.inputs) if slot.role is Role.INPUT]
    positions = {position for position, _ in looks.inputs}.union(looks.read)
    of_batch = _check(looks, computed, batch) if positions.issubset(batch) else None
    return Checked(compiled, _check(looks, computed, range(len(program.inputs))), of_batch)


def look(program: Program, inputs: Sequence[torch.Tensor]) -> None:
    """Raise ``IndexCheckError`` if an index of a program is out of range for some inputs.

    Interpreted programs call it after an operator of torch has failed, whose own error says neither
    the line nor, for some operators, that an index is the cause.

    Args:
        program: has written nothing yet.
        inputs: one tensor for each slot.
    """
    looks = index_slices.of_program(program.graph, refuse)
    computed = None if looks.graph is None else _run_of(looks.graph)
    _check(looks, computed, range(len(program.inputs)))(inputs)


def _run_of(graph: torch.fx.GraphModule) -> Run:
    function = function_of(graph)

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            return list(function(inputs))

    return run


def _check(looks: index_slices.Looks, computed: Run | None, given: Sequence[int]) -> _CheckOfBatch:
    """Return a check of the inputs of a program at the positions ``given``."""
    inputs = [(given.index(position), bounds) for position, bounds in looks.inputs]
    read = [given.index(position) for position in looks.read]

    def check(values: Sequence[torch.Tensor]) -> None:
        for position, bounds in inputs:  # the first: other indices may follow from these
            refuse(values[position], *bounds)
        if computed is not None:
            computed([values[position] for position in read])

    return check


def refuse(index: torch.Tensor, low: int, high: int, ignored: int | None, message: str) -> None:
    """Raise ``IndexCheckError`` unless all of ``index`` lies between ``low`` and ``high``.

    Args:
        index: integers, any shape.
        low: the smallest that fits.
        high: the largest that fits.
        ignored: one more that fits.
        message: what was expected; what was found is added.
    """
    least, largest = _extremes(index)
    if ignored is not None and (least < low or largest > high):
        index = index[index != ignored]
        if not index.numel():
            return
        least, largest = _extremes(index)
    if least < low or largest > high:
        raise IndexCheckError(f"{message}, found {least if least < low else largest}.")


def _extremes(index: torch.Tensor) -> tuple[int, int]:
    if index.numel() <= _FEW:
        rows = index if index.dim() == 1 else index.flatten()
        values: list[int] = cast("Any", rows).tolist()
        return min(values), max(values)
    least, largest = torch.aminmax(index)
    return int(least.item()), int(largest.item())


def _after(check: Check, run: Run) -> Run:
    def checked(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        check(inputs)
        return run(inputs)

    return checked


def _each_checked(check: _CheckOfBatch, repeated: Repeated) -> Repeated:
    def checked(
        inputs: list[torch.Tensor],
        batches: Sequence[Sequence[torch.Tensor]],
        kept: Sequence[bool],
        marks: list[Any],
    ) -> list[list[torch.Tensor]]:
        for number, batch in enumerate(batches):
            try:
                check(batch)
            except IndexCheckError:
                if number:  # those before it run, as they would one by one
                    repeated(inputs, batches[:number], kept[:number], marks)
                raise
        return repeated(inputs, batches, kept, marks)

    return checked
