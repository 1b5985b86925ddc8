"""Loops over the time steps of recurrent layers, by our kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from abele.ops import gru_loop, lstm_loop, rnn_loop
from abele.targets.cpu.emitted.calls import products
from abele.targets.translation.moves.arguments import arguments
from abele.targets.translation.operations import Call
from abele.targets.translation.places import Place


def lstm(translator: Any, node: torch.fx.Node) -> bool:
    """``abele.lstm_loop``: the weight is packed, and one call computes all steps."""
    inputs, weight, bias, h, c, reverse, kept = arguments(node)
    layer = _Layer(translator, node, "lstm", reverse=reverse, kept=kept)
    return layer.call([inputs, layer.turned(weight), bias, h, c])


def lstm_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``abele.lstm_loop_backward``: likewise."""
    *gradients, weight, cells, gates, reverse = arguments(node)
    layer = _Layer(translator, node, "lstm_backward", reverse=reverse)
    return layer.call([*gradients, layer.packed(weight), cells, gates])


def gru(translator: Any, node: torch.fx.Node) -> bool:
    """``abele.gru_loop``."""
    inputs, weight, bias, h, reverse, kept = arguments(node)
    layer = _Layer(translator, node, "gru", reverse=reverse, kept=kept)
    return layer.call([inputs, layer.turned(weight), bias, h])


def gru_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``abele.gru_loop_backward``."""
    *gradients, weight, states, gates, reverse = arguments(node)
    layer = _Layer(translator, node, "gru_backward", reverse=reverse)
    return layer.call([*gradients, layer.packed(weight), states, gates])


def rnn(translator: Any, node: torch.fx.Node) -> bool:
    """``abele.rnn_loop``."""
    inputs, weight, bias, h, relu, reverse = arguments(node)
    layer = _Layer(translator, node, "rnn", reverse=reverse, relu=relu)
    return layer.call([inputs, layer.turned(weight), bias, h])


def rnn_backward(translator: Any, node: torch.fx.Node) -> bool:
    """``abele.rnn_loop_backward``."""
    *gradients, weight, states, relu, reverse = arguments(node)
    layer = _Layer(translator, node, "rnn_backward", reverse=reverse, relu=relu)
    return layer.call([*gradients, layer.packed(weight), states])


@dataclasses.dataclass
class _Layer:
    """One call of a kernel, and the calls before it that pack its weight.

    Attributes:
        translator: of the program.
        node: the loop.
        name: of the kernel.
        reverse: from the last step to the first.
        kept: backward needs what all steps make.
        relu: the activation of a layer without gates.
    """

    translator: Any
    node: torch.fx.Node
    name: str
    _: dataclasses.KW_ONLY
    reverse: bool
    kept: bool = True
    relu: bool = False
    _weights: int = dataclasses.field(default=0, init=False)

    def turned(self, weight: torch.fx.Node) -> Place:
        """The packed weight that the state is multiplied by in forward."""
        place = self.translator.places[weight]
        return self._packed(
            Place(place.buffer, place.shape[::-1], place.stride[::-1], place.offset)
        )

    def packed(self, weight: torch.fx.Node) -> Place:
        """The packed weight that gradients are multiplied by in backward."""
        return self._packed(self.translator.places[weight])

    def _packed(self, factor: Place) -> Place:
        self._weights = factor.size
        packed = products.room_for_packed(factor, self.translator.new)
        self.translator.add(products.packing(factor, packed))
        return packed

    def call(self, given: Sequence[torch.fx.Node | Place | None]) -> bool:
        """Call the kernel with the tensors that it takes; null for those that there are not."""
        values: Any = self.node.meta["val"]
        made = [values] if isinstance(values, torch.Tensor) else list(values)
        results = [self.translator.new(tuple(each.shape), each.dtype) for each in made]
        reads = [self._in_rows(each) for each in given if each is not None]
        numbers = iter(range(len(reads) + len(results)))
        pointers = ["nullptr" if each is None else f"{{{next(numbers)}}}" for each in given]
        pointers += [f"{{{number}}}" for number in numbers]
        layer, threads = self._described(made)
        text = f"status |= abele::{self.name}({layer}, {', '.join(pointers)}, {threads})"
        self.translator.add(Call(reads, results, text))
        self.translator.places[self.node] = results[0] if made[0] is values else results
        return True

    def _described(self, results: Sequence[torch.Tensor]) -> tuple[str, str]:
        """The description of the layer and the number of threads, in C++."""
        if self.name.endswith("backward"):  # of all steps' inputs first, of one state last
            steps, (batch, units) = results[0].shape[0], results[-1].shape
        else:  # states before and after each step
            steps, batch, units = results[0].shape[0] - 1, *results[0].shape[1:]
        numbers = (steps, batch, units, self.reverse, self.kept, self.relu)
        listed = ", ".join(str(int(each)) for each in numbers)
        threads = products.threads_for(steps * batch * self._weights)
        return f"AbeleRecurrent{{{{{listed}}}}}", threads

    def _in_rows(self, given: torch.fx.Node | Place) -> Place:
        if isinstance(given, Place):
            return given
        return self.translator.contiguous(self.translator.places[given])


HANDLERS = {
    lstm_loop.forward: lstm,
    lstm_loop.backward: lstm_backward,
    gru_loop.forward: gru,
    gru_loop.backward: gru_backward,
    rnn_loop.forward: rnn,
    rnn_loop.backward: rnn_backward,
}
