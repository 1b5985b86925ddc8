"""Tensor printing: formats, and an operator that prints a tensor and its gradient in each run.

The operator returns its argument (a copy: an operator of our own may not return an alias), so a
print happens exactly where its result is used. Importing this module registers it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from abele.ops._register import register_gradient, results_like
from abele.ops.silence import is_silenced
from abele.program import declare_effect
from abele.warn import show

FORMATS = ("auto", "fixed", "scientific", "none")
# Outside of these magnitudes fixed-point numbers are all zeros or all digits.
_SMALLEST, _LARGEST = 1e-4, 1e8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """The format of a tensor as text.

    Attributes:
        summarise_threshold: from more elements than this only the edges are written.
        edge_items: entries at both ends of each dimension of a summary.
        max_line_width: columns after which rows break; 0 for never.
        digits: digits after the point.
        float_format: ``fixed``, ``scientific``, ``auto`` (by magnitude), or ``none`` for type and
            shape without values.
        separator: between entries.
        open_bracket: before the entries of a dimension.
        close_bracket: after them.
    """

    summarise_threshold: int = 1000
    edge_items: int = 3
    max_line_width: int = 80
    digits: int = 4
    float_format: str = "auto"
    separator: str = ", "
    open_bracket: str = "("
    close_bracket: str = ")"


def tensor_text(tensor: torch.Tensor, layout: Layout) -> str:
    """Format a tensor's values in nested brackets by dimension, with aligned columns."""
    values = tensor.detach().cpu()
    if layout.float_format == "none":
        return f"{str(values.dtype).removeprefix('torch.')}{list(values.shape)}"
    code = _float_code(values.double(), layout) if values.is_floating_point() else ""
    array: Any = (values.double() if code else values).numpy()
    entries: list[str] = []

    def written(entry: Callable[[Any], str]) -> str:
        return np.array2string(
            array,
            max_line_width=layout.max_line_width or sys.maxsize,
            separator=layout.separator,
            threshold=layout.summarise_threshold,
            edgeitems=layout.edge_items,
            formatter={"all": entry},
        )

    def noted(value: Any) -> str:
        entries.append(format(value, code))
        return entries[-1]

    written(noted)
    width = max(map(len, entries), default=0)
    text = written(lambda value: format(value, code).rjust(width))
    return text.translate({ord("["): layout.open_bracket, ord("]"): layout.close_bracket})


def _float_code(numbers: torch.Tensor, layout: Layout) -> str:
    """Return the format code of floating-point numbers, such as ``.4f``."""
    kind = layout.float_format
    if kind == "auto":
        sizes = numbers[numbers.isfinite() & (numbers != 0)].abs()
        plain = sizes.numel() == 0 or bool(sizes.min() >= _SMALLEST and sizes.max() < _LARGEST)
        kind = "fixed" if plain else "scientific"
    return f".{layout.digits}{'f' if kind == 'fixed' else 'e'}"


_NAME = "abele::print_tensor"
_LAYOUT = (
    "int threshold, int edge, int width, int digits, str form, str between, str left, str right"
)


@torch.library.custom_op(
    _NAME,
    mutates_args=(),
    schema=f"(Tensor x, Tensor? after, str title, str gradient_title, {_LAYOUT}) -> Tensor",
)
def _print(
    x: torch.Tensor, after: torch.Tensor | None, title: str, gradient_title: str, *layout: Any
) -> torch.Tensor:
    del after, gradient_title
    if not is_silenced():
        show(f"{title}: {tensor_text(x, Layout(**_by_name(layout)))}")
    return x.clone()


results_like(_NAME, 0)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, _, _, ctx.title, *ctx.layout = inputs


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    if ctx.title:
        grad = operator(grad, None, ctx.title, "", *ctx.layout)
    return (grad, *[None] * (3 + len(ctx.layout)))


register_gradient(_NAME, _backward, _setup)


def _by_name(layout: tuple[Any, ...]) -> dict[str, Any]:
    fields = [field.name for field in dataclasses.fields(Layout)]
    return dict(zip(fields, layout, strict=True))


operator = declare_effect(torch.ops.abele.print_tensor.default)


def print_tensor(
    x: torch.Tensor, title: str, gradient_title: str = "", layout: Layout | None = None
) -> torch.Tensor:
    """Return ``x`` and print it to stderr under ``title`` whenever the program runs.

    Args:
        x: any shape and type.
        title: printed before the values.
        gradient_title: printed before the gradient's values; empty to print none.
        layout: how values are written.
    """
    values = dataclasses.astuple(layout or Layout())
    return operator(x, None, title, gradient_title, *values)
