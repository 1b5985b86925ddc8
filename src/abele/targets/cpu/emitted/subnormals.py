"""Numbers below the smallest normal one, which emitted code takes for zero."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch

from abele.program import Program

_SMALLEST = torch.finfo(torch.float32).smallest_normal  # 1.2e-38


def are_meant(program: Program, constants: Iterable[torch.Tensor]) -> bool:
    """Whether a program has such a number, as in ``(mask + 1e-45).log()``.

    Args:
        program: whose operators may have it as an argument.
        constants: tensors of the program that may hold it.
    """
    arguments = ((node.args, node.kwargs) for node in program.graph.graph.nodes)
    numbers = (number for each in arguments for number in _numbers(each))
    return any(0.0 < abs(number) < _SMALLEST for number in numbers) or any(
        map(_has_some, constants)
    )


def _numbers(argument: Any) -> Iterator[float]:
    if isinstance(argument, float):
        yield argument
    elif isinstance(argument, dict):
        for value in cast(dict[str, Any], argument).values():
            yield from _numbers(value)
    elif isinstance(argument, list | tuple):
        for value in cast(Sequence[Any], argument):
            yield from _numbers(value)


def _has_some(constant: torch.Tensor) -> bool:
    if constant.dtype not in (torch.float32, torch.float64):
        return False  # of the others, half has subnormals, but none is one in float32
    sizes = constant.abs()
    return bool(((sizes > 0) & (sizes < _SMALLEST)).any())
