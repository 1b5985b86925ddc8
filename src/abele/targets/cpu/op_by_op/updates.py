"""Fused optimizer updates (Adam, SGD) of many parameters in one library kernel call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, cast

import torch

from abele.kernels.binding import Adam, AdamTensor, Sgd, SgdTensor, threads_for
from abele.kernels.on_tensors import dense
from abele.ops.fused_updates import adam, sgd
from abele.program import is_getitem
from abele.program.aliasing import aliases_of_calls
from abele.targets.cpu.op_by_op.kernels import of_library

aten = torch.ops.aten

_Node = torch.fx.Node

# How many lists of tensors an update takes; the second has the gradients, the others change.
_LISTS: dict[Any, int] = {adam: 5, sgd: 3}
# The types of parameters and gradients by their numbers in abi.h.
_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def is_update(node: _Node) -> bool:
    """Return whether a node is a fused optimizer update of many parameters."""
    return node.target in _LISTS


def copies_back(node: _Node) -> list[_Node] | None:
    """Return removable ``copy_`` nodes of update results to arguments; None if one is needed."""
    params, grads, *state = cast("Any", node.args[: _LISTS[node.target]])
    changed: list[_Node] = [each for column in (params, *state) for each in column]
    results = {user.args[1]: user for user in node.users if is_getitem(user)}
    copies = [_only_copy(results.get(index), each) for index, each in enumerate(changed)]
    if None in copies or _are_read(set(changed), node, grads, {*copies}):
        return None
    return cast("list[_Node]", copies)


def _only_copy(result: _Node | None, argument: _Node) -> _Node | None:
    """Return the ``copy_`` of a result into its argument, if nothing else reads either."""
    users = [] if result is None else list(result.users)
    if len(users) != 1 or users[0].target is not aten.copy_.default or users[0].users:
        return None
    back = users[0].args[0] is argument and argument.op == "placeholder"
    return users[0] if back else None


def _are_read(
    changed: set[_Node], node: _Node, grads: list[_Node], copies: set[_Node | None]
) -> bool:
    """Return whether tensors that an update overwrites are read after it or as gradients.

    A gradient may be another parameter, or a view of one, if a function defines its own backward.
    """
    aliases = aliases_of_calls(node.graph)
    read = list(grads)
    later = node.next
    while later.op != "root":
        read += [] if later in copies else later.all_input_nodes
        later = later.next
    return any(aliases.base(each) in changed for each in read)


def erase_copies(copies: Sequence[_Node]) -> None:
    """Erase the ``copy_`` nodes of update results, and the nodes that pick these results."""
    for each in copies:
        result = cast("_Node", each.args[1])
        each.graph.erase_node(each)
        each.graph.erase_node(result)


def adam_update(library: ctypes.CDLL, overwrite: bool, *given: Any) -> list[torch.Tensor]:
    """Compute ``abele::adam``; may overwrite parameters and optimizer state."""
    *columns, rate, beta1, beta2, eps, decay, scale = given
    params, grads, first, second, steps = _writable(columns, overwrite=overwrite)
    tensors = _described(AdamTensor, params, first, second, grads, steps)
    types = (_TYPES.index(params[0].dtype), _TYPES.index(grads[0].dtype))
    settings = Adam(*(each.item() for each in (beta1, beta2, eps, decay, scale)), *types)
    threads = _threads(library, params)
    library.abele_adam(settings, tensors, len(params), rate.item(), threads)
    return [*params, *first, *second, *steps]


def sgd_update(library: ctypes.CDLL, overwrite: bool, *given: Any) -> list[torch.Tensor]:
    """Compute ``abele::sgd``; may overwrite parameters and velocities."""
    *columns, rate, momentum, rest, decay, nesterov = given
    params, grads, velocities = _writable(columns, overwrite=overwrite)
    tensors = _described(SgdTensor, params, velocities, grads)
    settings = Sgd(*(each.item() for each in (rate, momentum, rest, decay, nesterov)))
    library.abele_sgd(settings, tensors, len(params), _threads(library, params))
    return [*params, *velocities]


def _writable(columns: Sequence[list[torch.Tensor]], *, overwrite: bool) -> list[Any]:
    """Return an update's tensor lists, cloned if the kernel may not overwrite them."""
    params, grads, *state = columns
    if not overwrite:
        params, *state = ([each.clone() for each in column] for column in (params, *state))
    return [params, dense(*grads), *state]


def _described(kind: type[ctypes.Structure], *columns: list[torch.Tensor]) -> Any:
    """Return a C array of element count and tensor addresses for each parameter."""
    rows = zip(*columns, strict=True)
    return (kind * len(columns[0]))(
        *((row[0].numel(), *(each.data_ptr() for each in row)) for row in rows)
    )


def _threads(library: ctypes.CDLL, params: list[torch.Tensor]) -> int:
    return threads_for(library, sum(each.numel() for each in params))


UPDATES = (of_library(adam, "adam", adam_update), of_library(sgd, "sgd", sgd_update))
