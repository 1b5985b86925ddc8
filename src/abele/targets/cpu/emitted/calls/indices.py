"""Elements by their numbers: gathered, selected, and written or added back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from abele.targets.cpu.emitted.calls import shared
from abele.targets.translation.movement import arguments, around, options, store
from abele.targets.translation.operations import Call
from abele.targets.translation.places import Place

aten = torch.ops.aten

_FLOATS_OF_ROWS = 8192


def embedding(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.embedding``."""
    table, rows = (translator.contiguous(translator.places[each]) for each in arguments(node)[:2])
    if table.dtype is not torch.float32 or rows.dtype is not torch.int64:
        return False
    result = translator.new((*rows.shape, table.shape[1]), table.dtype)
    text = f"abele::embedding({rows.size}, {table.shape[1]}, {{0}}, {{1}}, {{2}})"
    translator.add(Call([table, rows], [result], text))
    translator.places[node] = result
    return True


def embedding_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.embedding_dense_backward`` that does not scale by frequency."""
    grad, rows, size, padding, scaled = arguments(node)
    grad, rows = (translator.contiguous(translator.places[each]) for each in (grad, rows))
    if scaled or grad.dtype is not torch.float32 or rows.dtype is not torch.int64:
        return False
    width = grad.shape[-1]
    most = max(1, min(-(-width // 16), (grad.size + size * width) // _FLOATS_OF_ROWS))
    result = translator.new((size, width), grad.dtype)
    given = f"{rows.size}, {width}, {size}, {padding}, {{0}}, {{1}}, {{2}}"
    text = shared.call("embedding_backward", most, (), given)
    translator.add(Call([grad, rows], [result], text))
    translator.places[node] = result
    return True


TABLES = {
    aten.embedding.default: embedding,
    aten.embedding_dense_backward.default: embedding_backward,
}


_FLOATS_PER_THREAD = 16384


def gather(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.gather`` where the index is as large as the tensor in all other dimensions."""
    x, dim, index = arguments(node)
    reads = _alike(translator, x, dim, index)
    if reads is None:
        return False
    place, numbers = reads
    result = translator.new(numbers.shape, place.dtype)
    axis: int = dim % len(place.shape)
    count = numbers.shape[axis]
    most = max(1, min(numbers.shape[0], numbers.size // _FLOATS_PER_THREAD))
    sizes = f"{around(place.shape, dim)}, {count}"
    text = f"abele::gather<{most}>({sizes}, {{0}}, {{1}}, {{2}}, threads)"
    translator.add(Call(reads, [result], text))
    translator.places[node] = result
    return True


def scatter(add: str) -> Callable[..., bool]:
    """``aten.scatter_add``, ``aten.scatter``; as for ``gather``."""

    def handler(translator: Any, node: torch.fx.Node) -> bool:
        x, dim, index, source = arguments(node)
        reads = _alike(translator, x, dim, index)
        if reads is None or options(node):
            return False
        place, numbers = reads
        one = not isinstance(source, torch.fx.Node)
        if one:
            values = translator.new((1,), place.dtype)
            translator.pointwise([source], "{0}".format, values)
        else:
            values = translator.places[source]
            if values.shape != numbers.shape or values.dtype is not place.dtype:
                return False
            values = translator.contiguous(values)
        result = translator.new(place.shape, place.dtype)
        store(translator, place, result)
        sizes = f"{around(place.shape, dim)}, {numbers.shape[dim % len(place.shape)]}"
        text = f"abele::scatter<{add}>({sizes}, {{0}}, {int(not one)}, {{1}}, {{2}})"
        translator.add(Call([values, numbers], [result], text))
        translator.places[node] = result
        return True

    return handler


def _alike(translator: Any, x: Any, dim: int, index: Any) -> list[Place] | None:
    place, numbers = translator.places[x], translator.places[index]
    rank = len(place.shape)
    if not rank or not numbers.size or len(numbers.shape) != rank:
        return None
    sizes = zip(place.shape, numbers.shape, strict=True)
    if any(a != b for d, (a, b) in enumerate(sizes) if d != dim % rank):
        return None
    return [translator.contiguous(place), _numbers(translator, numbers)]


def index_select(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.index_select``."""
    x, dim, index = arguments(node)
    place = translator.places[x]
    if not place.shape or not node.meta["val"].numel():
        return False
    numbers = _numbers(translator, translator.places[index])
    return _selected(translator, node, place, dim % len(place.shape), 1, numbers)


def index_add(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.index_add``."""
    x, dim, index, source = arguments(node)
    place, values = translator.places[x], translator.places[source]
    if options(node) or not place.shape or not values.size or values.dtype is not place.dtype:
        return False
    numbers = _numbers(translator, translator.places[index])
    return _put(translator, node, place, dim % len(place.shape), 1, numbers, values, "true")


def index(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.index`` by numbers of neighbouring dimensions."""
    place = translator.places[arguments(node)[0]]
    parsed = _dims_and_numbers(translator, place, arguments(node)[1])
    if parsed is None or not node.meta["val"].numel():
        return False
    first, many, numbers = parsed
    return _selected(translator, node, place, first, many, numbers)


def index_put(translator: Any, node: torch.fx.Node) -> bool:
    """``aten.index_put`` by numbers of neighbouring dimensions."""
    x, indices, values, *accumulate = arguments(node)
    place, source = translator.places[x], translator.places[values]
    parsed = _dims_and_numbers(translator, place, indices)
    if parsed is None or not place.size or source.dtype is not place.dtype:
        return False
    first, many, numbers = parsed
    shape = place.shape[:first] + numbers.shape + place.shape[first + many :]
    if not math.prod(shape):
        return False
    spread = translator.new(shape, place.dtype)
    store(translator, source, spread)
    add = "true" if accumulate and accumulate[0] else "false"
    return _put(translator, node, place, first, many, numbers, spread, add)


def _dims_and_numbers(translator: Any, place: Place, indices: Any) -> tuple[int, int, Place] | None:
    """Return the first indexed dimension, their count, and the flattened index of each element."""
    dims = [d for d, each in enumerate(indices) if each is not None]
    if not dims or dims != list(range(dims[0], dims[-1] + 1)):
        return None
    places = [translator.places[indices[d]] for d in dims]
    if any(each.dtype not in (torch.int64, torch.int32) for each in places):
        return None
    untyped: Any = torch
    shape: torch.Size = untyped.broadcast_shapes(*(each.shape for each in places))
    total = translator.new(tuple(shape), torch.int64)
    step = math.prod(place.shape[d] for d in dims)
    terms: list[str] = []
    for number, d in enumerate(dims):
        step //= max(place.shape[d], 1)
        one = f"{{{number}}}"
        terms.append(f"({one} < 0 ? {one} + {place.shape[d]} : {one}) * {step}")
    translator.pointwise(places, " + ".join(terms).join("()").format, total)
    return dims[0], len(dims), total


def _numbers(translator: Any, index: Place) -> Place:
    if index.dtype is torch.int64 and index.shape:
        return translator.contiguous(index)
    result = translator.new(index.shape or (1,), torch.int64)
    translator.pointwise([index], "{0}".format, result)
    return result


def _selected(
    translator: Any, node: torch.fx.Node, place: Place, first: int, many: int, numbers: Place
) -> bool:
    place = translator.contiguous(place)
    sizes = _sizes(place, first, many)
    shape = tuple(node.meta["val"].shape)
    result = translator.new(shape, place.dtype)
    most = max(1, min(numbers.size, result.size // _FLOATS_PER_THREAD))
    text = f"abele::select_rows<{most}>({sizes}, {numbers.size}, {{0}}, {{1}}, {{2}}, threads)"
    translator.add(Call([place, numbers], [result], text))
    translator.places[node] = result
    return True


def _put(
    translator: Any, node: torch.fx.Node, place: Place, first: int, many: int, *given: Any
) -> bool:
    numbers, values, add = given
    result = translator.new(place.shape, place.dtype)
    store(translator, place, result)
    values = translator.contiguous(values)
    text = (
        f"abele::put_rows<{add}>({_sizes(place, first, many)}, {numbers.size}, {{0}}, {{1}}, {{2}})"
    )
    translator.add(Call([values, numbers], [result], text))
    translator.places[node] = result
    return True


def _sizes(place: Place, first: int, many: int) -> str:
    shape = place.shape
    middle = math.prod(shape[first : first + many])
    return around((*shape[:first], middle, *shape[first + many :]), first)


HANDLERS = {
    aten.gather.default: gather,
    aten.scatter_add.default: scatter("true"),
    aten.scatter.src: scatter("false"),
    aten.scatter.value: scatter("false"),
    aten.index_select.default: index_select,
    aten.index_add.default: index_add,
    aten.index.Tensor: index,
    aten.index_put.default: index_put,
    aten._unsafe_index_put.default: index_put,
}
