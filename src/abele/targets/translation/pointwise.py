"""What an elementwise operator is as an expression of C++."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten

#: Types that loops compute with, and what C++ calls them.
TYPES: dict[torch.dtype, str] = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "int64_t",
    torch.int32: "int32_t",
    torch.int16: "int16_t",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.bool: "bool",
}

#: Types that only loops of GPUs know, and the one that these compute with instead, as torch does.
HALF: dict[torch.dtype, str] = {torch.float16: "abele::Half", torch.bfloat16: "abele::Bfloat"}
COMPUTED: dict[torch.dtype, torch.dtype] = dict.fromkeys(HALF, torch.float32)
#: What C++ calls all of them.
NAMES = {**TYPES, **HALF}

#: Operands of an operator, nodes or numbers, and the expression of their texts.
Form = tuple[Sequence[Any], Callable[..., str]]


@dataclasses.dataclass(frozen=True)
class Rule:
    """How an operator becomes an expression.

    Attributes:
        form: takes the operator's arguments by position; raises ``NotImplementedError`` for
            arguments that have no form here.
        promoted: operands are converted to their common type instead of the result's.
        floating: only where the result is of a floating type.
        mask: the first operand is a truth value.
    """

    form: Callable[..., Form]
    promoted: bool = False
    floating: bool = False
    mask: bool = False


def literal(value: Any, dtype: torch.dtype) -> str:
    """A Python number as C++ of a type.

    Raises:
        NotImplementedError: the number has no form in that type.
    """
    name = TYPES[dtype]
    if not isinstance(value, bool | int | float):
        raise NotImplementedError(value)
    if dtype is torch.bool:
        return "true" if value else "false"
    if dtype.is_floating_point:
        value = float(value)
        if math.isfinite(value):
            return f"{name}({value!r})"
        limit = "quiet_NaN" if math.isnan(value) else "infinity"
        sign = "-" if value < 0 else ""
        return f"{sign}std::numeric_limits<{name}>::{limit}()"
    if value != int(value):
        raise NotImplementedError(value)
    return f"{name}({int(value)})"


def plain(text: str, operands: int, **fixed: Any) -> Callable[..., Form]:
    """The first ``operands`` arguments in the places of ``text``; further ones do not matter.

    Args:
        text: ``{0}``, ``{1}`` ... are the operands.
        operands: how many.
        fixed: values that keyword arguments must have.
    """

    def form(*given: Any, **options: Any) -> Form:
        for name, value in fixed.items():
            if options.get(name, value) != value:
                raise NotImplementedError(name)
        return given[:operands], text.format

    return form
