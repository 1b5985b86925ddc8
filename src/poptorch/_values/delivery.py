"""Return of results in the containers of forward, for repeated calls."""

from collections.abc import Callable
from typing import Any

import torch

from poptorch._values.results import to_host
from poptorch._values.structure import Items, Leaf, Structure, rebuild

Deliver = Callable[[list[torch.Tensor]], Any]


def delivery(like: Structure) -> Deliver:
    """Return what puts computed tensors into a recorded structure, on the host.

    A tensor, and a tuple or list of tensors, need no walk through the structure.

    Args:
        like: of the results; every tensor in it is computed.
    """
    if isinstance(like, Leaf):
        return _only
    if isinstance(like, Items) and all(isinstance(part, Leaf) for part in like.parts):
        if like.kind is tuple:
            return _tuple
        if like.kind is list:
            return _list
    return lambda outputs: rebuild(like, map(to_host, outputs))


def _only(outputs: list[torch.Tensor]) -> torch.Tensor:
    return to_host(outputs[0])


def _tuple(outputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(map(to_host, outputs))


def _list(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return list(map(to_host, outputs))
