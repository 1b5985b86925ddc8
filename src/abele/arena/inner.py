"""Tensors that torch's operators make and free again inside, which no graph shows.

A plan has to know them: each takes memory, and a place if the plan is followed. What is here was
read from torch's allocator, tensor by tensor; an operator that is not here makes none of size.
Convolutions bring what they are given into oneDNN's order, with channels in blocks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Container, Iterator
from typing import Any, cast

import torch

from abele.ops import lstm
from abele.program.memory import AFTER, MemoryUse, Piece

aten = torch.ops.aten

_FEW = 3  # channels that convolutions read as they lie
_SMALL_BLOCK = 8


class _Calls:
    """What an operator makes, in its order.

    Attributes:
        temporary: bytes of each tensor that it frees again, and between which moments.
        results: the moment at which it makes each of its results.
        asked: bytes that it asks for where a result needs less.
        elsewhere: the temporary ones that a library takes from the system, not from torch.
    """

    def __init__(self) -> None:
        self.temporary: dict[int, list[int]] = {}  # by the moment: bytes, last moment
        self.results: dict[int, int] = {}
        self.asked: dict[int, int] = {}
        self.elsewhere: set[int] = set()
        self._moment = 0

    def make(self, size: int) -> int:
        """A tensor of so many bytes; the moment names it."""
        self._moment += 1
        self.temporary[self._moment] = [size, AFTER]
        return self._moment

    def result(self, index: int) -> None:
        """The result of this index is made."""
        self._moment += 1
        self.results[index] = self._moment

    def free(self, *made: int) -> None:
        """These are not needed any more."""
        for each in made:
            self.temporary[each][1] = self._moment


def with_inner(
    use: MemoryUse,
    others: Container[torch.fx.Node] = (),
    channels_last: Container[torch.fx.Node] = (),
) -> MemoryUse:
    """The same with the tensors that operators make inside.

    Args:
        use: every tensor by itself.
        others: nodes that are not computed by torch.
        channels_last: convolutions whose images lie so, whatever their values say.
    """
    pieces: list[Piece] = []
    moments: dict[tuple[torch.fx.Node | None, int], int] = {}
    asked: dict[tuple[torch.fx.Node | None, int], int] = {}
    for step, node in enumerate(use.nodes):
        calls = None if node is None or node in others else _calls(node, node in channels_last)
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


def _temporary(calls: _Calls, node: torch.fx.Node | None, step: int) -> Iterator[Piece]:
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


def _calls(node: torch.fx.Node, channels_last: bool) -> _Calls | None:
    if node.op != "call_function" or node.target not in _RULES:
        return None
    return _RULES[node.target](node, channels_last)


def _value(node: torch.fx.Node, index: int) -> torch.Tensor:
    return cast("torch.fx.Node", node.args[index]).meta["val"]


# -- convolutions --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Convolution:
    """The tensors of a convolution: image, weight and result; no data."""

    x: torch.Tensor
    w: torch.Tensor
    y: torch.Tensor
    stride: list[int]
    transposed: bool
    channels_last: bool

    @property
    def strided(self) -> bool:
        return max(self.stride) > 1

    @property
    def as_they_lie(self) -> bool:
        """A product of matrices: nothing is brought into another order."""
        return math.prod(self.w.shape[2:]) == 1 and not self.strided and not self.transposed


def _of(
    x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, rest: Any, channels_last: bool
) -> _Convolution:
    last = channels_last or not (x.is_contiguous() and w.is_contiguous())
    return _Convolution(x=x, w=w, y=y, stride=list(rest[0]), transposed=rest[3], channels_last=last)


def _block() -> int:
    return 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8


def _blocked(tensor: torch.Tensor, block: int, axes: tuple[int, ...] = (1,)) -> int:
    """Bytes with so many channels at least, or a multiple of that."""
    size = tensor.nbytes
    for axis in axes:
        count = tensor.shape[axis]
        size = size // count * (-(-count // block) * block) if count else 0
    return size


def _weight(c: _Convolution, *, least: int) -> int:
    """Bytes of the weight in blocks; input channels have some of ``least``, 1 for none."""
    outputs, inputs = (1, 0) if c.transposed else (0, 1)
    block = _block() if c.w.shape[inputs] >= _block() else least
    size = _blocked(c.w, _block(), (outputs,))
    count = c.w.shape[inputs]
    return size // count * (-(-count // block) * block) if count else 0


def _image(c: _Convolution) -> int:
    """Bytes of the image in blocks where forward makes them."""
    return _blocked(c.x, _block()) if c.x.shape[1] >= _block() else 0


def _scratch(c: _Convolution) -> int:
    """Bytes that a transposed convolution adds up in, an image for each thread."""
    if not c.transposed:
        return 0
    threads = min(torch.get_num_threads(), c.x.shape[0])
    return threads * (c.x[0].nbytes + 8216) + 12416


def _result(c: _Convolution) -> int:
    """Bytes of the result in blocks; a transposed one has none."""
    return c.y.nbytes if c.transposed else _blocked(c.y, _block())


def _forward(node: torch.fx.Node, channels_last: bool) -> _Calls | None:
    x, w = _value(node, 0), _value(node, 1)
    c, calls = _of(x, w, node.meta["val"], node.args[3:], channels_last), _Calls()
    if c.as_they_lie or not torch.backends.mkldnn.is_available():
        return None
    if x.dtype is torch.float16:
        _by_columns(c, calls)
    elif c.channels_last:
        weight = calls.make(w.nbytes)
        calls.result(0)
        calls.free(calls.make(w.nbytes), weight)
    else:
        sizes = _scratch(c), _image(c), _weight(c, least=1), _result(c)
        *inputs, result = map(calls.make, sizes)
        calls.free(*inputs)
        plain = calls.make(c.y.nbytes if c.transposed and c.strided else 0)
        calls.result(0)
        calls.free(plain, result)
    return calls


def _by_columns(c: _Convolution, calls: _Calls) -> None:
    """How torch itself convolves: it writes the patches of all images beside each other."""
    if c.transposed:
        calls.result(0)
        calls.free(calls.make(_columns(c.w, c.x[0])))
        return
    groups = c.x.shape[1] // c.w.shape[1]
    patches = c.x.shape[0] * _columns(c.w[: c.w.shape[0] // groups], c.y[0])
    if groups == 1:
        made = calls.make(patches)
        calls.result(0)
        calls.free(made)
        return
    parts: list[int] = []
    for _ in range(groups):  # their results are joined at the end
        image, made = calls.make(c.x.nbytes // groups), calls.make(patches)
        parts.append(calls.make(c.y.nbytes // groups))
        calls.free(made, image)
    calls.result(0)
    calls.free(*parts)


def _backward_by_columns(c: _Convolution, calls: _Calls, wanted: list[bool]) -> None:
    if c.transposed:
        for index in range(2):
            if wanted[index]:
                calls.result(index)
                calls.free(calls.make(_columns(c.w, c.x[0])))
        return
    for index in range(2):
        if wanted[index]:
            calls.result(index)
    calls.free(calls.make(c.x.shape[0] * _columns(c.w, c.y[0])))


def _columns(weight: torch.Tensor, image: torch.Tensor) -> int:
    """Bytes of the patches of an image, ``[C, H, W]``, that a weight is multiplied with."""
    return weight[0].numel() * math.prod(image.shape[1:]) * weight.element_size()


def _backward(node: torch.fx.Node, channels_last: bool) -> _Calls | None:
    y, x, w = (_value(node, index) for index in range(3))
    c, calls = _of(x, w, y, node.args[4:], channels_last), _Calls()
    wanted = cast("list[bool]", node.args[-1])
    if c.as_they_lie or not torch.backends.mkldnn.is_available():
        return None
    if x.dtype is torch.float16:
        if int(cast("int", node.args[-2])) == 1:  # else group by group, with little for each
            _backward_by_columns(c, calls, wanted)
    elif c.channels_last:
        _backward_in_place(c, calls, wanted)
    else:
        if wanted[0]:
            _input_gradient(c, calls)
        if wanted[1]:
            _weight_gradient(c, calls)
    return calls


def _backward_in_place(c: _Convolution, calls: _Calls, wanted: list[bool]) -> None:
    """Of images that lie with channels last: only the weight is brought into another order."""
    weight = calls.make(c.w.nbytes)
    if wanted[0]:
        calls.result(0)
        calls.free(calls.make(c.w.nbytes))
    if wanted[1]:
        made = [calls.make(c.w.nbytes) for _ in range(2)]
        calls.result(1)
        calls.free(*made, weight)
    calls.free(weight)


def _input_gradient(c: _Convolution, calls: _Calls) -> None:
    turned = c.strided and not c.transposed
    few = c.transposed and c.y.shape[1] < _block()
    gradient = calls.make(0 if few else _blocked(c.y, _block()))
    weight = calls.make(_weight(c, least=_block()))
    result = calls.make(c.x.nbytes if turned else _blocked(c.x, _block()))
    calls.free(gradient, weight)
    plain = calls.make(c.x.nbytes if turned else 0)
    calls.result(0)
    calls.free(plain, result)


def _weight_gradient(c: _Convolution, calls: _Calls) -> None:
    channels, results = c.x.shape[1], c.y.shape[1]
    small = results <= _SMALL_BLOCK and (c.transposed or _FEW < channels < _block())
    few = c.transposed and results <= _FEW
    gradient = calls.make(0 if few else _blocked(c.y, _SMALL_BLOCK if small else _block()))
    block = _SMALL_BLOCK if channels < _block() else _block()
    image = calls.make(_blocked(c.x, block) if channels > _FEW else 0)
    weight = calls.make(_weight(c, least=_SMALL_BLOCK if channels > _FEW else 1))
    calls.free(gradient, image)
    calls.result(1)
    calls.free(weight)


# -- others --------------------------------------------------------------------------------


def _batch_norm_backward(node: torch.fx.Node, channels_last: bool) -> _Calls:
    del channels_last
    calls = _Calls()
    unused = calls.make(_value(node, 1).nbytes)
    calls.result(0)
    calls.free(unused)
    return calls


def _attention_backward(node: torch.fx.Node, channels_last: bool) -> _Calls:
    del channels_last
    calls, gradient = _Calls(), _value(node, 0)
    for index in range(3):
        calls.result(index)
    lies = gradient.transpose(1, 2).is_contiguous()
    turned = calls.make(0 if lies else gradient.nbytes)
    sums = calls.make(_value(node, 5).nbytes)
    calls.free(turned, sums)
    return calls


def _reduced_loss(node: torch.fx.Node, channels_last: bool) -> _Calls | None:
    """Memory for the losses of all elements, twice; the sum or mean lies in one of them."""
    del channels_last
    calls, size = _Calls(), _value(node, 0).nbytes
    if node.meta["val"].dim():
        return None
    calls.result(0)
    calls.asked[0] = size
    calls.free(calls.make(size))
    return calls


# -- recurrent layers ----------------------------------------------------------------------


def _lstm_backward(node: torch.fx.Node, channels_last: bool) -> _Calls:
    """The library's memory for the gradients of all steps' gates, and weights in its own order."""
    del channels_last
    x, h, weights = _value(node, 0), _value(node, 5), (_value(node, 1), _value(node, 2))
    calls, read = _Calls(), [user.args[1] for user in node.users]
    gates = 4 * x.shape[0] * h.nbytes
    made = [calls.make(size) for size in (gates, *(each.nbytes for each in weights))]
    calls.elsewhere.update(made)
    # Of the arguments, inputs are the large one whose gradient is made although nobody reads it.
    made += [calls.make(x.nbytes)] if 0 not in read else []
    for index in range(len(node.args[:7])):
        calls.result(index)
    calls.free(*made)
    return calls


_RULES: dict[Any, Callable[[torch.fx.Node, bool], _Calls | None]] = {
    aten.convolution.default: _forward,
    aten.convolution_backward.default: _backward,
    aten.mse_loss.default: _reduced_loss,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
    lstm.backward: _lstm_backward,
}


def is_known(node: torch.fx.Node) -> bool:
    """Whether ``with_inner`` says what a node makes inside."""
    return node.target in _RULES
