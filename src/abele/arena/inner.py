"""Tensors that torch's operators make and free again inside, which no graph shows.

A plan has to know them: each takes memory, and a place if the plan is followed. What is here was
read from torch's allocator, tensor by tensor; an operator that is not here makes none of size.
``convolutions`` has those of convolutions, ``half`` those of sums and products in 16 bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, cast

import torch

from abele import _torch
from abele.arena import convolutions, half
from abele.arena.calls import Calls, value
from abele.ops import lstm
from abele.program.memory import MemoryUse, Piece

aten = torch.ops.aten

#: Height and width of an upsampled image, added up.
_SMALL_SIDES = 128


def with_inner(
    use: MemoryUse,
    others: Mapping[torch.fx.Node, Calls | None] | None = None,
    channels_last: Container[torch.fx.Node] = (),
) -> MemoryUse:
    """The same with the tensors that operators make inside.

    Args:
        use: every tensor by itself.
        others: what nodes make that are not computed by torch.
        channels_last: nodes that read images which lie so, whatever their values say.
    """
    others, pieces = others or {}, list[Piece]()
    moments: dict[tuple[torch.fx.Node | None, int], int] = {}
    asked: dict[tuple[torch.fx.Node | None, int], int] = {}
    for step, node in enumerate(use.nodes):
        if node is None:
            continue
        calls = others[node] if node in others else _calls(node, node in channels_last)
        if calls is None:
            continue
        moments |= {(node, index): moment for index, moment in calls.results.items()}
        asked |= {(node, index): size for index, size in calls.asked.items()}
        pieces += _temporary(calls, node, step)
    made = [
        dataclasses.replace(
            each,
            begin=moments.get((each.node, each.result), each.begin),
            asked=asked.get((each.node, each.result), each.asked),
        )
        for each in use.pieces
    ]
    return dataclasses.replace(use, pieces=(*made, *pieces))


def _temporary(calls: Calls, node: torch.fx.Node | None, step: int) -> Iterator[Piece]:
    for begin, (size, end) in calls.temporary.items():
        if size:
            yield Piece(
                node=node,
                result=-1 if begin in calls.elsewhere else 0,
                first=step,
                last=step,
                size=size,
                begin=begin,
                end=end,
                inner=True,
            )


def _calls(node: torch.fx.Node, channels_last: bool) -> Calls | None:
    if node.op != "call_function" or node.target not in _RULES:
        return None
    return _RULES[node.target](node, channels_last)


def _batch_norm_backward(node: torch.fx.Node, channels_last: bool) -> Calls:
    del channels_last
    calls = Calls()
    unused = calls.make(value(node, 1).nbytes)
    calls.result(0)
    calls.free(unused)
    return calls


def _attention_backward(node: torch.fx.Node, channels_last: bool) -> Calls:
    del channels_last
    calls, gradient = Calls(), value(node, 0)
    for index in range(3):
        calls.result(index)
    lies = gradient.transpose(1, 2).is_contiguous()
    turned = calls.make(0 if lies else gradient.nbytes)
    sums = calls.make(value(node, 5).nbytes)
    calls.free(turned, sums)
    return calls


def _reduced_loss(node: torch.fx.Node, channels_last: bool) -> Calls | None:
    """Memory for the losses of all elements, twice; the sum or mean lies in one of them."""
    del channels_last
    calls, given = Calls(), value(node, 0)
    if node.meta["val"].dim():
        return None
    calls.result(0)
    calls.asked[0] = given.nbytes
    losses = calls.make(given.nbytes)
    is_mean = len(node.args) < 3 or node.args[2] == 1
    calls.free(losses, calls.make(half.widened(given) if half.is_narrow(given) and is_mean else 0))
    return calls


def _upsampling(node: torch.fx.Node, channels_last: bool) -> Calls | None:
    """Small images, and those of three channels in one thread, are computed with channels last."""
    if channels_last:
        return None
    image, result = value(node, 0), node.meta["val"]
    three = image.shape[1] == 3 and torch.get_num_threads() == 1
    small = image.shape[1] > 1 and sum(result.shape[2:]) <= _SMALL_SIDES
    lies = not image.is_contiguous() and image.is_contiguous(memory_format=torch.channels_last)
    if lies or not (small or three):
        return None
    calls = Calls()
    calls.result(0)
    calls.free(calls.make(image.nbytes), calls.make(result.nbytes))
    return calls


# -- recurrent layers ----------------------------------------------------------------------


#: Bytes of the library's description of an LSTM, and what a row of its memory is a multiple of.
_LSTM_LEAST, _LSTM_LEAST_BACK, _LINE, _SAME_LINES, _PAGE = 4872, 4664, 64, 1024, 4096


def _lstm_forward(node: torch.fx.Node, channels_last: bool) -> Calls | None:
    """The library's memory for the gates of all steps, and weights in its own order.

    Where backward follows, the gates are also among the results.
    """
    del channels_last
    differentiable = node.args[9]
    x, h, weights = value(node, 0), value(node, 5), (value(node, 1), value(node, 2))
    calls, (rows, units) = Calls(), h.shape
    for index in range(3):
        calls.result(index)
    if differentiable:
        calls.result(3)
        _lstm_of_library(calls, x, h, turned=False)
        return calls
    of_row = h.element_size() * units  # of one step: its gates, and states and cells around it
    step = rows * (_padded_row(4 * of_row) + 5 * _padded_row(of_row))
    gates = 4 * x.shape[0] * h.nbytes
    block = 2 * convolutions.block()  # registers that its weights are filled up to
    filled = -(-units // block) * block
    made = [calls.make(each.nbytes // units * filled) for each in weights]
    calls.free(*made, calls.make(gates + step + _LSTM_LEAST))
    return calls


def _padded_row(size: int) -> int:
    """Bytes of a row in whole cache lines; not so that all rows lie in the same ones."""
    padded = -(-size // _LINE) * _LINE
    return padded if padded % _SAME_LINES else padded + _LINE


def _lstm_backward(node: torch.fx.Node, channels_last: bool) -> Calls:
    """Gradients that are not given, and the library's memory once torch has made the results."""
    del channels_last
    x, h, units = value(node, 0), value(node, 5), value(node, 5).shape[1]
    of_gates = 4 * units * h.element_size()
    calls, gradients = Calls(), cast("list[torch.fx.Node | None]", list(node.args[10:13]))
    made = [calls.make(size) for size in _made_of_gradients(gradients, value(node, 7), h)]
    made.append(calls.make(of_gates))
    for index in (0, 5, 6, 1, 2, 3):
        calls.result(index)
    _lstm_of_library(calls, x, h, turned=True)
    made.append(calls.make(of_gates))
    calls.result(4)
    calls.free(*made)
    return calls


