"""Indices, looked at before a compiled program runs.

Generated code checks each index where it uses it, inside a parallel region, and can only end the
process. So what indices follow from is computed first, apart, and looked at; nothing was written by
then. Programs stay as they are, and so do executables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from abele.errors import IndexCheckError
from abele.program import Program
from abele.targets.base import Compiled, Run
from abele.targets.cpu import index_slices
from abele.targets.reference import Interpreter

# So many numbers are compared sooner as a list: a small step takes half a millisecond.
_FEW = 64

Check = Callable[[list[torch.Tensor]], Any]


class Checked(Compiled):
    """A compiled program that raises ``IndexCheckError`` instead of ending the process."""

    def __init__(self, compiled: Compiled, check: Check):
        super().__init__(_after(check, compiled.run), compiled.payload)
        self._compiled, self._check = compiled, check

    def released(self) -> Run:
        """The same check, then the call of the compiled program that lets other threads run."""
        return _after(self._check, self._compiled.released())


def checked(program: Program, compiled: Compiled) -> Compiled:
    """``compiled`` with a look at the indices of ``program`` in front, if it has any."""
    inputs, graph = index_slices.of_program(program.graph, refuse)
    if graph is not None:
        computed = program.replace(graph=graph)
        compiled = Checked(compiled, Interpreter().compile(computed).run)
    if not inputs:
        return compiled

    def check(values: list[torch.Tensor]) -> None:
        for position, bounds in inputs:
            refuse(values[position], *bounds)

    return Checked(compiled, check)  # the first to look: other indices may follow from these


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
        values: list[int] = cast("Any", index.flatten()).tolist()
        return min(values), max(values)
    least, largest = torch.aminmax(index)
    return int(least.item()), int(largest.item())


def _after(check: Check, run: Run) -> Run:
    def checked(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        check(inputs)
        return run(inputs)

    return checked
