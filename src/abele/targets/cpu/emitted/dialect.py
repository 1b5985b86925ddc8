"""Capabilities of C++ for processors, and bounds of the indices of a program."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch

from abele.program import called_operator, is_getitem, is_view
from abele.targets.cpu.emitted.calls import HANDLERS
from abele.targets.cpu.emitted.calls.products import packed_once
from abele.targets.index_checks import argument_of, indices, is_repeatable, name_of
from abele.targets.translation.dialect import Dialect
from abele.targets.translation.pointwise import TYPES

#: The smallest and the largest number that a value may hold.
Range = tuple[float, float]

_UNKNOWN: Range = (-math.inf, math.inf)
# Sums of larger numbers might leave the type.
_LARGEST = 2**30
# Which of their results are positions along a dimension; None if they have one result.
_PLACES = {
    "argmax": None, "argmin": None, "argsort": None,
    "max": 1, "min": 1, "sort": 1, "topk": 1, "kthvalue": 1, "median": 1, "nanmedian": 1,
    "mode": 1, "cummax": 1, "cummin": 1,
}  # fmt: skip
# Where the only number of their result is among their arguments.
_FILLED = {"scalar_tensor": 0, "full": 1, "full_like": 1}
_MOVING = ("clone", "alias", "detach", "flip", "roll", "gather", "index_select", "index", "repeat",
           "_unsafe_view", "reshape", "contiguous", "lift_fresh_copy")  # fmt: skip


class IndexBounds:
    """Ranges of the indices of a program.

    Args:
        program: whose indices are looked at before it runs, where that is possible.
    """

    def __init__(self, program: torch.fx.GraphModule):
        self._program = program
        self._repeatable: dict[torch.fx.Node, bool] = {}
        self._ranges: dict[torch.fx.Node, Range] = {}

    def may_leave(self, node: torch.fx.Node) -> bool:
        """Return whether an operator may index out of bounds, as far as known before it runs."""
        return any(
            not self._is_checked(index) and not self._fits(index, low, high)
            for index, low, high in _of_gradients(node) or _of_all(node)
        )

    def _fits(self, index: torch.fx.Node, low: int, high: int) -> bool:
        least, largest = self._range(index)
        return low <= least and largest <= high

    def _is_checked(self, node: torch.fx.Node) -> bool:
        """Return whether a value can be computed and checked before the program runs."""
        order = [node]
        while order:
            each = order[-1]
            inputs = each.all_input_nodes
            waiting = [one for one in inputs if one not in self._repeatable]
            if each in self._repeatable:
                order.pop()
            elif each.op == "placeholder":
                self._repeatable[each] = True
            elif not is_repeatable(each, self._program):
                self._repeatable[each] = False
            elif waiting:
                order += waiting
            else:
                self._repeatable[each] = all(self._repeatable[one] for one in inputs)
        return self._repeatable[node]

    def _range(self, node: torch.fx.Node) -> Range:
        """Return the range of an integer tensor."""
        if node not in self._ranges:
            self._ranges[node] = _UNKNOWN  # for what leads back to itself: there is none
            self._ranges[node] = self._computed(node)
        return self._ranges[node]

    def _computed(self, node: torch.fx.Node) -> Range:
        if node.op == "get_attr":
            return _of_constant(operator.attrgetter(str(node.target))(self._program))
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.dtype.is_floating_point:
            return _UNKNOWN
        if value.dtype is torch.bool:
            return 0, 1
        if is_getitem(node):
            source, number = cast("tuple[torch.fx.Node, int]", node.args)
            return _of_places(source) if _PLACES.get(name_of(source)) == number else _UNKNOWN
        called = called_operator(node)
        if called is None or called.namespace != "aten":
            return _UNKNOWN
        return self._of_operator(node, name_of(node))

    def _of_operator(self, node: torch.fx.Node, name: str) -> Range:
        if name in _PLACES and _PLACES[name] is None:
            return _of_places(node)
        if name in _FILLED:
            return self._of_one(node.args[_FILLED[name]])
        if name in ("randint", "randint_like"):
            numbers = [each for each in node.args if isinstance(each, int)]
            return (numbers[0], numbers[1] - 1) if len(numbers) > 1 else (0, numbers[0] - 1)
        if name in ("randperm", "multinomial"):
            count = node.args[0]
            if isinstance(count, torch.fx.Node):
                count = count.meta["val"].shape[-1]
            return 0, count - 1  # type: ignore[operator]
        if is_view(node) or name in _MOVING:
            return self._range(node.all_input_nodes[0])
        if name == "_to_copy":
            source = node.all_input_nodes[0]
            return _within(self._range(source), node.meta["val"].dtype)
        if name in ("cat", "stack", "where"):
            given: Any = node.args[1:3] if name == "where" else node.args[0]
            return _together(self._of_one(each) for each in given)
        return self._of_arithmetic(node, name)

    def _of_one(self, given: Any) -> Range:
        """Return the range of a tensor or a number."""
        if isinstance(given, int):
            return given, given
        return self._range(given) if isinstance(given, torch.fx.Node) else _UNKNOWN

    def _of_arithmetic(self, node: torch.fx.Node, name: str) -> Range:
        """Return the range of an operator of a tensor and numbers."""
        source, *numbers = cast("tuple[Any, ...]", node.args)
        if not isinstance(source, torch.fx.Node) or node.kwargs:
            return _UNKNOWN
        if any(each is not None and not isinstance(each, int) for each in numbers):
            return _UNKNOWN
        low, high = self._range(source)
        if name == "remainder" and numbers[0] > 0:
            return 0, numbers[0] - 1
        if name == "clamp":
            least, most = (*numbers, None)[:2]
            low = low if least is None else max(low, least)
            high = high if most is None else min(high, most)
            return (low, high) if low <= high else _UNKNOWN
        if name in ("add", "sub", "mul") and len(numbers) == 1:
            number = -numbers[0] if name == "sub" else numbers[0]
            ends = [end * number if name == "mul" else end + number for end in (low, high)]
            small = max(map(abs, (low, high, number))) < _LARGEST
            return (min(ends), max(ends)) if small else _UNKNOWN
        return _UNKNOWN


def _of_all(node: torch.fx.Node) -> list[tuple[torch.fx.Node, int, int]]:
    """Return the indices of an operator with their smallest and largest valid value."""
    return [(index, low, high) for index, (low, high, _) in indices(node)]


def _of_gradients(node: torch.fx.Node) -> list[tuple[torch.fx.Node, int, int]]:
    """Return the indices of a gradient, which a program checks where forward uses them."""
    name = name_of(node)
    if name == "embedding_dense_backward":
        return [(argument_of(node, "indices"), 0, argument_of(node, "num_weights") - 1)]
    if name in ("nll_loss_backward", "nll_loss2d_backward"):
        shape = argument_of(node, "self").meta["val"].shape
        return [(argument_of(node, "target"), 0, shape[min(1, len(shape) - 1)] - 1)]
    return []


def _of_constant(value: Any) -> Range:
    if not isinstance(value, torch.Tensor) or not value.numel() or value.is_floating_point():
        return _UNKNOWN
    least, largest = torch.aminmax(value.long())
    return int(least.item()), int(largest.item())


def _of_places(node: torch.fx.Node) -> Range:
    """Positions along a dimension of what an operator is given, or in all of it."""
    shape = node.all_input_nodes[0].meta["val"].shape
    dim = _dim_of(node)
    size = math.prod(shape) if dim is None else shape[dim] if shape else 1
    return 0, max(size - 1, 0)


def _dim_of(node: torch.fx.Node) -> int | None:
    return cast("int | None", argument_of(node, "dim"))


def _within(values: Range, dtype: torch.dtype) -> Range:
    """Return the range after a conversion; unknown unless the type holds all of it."""
    if dtype.is_floating_point or dtype is torch.bool:
        return _UNKNOWN
    limits = torch.iinfo(dtype)
    return values if limits.min <= values[0] and values[1] <= limits.max else _UNKNOWN


def _together(ranges: Iterator[Range]) -> Range:
    lows, highs = zip(*ranges, strict=True)
    return min(lows), max(highs)


def _may_leave(graph: torch.fx.GraphModule) -> Callable[[torch.fx.Node], bool]:
    return IndexBounds(graph).may_leave


DIALECT = Dialect(handlers=HANDLERS, types=TYPES, may_leave=_may_leave, rewritten=packed_once)