def _lstm_of_library(calls: Calls, x: torch.Tensor, h: torch.Tensor, *, turned: bool) -> None:
    """Weights as the library wants them, gates of all steps, and states of two.

    Args:
        calls: of the operator.
        x: ``[steps, batch, features]``.
        h: ``[batch, units]``.
        turned: weights that lie badly are also transposed.
    """
    units, made = h.shape[1], list[int]()
    of_gates = 4 * units * h.element_size()
    columns = x.shape[2], units
    if turned:
        made += [calls.make(_turned(4 * units, each, h)) for each in columns]
    made += [calls.make(each * _padded_row(of_gates)) for each in columns]
    made += [calls.make(of_gates)]  # biases
    made.append(calls.make(_lstm_scratch(x.shape[0] * x.shape[1], h)))
    calls.free(*made)


def _made_of_gradients(
    gradients: list[torch.fx.Node | None], states: torch.Tensor, h: torch.Tensor
) -> list[int]:
    """Bytes of zeros for gradients of states, h and c that are not given, and of copies."""
    of_states, *of_last = (None if each is None else each.meta["val"] for each in gradients)
    read = of_states is not None and of_states.is_contiguous() and of_last[0] is None
    return [0 if read else states.nbytes, *(h.nbytes if each is None else 0 for each in of_last)]


def _lstm_scratch(rows: int, h: torch.Tensor) -> int:
    """Bytes for the gradients of the gates of all steps, and of two steps' states."""
    of_row = h.element_size() * h.shape[1]
    states = -(-h.shape[0] * _padded_row(of_row) // _PAGE) * _PAGE
    gates = -(-rows * _padded_row(4 * of_row) // _PAGE) * _PAGE
    return gates + 2 * states + _LSTM_LEAST_BACK


def _turned(rows: int, columns: int, h: torch.Tensor) -> int:
    """Bytes of a transposed weight, where its rows do not lie as the library wants them."""
    of_row = columns * h.element_size()
    return rows * _padded_row(of_row) if _padded_row(of_row) != of_row else 0


_RULES: dict[Any, Callable[[torch.fx.Node, bool], Calls | None]] = {
    aten.convolution.default: convolutions.forward,
    aten.convolution_backward.default: convolutions.backward,
    _torch.convolution_with_activation(): convolutions.with_activation,
    aten.mse_loss.default: _reduced_loss,
    aten.upsample_bilinear2d.default: _upsampling,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
    lstm.forward: _lstm_forward,
    lstm.backward: _lstm_backward,
    **half.RULES,
}


def is_known(node: torch.fx.Node) -> bool:
    """Whether ``with_inner`` says what a node makes inside."""
    return node.target in _RULES and node.target not in half.RULES
