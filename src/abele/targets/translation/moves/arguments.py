"""Arguments of a node, whose types the schema of its operator says."""

from __future__ import annotations

from typing import Any

import torch


def arguments(node: torch.fx.Node) -> tuple[Any, ...]:
    """Those by position: nodes, numbers, lists of them."""
    return node.args


def options(node: torch.fx.Node) -> dict[str, Any]:
    """Those by name."""
    return node.kwargs


def dims_of(node: torch.fx.Node, rank: int) -> set[int]:
    """The dimensions that an operator reduces, its second argument; all if it has none."""
    dims = arguments(node)[1] if len(arguments(node)) > 1 else None
    dims = [dims] if isinstance(dims, int) else dims
    everything = set(range(rank))  # of a number there is none, though torch takes 0 and -1
    return {int(d) % rank for d in dims} if dims and rank else everything
