"""Capabilities of a kind of code, apart from views and elementwise expressions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

#: Takes the translator and the node, and says whether it could be translated.
Handler = Callable[[Any, torch.fx.Node], bool]


def _none_leaves(graph: torch.fx.GraphModule) -> Callable[[torch.fx.Node], bool]:
    del graph
    return lambda node: False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dialect:
    """Capabilities of a kind of code.

    Attributes:
        handlers: translate operators that are no views and have no rule; torch computes the others.
        types: that loops know.
        may_leave: says of a graph which of its operators may index outside of memory; these are
            torch's, because code does not check.
    """

    handlers: Mapping[Any, Handler]
    types: Collection[torch.dtype]
    may_leave: Callable[[torch.fx.GraphModule], Callable[[torch.fx.Node], bool]] = _none_leaves
