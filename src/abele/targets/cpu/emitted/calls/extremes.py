"""Largest and smallest elements, variances and running sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from abele.targets.cpu.emitted.calls.reductions import moved_last
from abele.targets.translation.moves.arguments import arguments, dims_of, options
from abele.targets.translation.operations import Call
from abele.targets.translation.places import Place

aten = torch.ops.aten

_FLOATS_PER_THREAD = 16384


def _rows(translator: Any, node: torch.fx.Node) -> tuple[Place, int, int] | None:
    """The tensor with what is reduced last, how many rows, and their length; None if empty."""
    place: Place = translator.places[arguments(node)[0]]
    reduced = dims_of(node, len(place.shape))
    size = math.prod(place.shape[d] for d in reduced)
    if not place.size or any(not result.contiguous for result in _new(translator, node)):
        return None
    return translator.contiguous(moved_last(place, reduced)), place.size // size, size


def _new(translator: Any, node: torch.fx.Node) -> list[Place]:
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        return [translator.new_like(node)]
    return [translator.new_like(node, index) for index in range(len(value))]


def _workers(rows: int, size: int) -> int:
    return max(1, min(rows, rows * size // _FLOATS_PER_THREAD))


def extreme(name: str, which: str) -> Callable[..., bool]:
    """A handler that calls a template with rows, and all results of the operator."""

    def handler(translator: Any, node: torch.fx.Node) -> bool:
        rows = _rows(translator, node)
        if rows is None:
            return False
        place, count, size = rows
        results = _new(translator, node)
        pointers = ", ".join(f"{{{i}}}" for i in range(len(results) + 1))
        most = _workers(count, size)
        text = f"abele::{name}<abele::{which}, {most}>({count}, {size}, {pointers}, threads)"
        translator.add(Call([place], results, text))
        several = isinstance(node.meta["val"], tuple | list)
        translator.places[node] = results if several else results[0]
        return True

    return handler


def variance(*, root: bool = False) -> Callable[..., bool]:
    """``aten.var`` and ``aten.std``, with and without the mean."""

    def handler(translator: Any, node: torch.fx.Node) -> bool:
        rows = _rows(translator, node)
        correction = options(node).get("correction")
        correction = 1 if correction is None else correction
        if rows is None or rows[2] - correction <= 0 or not rows[0].dtype.is_floating_point:
            return False
        place, count, size = rows
        results = _new(translator, node)
        name = f"variances<{_workers(count, size)}, {str(root).lower()}>"
        pointers = "{0}, {1}, {2}" if len(results) > 1 else "{0}, {1}, nullptr"
        text = f"abele::{name}({count}, {size}, {size - correction}, {pointers}, threads)"
        translator.add(Call([place], results, text))
        translator.places[node] = results if len(results) > 1 else results[0]
        return True

    return handler


def cumsum(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.cumsum``."""
    place, dim = translator.places[arguments(node)[0]], arguments(node)[1]
    if not place.shape or not place.size:
        return False
    place, dim = translator.contiguous(place), dim % len(place.shape)
    result = translator.new(place.shape, node.meta["val"].dtype)
    sizes = (math.prod(place.shape[:dim]), place.shape[dim], math.prod(place.shape[dim + 1 :]))
    text = f"abele::running_sums({', '.join(map(str, sizes))}, {{0}}, {{1}})"
    translator.add(Call([place], [result], text))
    translator.places[node] = result
    return True


HANDLERS = {
    **{
        getattr(aten, f"{prefix}{name}").default: extreme(template, which)
        for name, which in (("max", "Largest"), ("min", "Smallest"))
        for prefix, template in (("a", "extremes"), ("arg", "places_of_extremes"), ("", "extremes"))
    },
    aten.max.dim: extreme("extremes_and_places", "Largest"),
    aten.min.dim: extreme("extremes_and_places", "Smallest"),
    aten.var.correction: variance(),
    aten.std.correction: variance(root=True),
    aten.var_mean.correction: variance(),
    aten.std_mean.correction: variance(root=True),
    aten.cumsum.default: cumsum,
}
