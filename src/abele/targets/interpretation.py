"""Runs a graph operation by operation, in types that may be other ones than it was captured in.

What has no kernel for such a type, draws random numbers or has effects is computed in the types it
was captured in, and rounded: so the same numbers are drawn in all types.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from abele.containers import is_dict, is_sequence
from abele.program import Program, has_effect, writes
from abele.program.cut import draws
from abele.targets.straight import called

Node = torch.fx.Node
aten = torch.ops.aten
# What nobody has written holds anything.
_UNSET = {
    *(aten.empty_like.default, aten.empty.memory_format, aten.new_empty.default),
    *(aten.empty_strided.default, aten.new_empty_strided.default),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Types:
    """What types of a captured program become.

    Attributes:
        dtype: the type that takes the place of float32, and where it is float64 of all narrower
            ones; None for none.
    """

    dtype: torch.dtype | None = None

    def of(self, dtype: torch.dtype) -> torch.dtype:
        """What a type of the captured program becomes."""
        if self.dtype is torch.float64:
            if dtype.is_complex:
                return torch.complex128
            return torch.float64 if dtype.is_floating_point else dtype
        return self.dtype if self.dtype is not None and dtype is torch.float32 else dtype


class Interpretation:
    """The values of a program's nodes in some types.

    Args:
        program: is run.
        arguments: one tensor per input slot.
        types: in which it is computed.

    Attributes:
        values: by node, as far as they were computed and not dropped.
        rounded: operators that were computed in other types than asked for.
    """

    def __init__(self, program: Program, arguments: Sequence[torch.Tensor], types: Types):
        self._root, self._types = program.graph, types
        self.values: dict[Node, Any] = {
            node: argument.to(types.of(argument.dtype))
            for node, argument in zip(program.placeholders(), arguments, strict=True)
        }
        self.rounded: set[str] = set()

    def compute(self, node: Node) -> Any:
        """Compute a node, and keep its value."""
        self.values[node] = self.computed(node, self.values)
        return self.values[node]

    def computed(self, node: Node, values: Mapping[Node, Any]) -> Any:
        """The value of a node from those of its arguments, which may be of any types."""
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(self._root)
            return self._cast(value, self._types.of) if _is_tensor(value) else value
        captured = draws(node) or has_effect(node)
        if not captured:
            try:
                return self._called(node, values, self._types.of)
            except (RuntimeError, NotImplementedError):
                if self._types.dtype is None:
                    raise
                self.rounded.add(str(node.target))
        result = self._called(node, values, lambda dtype: dtype)
        return _mapped(result, lambda each: self._cast(each, self._types.of))

    def _called(
        self, node: Node, values: Mapping[Node, Any], of: Callable[[torch.dtype], torch.dtype]
    ) -> Any:
        def value(argument: Any) -> Any:
            if isinstance(argument, Node):
                return _mapped(values[argument], lambda each, n=argument: _as(each, n, of))
            if isinstance(argument, torch.dtype):
                return of(argument)
            if is_dict(argument):
                return {key: value(each) for key, each in argument.items()}
            if is_sequence(argument) and not isinstance(argument, str):
                return type(argument)([value(each) for each in argument])
            return argument

        arguments = [value(each) for each in node.args]
        named = {name: value(each) for name, each in node.kwargs.items()}
        return called(node)(*arguments, **named)

    @staticmethod
    def _cast(value: torch.Tensor, of: Callable[[torch.dtype], torch.dtype]) -> torch.Tensor:
        return value.to(of(value.dtype))


def _as(value: torch.Tensor, node: Node, of: Callable[[torch.dtype], torch.dtype]) -> torch.Tensor:
    """A value in the type that its node has then; integers stay what they are."""
    captured = node.meta.get("val")
    if not isinstance(captured, torch.Tensor) or not (
        value.is_floating_point() or value.is_complex()
    ):
        return value
    return value.to(of(captured.dtype))


def _mapped(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if _is_tensor(value):
        return function(value)
    if is_sequence(value) and not isinstance(value, str):
        return type(value)([_mapped(each, function) for each in value])
    return value


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def rounded(value: Any, node: Node, types: Types) -> Any:
    """A value of a node in the type that it has in others."""
    return _mapped(value, lambda each: _as(each, node, types.of))


def calls(program: Program) -> list[Node]:
    """The nodes that compute, in order; nothing is written, so all values stay what they are."""
    nodes = program.graph.graph.nodes
    return [n for n in nodes if n.op not in ("placeholder", "output") and not writes(n)]


def measured(node: Node) -> bool:
    """Whether a node's value is a tensor that is worth comparing."""
    value = node.meta.get("val")
    return (
        node.op == "call_function"
        and node.target not in _UNSET
        and isinstance(value, torch.Tensor)
        and value.numel() > 0
    )


def all_values(
    program: Program,
    arguments: Sequence[torch.Tensor],
    types: Types,
    random_state: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Every value that is worth comparing, by the name of its node.

    Args:
        program: is run.
        arguments: one tensor per input slot.
        types: in which it is interpreted.
        random_state: that torch's generator starts with, and has afterwards as before.
    """
    run = Interpretation(program, arguments, types)
    outside = torch.get_rng_state()
    torch.set_rng_state(random_state)
    try:
        for node in calls(program):
            run.compute(node)
    finally:
        torch.set_rng_state(outside)
    return {node.name: value for node, value in run.values.items() if measured(node)}
