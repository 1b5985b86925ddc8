"""Stopping a step where an operation makes an infinity or NaN, with the state before it intact.

A program that was made for it returns the largest magnitude of every tensor. Reading them costs
one wait for the device per micro-batch, which is the price of stopping there.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, cast

import torch

from abele.errors import TrappedError
from abele.program import Check, Program
from abele.targets.base import Run


def trapping(program: Program, run: Run) -> Run:
    """``run``, but raising TrappedError where a check fails, and without the magnitudes."""
    if not program.checks:
        return run

    def checked(arguments: list[torch.Tensor]) -> list[torch.Tensor]:
        outputs = run(arguments)
        failure = first_failure(program.checks, cast("Any", outputs.pop()).tolist())
        if failure is not None:
            raise TrappedError(_sentence(*failure), failure[0].line)
        return outputs

    return checked


def first_failure(
    checks: Sequence[Check], magnitudes: Sequence[float]
) -> tuple[Check, float] | None:
    """The first operation whose result is worse than all of its operands, and the result.

    Args:
        checks: in the order in which the operations run.
        magnitudes: largest magnitude of each tensor; NaN if it holds one.
    """
    values = list(magnitudes)
    for check in checks:
        if check.is_comparison:
            if any(math.isnan(values[index]) for index in check.sources):
                return check, math.nan
            continue
        result = values[check.magnitude]
        if result < check.overflow:
            continue
        if not math.isnan(result):
            result = values[check.magnitude] = math.inf
        operands = [values[index] for index in check.sources]
        if any(map(math.isnan, operands)):
            continue
        if math.isnan(result):
            return check, result
        if not check.infinite_constant and not any(map(math.isinf, operands)):
            return check, result
    return None


def _sentence(check: Check, result: float) -> str:
    if check.is_comparison:
        what = "invalid operation: a NaN is compared by order"
    elif math.isnan(result):
        what = "invalid operation: NaN from operands without NaN"
    else:
        what = "overflow or division by zero: infinity from finite operands"
    return (
        f"Floating-point exception in {check.operator} ({check.phase}{_place(check)}): "
        f"{what}. Weights, optimizer state and buffers are as after the last complete update. "
        "Lower the loss scale or the learning rate, or compute this in float32."
    )


def _place(check: Check) -> str:
    """Module and line; of an update, those of the parameter that it changes."""
    where = f"module {check.scope.replace('/', '.')!r}" if check.scope else "outside submodules"
    if check.phase == "update" and check.line:
        return f" of a parameter that forward reads at {check.line}, {where}"
    line = check.line or f"the {check.phase} pass, which has no line in the user's source"
    return f", {where}, at {line}"


class Rollback:
    """Keeps state as it was after the last complete update.

    Args:
        tensors: everything that a step writes.
    """

    def __init__(self, tensors: Callable[[], Iterable[torch.Tensor]]):
        self._tensors = tensors
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    @contextlib.contextmanager
    def around(self, *, complete: bool) -> Generator[None]:
        """Undoes everything since the last update where the micro-step inside is stopped.

        Args:
            complete: it ends with an update, so what comes after starts from its state.
        """
        if not self._copies:
            self._copies = [(tensor, tensor.clone()) for tensor in self._tensors()]
        try:
            yield
        except BaseException:
            for tensor, before in self._copies:
                tensor.copy_(before)
            complete = True
            raise
        finally:
            if complete:
                self._copies = []
