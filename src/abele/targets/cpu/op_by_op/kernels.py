"""Registry rows of the library kernels that replace operators in op-by-op execution.

A row has an operator, a predicate of supported nodes and the function that computes these nodes.
Execution, memory plans, reports and self-tests use the rows.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch

_Node = torch.fx.Node


def _always(node: _Node) -> bool:
    del node
    return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnKernel:
    """A library kernel that replaces an operator.

    Attributes:
        operator: the replaced operator.
        name: of the function, in reports.
        kind: in ``kernels.sources.KINDS``.
        function: returns the function of tensors for a node, from the node, the library and
            whether the first result is written over an argument.
        suits: returns whether it supports a node with this operator. Layouts are checked at run
            time: a function may call torch's operator for tensors that are not channels-last.
        over: index of the argument over which the first result may be written, if any.
    """

    operator: Any
    name: str
    kind: str
    function: Callable[[_Node, ctypes.CDLL, bool], Callable[..., Any]]
    suits: Callable[[_Node], bool] = _always
    over: int | None = None


def of_library(
    operator: Any, kind: str, function: Callable[..., Any], over: int | None = None
) -> OwnKernel:
    """Return the registry row of a library kernel called as (library, overwrite, arguments)."""
    return OwnKernel(
        operator=operator,
        name=function.__name__,
        kind=kind,
        function=lambda node, library, overwrite: functools.partial(function, library, overwrite),
        over=over,
    )
