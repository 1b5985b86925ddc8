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
