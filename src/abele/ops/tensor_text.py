"""Tensors as text, in a layout that the caller chooses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch

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
    """Return the values of ``tensor``, nested brackets by dimension, columns aligned."""
    values = tensor.detach().cpu()
    if layout.float_format == "none":
        return f"{str(values.dtype).removeprefix('torch.')}{list(values.shape)}"
    edge = layout.edge_items if values.numel() > layout.summarise_threshold else None
    for dim, size in enumerate(values.shape):
        if edge is not None and size > 2 * edge:
            indices = [*range(edge), *range(size - edge, size)]
            values = values.index_select(dim, torch.tensor(indices, dtype=torch.int64))
    entries = _entries(values, layout)
    width = max(map(len, entries), default=0)
    gaps = [edge if edge is not None and size > 2 * edge else None for size in tensor.shape]
    return _nested(iter([e.rjust(width) for e in entries]), values.shape, gaps, layout, 0)


def _numbers(values: torch.Tensor) -> list[float]:
    return cast("Any", values.flatten()).tolist()


def _entries(values: torch.Tensor, layout: Layout) -> list[str]:
    if not values.is_floating_point():
        return [str(value) for value in _numbers(values)]
    numbers = values.double().flatten()
    kind = layout.float_format
    if kind == "auto":
        sizes = numbers[numbers.isfinite() & (numbers != 0)].abs()
        plain = sizes.numel() == 0 or bool(sizes.min() >= _SMALLEST and sizes.max() < _LARGEST)
        kind = "fixed" if plain else "scientific"
    code = f".{layout.digits}{'f' if kind == 'fixed' else 'e'}"
    return [format(value, code) for value in _numbers(numbers)]


def _nested(
    entries: Iterator[str],
    shape: Sequence[int],
    gaps: Sequence[int | None],
    layout: Layout,
    depth: int,
) -> str:
    """Return the next entries in the form of ``shape``, with dots where entries were left out."""
    if not shape:
        return next(entries)
    parts = [_nested(entries, shape[1:], gaps[1:], layout, depth + 1) for _ in range(shape[0])]
    if gaps[0] is not None:
        parts.insert(gaps[0], "...")
    indent = " " * (depth + 1)
    if len(shape) > 1:
        body = f"{layout.separator.rstrip()}\n{indent}".join(parts)
    else:
        body = f"\n{indent}".join(_lines(parts, layout, depth + 1))
    return f"{layout.open_bracket}{body}{layout.close_bracket}"


def _lines(parts: Sequence[str], layout: Layout, indent: int) -> Iterator[str]:
    line = ""
    for index, part in enumerate(parts):
        text = part if index == len(parts) - 1 else part + layout.separator
        full = indent + len(line) + len(text.rstrip()) > layout.max_line_width > 0
        if line and full:
            yield line.rstrip()
            line = ""
        line += text
    yield line
