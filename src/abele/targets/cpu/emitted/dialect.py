"""Capabilities of C++ for processors, and bounds of the indices of a program."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch

from abele.program import is_getitem, is_view
from abele.targets.cpu.emitted.calls import HANDLERS
from abele.targets.index_checks import argument_of, indices, is_repeatable, name_of
from abele.targets.translation.dialect import Dialect
from abele.targets.translation.pointwise import TYPES

#: The smallest and the largest number that a value may hold.
Range = tuple[float, float]

_UNKNOWN: Range = (-math.inf, math.inf)
# Which of their results are positions along a dimension; None if they have one result.
_PLACES = {
    "argmax": None, "argmin": None, "argsort": None,
    "max": 1, "min": 1, "sort": 1, "topk": 1, "kthvalue": 1, "median": 1, "nanmedian": 1,
    "mode": 1, "cummax": 1, "cummin": 1,
}  # fmt: skip
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
        """Return the range of the positions and random numbers that an index holds."""
        while is_view(node) or name_of(node) in _MOVING:
            source = node.all_input_nodes[0]
            if source.meta["val"].dtype != node.meta["val"].dtype:
                return _UNKNOWN
            node = source
        if is_getitem(node):
            source, number = cast("tuple[torch.fx.Node, int]", node.args)
            return _of_places(source) if _PLACES.get(name_of(source)) == number else _UNKNOWN
        name = name_of(node)
        if name in _PLACES and _PLACES[name] is None:
            return _of_places(node)
        if name in ("randint", "randint_like"):
            numbers = [each for each in node.args if isinstance(each, int)]
            return (numbers[0], numbers[1] - 1) if len(numbers) > 1 else (0, numbers[0] - 1)
        if name in ("randperm", "multinomial"):
            count: Any = node.args[0]
            return 0, (count.meta["val"].shape[-1] if name == "multinomial" else count) - 1
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


def _of_places(node: torch.fx.Node) -> Range:
    """Positions along a dimension of what an operator is given, or in all of it."""
    shape = node.all_input_nodes[0].meta["val"].shape
    dim = cast("int | None", argument_of(node, "dim"))
    size = math.prod(shape) if dim is None else shape[dim] if shape else 1
    return 0, max(size - 1, 0)


def _may_leave(graph: torch.fx.GraphModule) -> Callable[[torch.fx.Node], bool]:
    return IndexBounds(graph).may_leave


DIALECT = Dialect(handlers=HANDLERS, types=TYPES, may_leave=_may_leave)
