"""Run-time checks of tensor values, where torch checks values before it computes.

Importing this module registers the operator.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import torch

from abele.errors import ValueCheckError
from abele.ops._register import implements, shapes_of
from abele.program.core import is_library

_NAME = "abele::value_check"


@implements(_NAME, "(Tensor wrong, str message) -> Tensor")
def _check(wrong: torch.Tensor, message: str) -> torch.Tensor:
    if wrong.any():
        raise ValueCheckError(message)
    return torch.ones((), dtype=torch.bool, device=wrong.device)


@shapes_of(_NAME)
def _shape(wrong: torch.Tensor, message: str) -> torch.Tensor:
    return wrong.new_empty((), dtype=torch.bool)


def unless(wrong: torch.Tensor, result: torch.Tensor, message: str) -> torch.Tensor:
    """Return ``result``; raise at run time if any element of ``wrong`` is true.

    Args:
        wrong: bool, any shape; True stops the step with ``ValueCheckError``.
        result: any shape and dtype; gradients flow through it.
        message: what was found and what to do; the user's line is put in front.

    Returns:
        A tensor of the shape and bits of ``result``.
    """
    fine = checked(wrong, message)
    return torch.where(fine, result, torch.zeros((), dtype=result.dtype, device=result.device))


def checked(wrong: torch.Tensor, message: str) -> torch.Tensor:
    """Return True as a 0-d tensor; raise at run time if any element of ``wrong`` is true.

    A program that does not use the result leaves the check out.
    """
    return torch.ops.abele.value_check.default(wrong.detach(), f"{_line()}: {message}")


def _line() -> str:
    """Return the user's current file name and line, without folders for reproducible programs."""
    frame = inspect.currentframe()
    assert frame is not None
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
