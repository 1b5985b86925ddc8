"""Which nodes of a traced graph live in the same memory, as the schemas of operators say."""

from __future__ import annotations

from typing import Any

import torch

from abele._torch import OpOverload
from abele.program.core import is_getitem, node_argument, writes

#: In the meta of a constant: the constant that stands for the memory both live in.
SHARES = "shares"


def base(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose memory a value lives in: itself, unless it is a view or an argument."""
    while True:
        if node.op == "get_attr":
            return node.meta.get(SHARES, node)
        source = _source(node)
        if source is None:
            return node
        node = source


def written(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The tensors that a node writes into, in the order of its operator's schema."""
    if not writes(node):
        return []
    schema = node.target._schema  # type: ignore[union-attr]  # writes() has looked
    return [
        target
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
        for target in _nodes(_given(node, index, argument.name))
    ]


def _source(node: torch.fx.Node) -> torch.fx.Node | None:
    """The argument whose memory a result shares, if it does."""
    call, index = (node_argument(node, 0), node.args[1]) if is_getitem(node) else (node, 0)
    if not isinstance(call.target, OpOverload) or not isinstance(index, int):
        return None
    returns = call.target._schema.returns
    # One result may be a list of views of the same tensor.
    result = returns[index if len(returns) > 1 else 0] if returns else None
    if result is None or result.alias_info is None:
        return None
    shared = result.alias_info.before_set
    for position, argument in enumerate(call.target._schema.arguments):
        alias = argument.alias_info
        # A list of views names no set; its argument says that it goes anywhere.
        if alias is not None and (alias.before_set == shared if shared else alias.after_set):
            found = _nodes(_given(call, position, argument.name))
            return found[0] if found else None
    return None


def _given(node: torch.fx.Node, index: int, name: str) -> Any:
    return node.args[index] if index < len(node.args) else node.kwargs.get(name)


def _nodes(argument: Any) -> list[torch.fx.Node]:
    values = argument if isinstance(argument, list | tuple) else [argument]
    return [value for value in values if isinstance(value, torch.fx.Node)]
