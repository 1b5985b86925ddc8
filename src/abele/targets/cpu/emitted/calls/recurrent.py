"""Loops over the time steps of recurrent layers, by our kernels."""

from __future__ import annotations

from typing import Any

import torch

from abele.ops import lstm_loop
from abele.targets.cpu.emitted.calls import products
from abele.targets.translation.moves.arguments import arguments
from abele.targets.translation.operations import Call
from abele.targets.translation.places import Place


def loop(translator: Any, node: torch.fx.Node) -> bool:
    """``abele.lstm_loop``: the weight is packed, and one call computes all steps."""
    inputs, weight, bias, h, c, reverse, kept = arguments(node)
    steps, batch, width = inputs.meta["val"].shape
    units = width // 4
    packed = _packed(translator, _turned(translator.places[weight]))
    reads = _Reads(translator)
    pointers = [reads.of(inputs), reads.place(packed), *map(reads.of, (bias, h, c))]
    _add(
        translator,
        *("lstm", node, (steps, batch, units, int(reverse), int(kept))),
        *(pointers, reads.places),
    )
    return True


def loop_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``abele.lstm_loop_backward``: likewise."""
    grad_states, grad_h, grad_c, weight, cells, gates, reverse = arguments(node)
    steps, batch, width = gates.meta["val"].shape
    packed = _packed(translator, translator.places[weight])
    reads = _Reads(translator)
    pointers = [
        *map(reads.of, (grad_states, grad_h, grad_c)),
        reads.place(packed),
        *map(reads.of, (cells, gates)),
    ]
    _add(
        translator,
        *("lstm_backward", node, (steps, batch, width // 4, int(reverse), 1)),
        *(pointers, reads.places),
    )
    return True


class _Reads:
    """What a call reads, and how its text names each."""

    def __init__(self, translator: Any):
        self._translator = translator
        self.places: list[Place] = []

    def of(self, node: torch.fx.Node | None) -> str:
        """The pointer to a tensor, in rows; null if there is none."""
        if node is None:
            return "nullptr"
        return self.place(self._translator.contiguous(self._translator.places[node]))

    def place(self, place: Place) -> str:
        """The pointer to a tensor that lies as the call reads it."""
        self.places.append(place)
        return f"{{{len(self.places) - 1}}}"


def _add(
    translator: Any,
    name: str,
    node: torch.fx.Node,
    layer: tuple[int, ...],
    pointers: list[str],
    reads: list[Place],
) -> None:
    """Call a kernel of a layer with so many steps, samples and units."""
    results = [translator.new(tuple(each.shape), each.dtype) for each in node.meta["val"]]
    pointers += [f"{{{len(reads) + number}}}" for number in range(len(results))]
    steps, batch, units = layer[:3]
    described = f"AbeleLstm{{{{{', '.join(map(str, layer))}}}}}"
    threads = products.threads_for(4 * steps * batch * units * units)
    text = f"status |= abele::{name}({described}, {', '.join(pointers)}, {threads})"
    translator.add(Call(reads, results, text))
    translator.places[node] = results


def _turned(place: Place) -> Place:
    return Place(place.buffer, place.shape[::-1], place.stride[::-1], place.offset)


def _packed(translator: Any, factor: Place) -> Place:
    """The right factor of the products of all steps, packed once."""
    packed = products.room_for_packed(factor, translator.new)
    translator.add(products.packing(factor, packed))
    return packed


HANDLERS = {lstm_loop.forward: loop, lstm_loop.backward: loop_backward}
