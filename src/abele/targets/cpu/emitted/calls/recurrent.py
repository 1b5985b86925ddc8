"""Loops over the time steps of recurrent layers, by our kernels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from abele import _torch
from abele.ops import gru_loop, lstm_loop, rnn_loop
from abele.targets.cpu.emitted.calls import products
from abele.targets.translation.moves.arguments import arguments
from abele.targets.translation.operations import Call
from abele.targets.translation.places import Place

# What operators do not say: their kernels keep what backward needs, and activations are tanh.
_SETTINGS = {"reverse": False, "kept": True, "relu": False}


def loop(translator: Any, node: torch.fx.Node, *, kernel: str, forward: bool) -> bool:
    """Pack the weight of a loop, and compute all steps with one call.

    Args:
        translator: of the program.
        node: its operator is one of ``HANDLERS``. Kernels take its tensors in the same order.
        kernel: the name of the function.
        forward: the state is multiplied by the weight, which is turned; else its gradient.
    """
    operator: Any = node.target
    names = [each.name for each in _torch.schema_of(operator).arguments]
    given: dict[str, Any] = dict(zip(names, arguments(node), strict=True))
    settings = [int(given.pop(name, default)) for name, default in _SETTINGS.items()]
    weight = translator.places[given["weight"]]
    given["weight"] = _packed(translator, _turned(weight) if forward else weight)
    values: Any = node.meta["val"]
    made: list[torch.Tensor] = [values] if isinstance(values, torch.Tensor) else list(values)
    results = [translator.new(tuple(each.shape), each.dtype) for each in made]
    reads = [_in_rows(translator, each) for each in given.values() if each is not None]
    numbers = iter(range(len(reads) + len(results)))
    pointers = ["nullptr" if each is None else f"{{{next(numbers)}}}" for each in given.values()]
    pointers += [f"{{{number}}}" for number in numbers]
    steps, batch, units = _sizes(made, forward=forward)
    described = ", ".join(map(str, (steps, batch, units, *settings)))
    pointers += [products.threads_for(steps * batch * weight.size)]
    layer = f"AbeleRecurrent{{{{{described}}}}}"
    translator.add(
        Call(reads, results, f"status |= abele::{kernel}({layer}, {', '.join(pointers)})")
    )
    translator.places[node] = results[0] if made[0] is values else results
    return True


def _sizes(results: Sequence[torch.Tensor], *, forward: bool) -> tuple[int, int, int]:
    """Steps, batch and units of a layer."""
    if forward:  # states before and after each step
        steps, batch, units = results[0].shape
        return steps - 1, batch, units
    batch, units = results[-1].shape  # the gradients of inputs come first, of one state last
    return results[0].shape[0], batch, units


def _turned(place: Place) -> Place:
    return Place(place.buffer, place.shape[::-1], place.stride[::-1], place.offset)


def _packed(translator: Any, factor: Place) -> Place:
    """The right factor of the products of all steps, packed once."""
    packed = products.room_for_packed(factor, translator.new)
    translator.add(products.packing(factor, packed))
    return packed


def _in_rows(translator: Any, given: torch.fx.Node | Place) -> Place:
    if isinstance(given, Place):
        return given
    return translator.contiguous(translator.places[given])


HANDLERS = {
    operator: functools.partial(loop, kernel=kernel, forward=forward)
    for operator, kernel, forward in (
        (lstm_loop.forward, "lstm", True),
        (lstm_loop.backward, "lstm_backward", False),
        (gru_loop.forward, "gru", True),
        (gru_loop.backward, "gru_backward", False),
        (rnn_loop.forward, "rnn", True),
        (rnn_loop.backward, "rnn_backward", False),
    )
}
