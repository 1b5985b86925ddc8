"""What convolutions make inside: what they are given in oneDNN's order, with channels in blocks."""

from __future__ import annotations

from typing import cast

import torch

from abele.arena import columns, convolution_shapes, convolutions_avx2
from abele.arena.calls import Calls, value
from abele.arena.convolution_shapes import Convolution, blocked

_FEW = 3  # channels that convolutions read as they lie
_SMALL_BLOCK = 8
#: Bytes that memory of a thread is a multiple of, and what is there beside a result.
_PIECE, _SCRATCH = 8192, 128


def _is_avx2() -> bool:
    return torch.backends.cpu.get_cpu_capability() != "AVX512"


def block() -> int:
    """Numbers of a vector register, and channels in a block."""
    return convolutions_avx2.BLOCK if _is_avx2() else 16


def _weight(c: Convolution, *, least: int) -> int:
    """Bytes of the weight in blocks; input channels have some of ``least``, 1 for none."""
    outputs, inputs = (1, 0) if c.transposed else (0, 1)
    together = block() if c.w.shape[inputs] >= block() else least
    size = blocked(c.w, block(), (outputs,))
    count = c.w.shape[inputs]
    return size // count * (-(-count // together) * together) if count else 0


def _image(c: Convolution) -> int:
    """Bytes of the image in blocks where forward makes them."""
    return blocked(c.x, block()) if c.pointwise or c.x.shape[1] >= block() else 0


def _transposed(c: Convolution) -> tuple[int, int, int, int]:
    """Bytes of a transposed convolution's scratch memory, image, weight and result."""
    if not c.strided:
        result = blocked(c.y, block())
        return result + _SCRATCH, blocked(c.x, block()), blocked(c.w, block(), (0, 1)), result
    # An image for each thread; an odd number of pieces, so that they do not share cache lines.
    threads = min(torch.get_num_threads(), c.x.shape[0])
    pieces = -(-blocked(c.x[:1], block()) // _PIECE) | 1
    scratch = threads * (pieces * _PIECE + 24) + 12416
    return scratch, c.x.nbytes, _weight(c, least=1), c.y.nbytes


def _result(c: Convolution) -> int:
    """Bytes of the result in blocks."""
    return blocked(c.y, block())


def _plain(images: torch.Tensor) -> int:
    """Bytes of images whose channels were last; one channel lies the same way."""
    return 0 if _is_avx2() and images.shape[1] == 1 else images.nbytes


def forward(node: torch.fx.Node, channels_last: bool) -> Calls | None:
    """What a convolution makes; None if nothing."""
    x, w = value(node, 0), value(node, 1)
    c, calls = convolution_shapes.of(x, w, node.meta["val"], node.args[3:], channels_last), Calls()
    if not (x.numel() and torch.backends.mkldnn.is_available()):
        return None
    copied = calls.make(c.copied(x))
    if c.as_they_lie:
        calls.result(0)
    elif c.by_columns:
        columns.forward(c, calls)
    elif c.channels_last:
        weight = calls.make(_turned_weight(c))
        calls.result(0)
        calls.free(calls.make(w.nbytes), weight)
    else:
        *inputs, result = map(calls.make, _of_forward(c))
        if c.transposed and _is_avx2():
            calls.elsewhere.add(inputs[0])  # its size is not known to the byte
        calls.free(*inputs)
        turned = c.transposed and c.strided and c.y.shape[1] > 1
        plain = calls.make(c.y.nbytes if turned else 0)
        calls.result(0)
        calls.free(plain, result)
    calls.free(copied)
    return calls


def _of_forward(c: Convolution) -> tuple[int, int, int, int]:
    """Bytes of scratch memory, image, weight and result in oneDNN's order."""
    if c.transposed:
        return convolutions_avx2.transposed(c) if _is_avx2() else _transposed(c)
    return 0, _image(c), _weight(c, least=1), _result(c)


def with_activation(node: torch.fx.Node, channels_last: bool) -> Calls | None:
    """What the library's convolution with its activation makes of images with channels last."""
    x, w, padding, stride = value(node, 0), value(node, 1), node.args[3], node.args[4]
    rest = stride, padding, (), False
    c, calls = convolution_shapes.of(x, w, node.meta["val"], rest, channels_last), Calls()
    if not (c.channels_last and x.numel()):
        return None
    copied = calls.make(c.copied(x))
    calls.result(0)
    calls.free(calls.make(0 if c.grouped else _turned_weight(c)), calls.make(w.nbytes), copied)
    return calls


def _turned_weight(c: Convolution) -> int:
    """Bytes of the weight with its channels last; that of one place lies so."""
    return 0 if c.pointwise else c.w.nbytes


def backward(node: torch.fx.Node, channels_last: bool) -> Calls | None:
    """What the gradients of a convolution make; None if nothing."""
    y, x, w = (value(node, index) for index in range(3))
    c, calls = convolution_shapes.of(x, w, y, node.args[4:], channels_last), Calls()
    wanted = cast("list[bool]", node.args[-1])
    if not (x.numel() and torch.backends.mkldnn.is_available()):
        return None
    if c.by_columns:
        columns.backward(c, calls, wanted)
        return calls
    copied = [calls.make(c.copied(each)) for each in (x, y)]
    if c.as_they_lie:
        for index in range(3):
            calls.result(index)
    elif c.channels_last:
        _backward_in_place(c, calls, wanted)
    else:
        if wanted[0]:
            _input_gradient(c, calls)
        if wanted[1]:
            _weight_gradient(c, calls)
    calls.free(*copied)
    return calls


def _backward_in_place(c: Convolution, calls: Calls, wanted: list[bool]) -> None:
    """Of images that lie with channels last: only the weight is brought into another order."""
    weight = calls.make(_turned_weight(c))
    if wanted[0]:
        calls.result(0)
        calls.free(calls.make(c.w.nbytes))
    if wanted[1]:
        made = [calls.make(c.w.nbytes) for _ in range(2)]
        calls.result(1)
        calls.free(*made, weight)
    calls.free(weight)


def _input_gradient(c: Convolution, calls: Calls) -> None:
    turned = c.strided and not c.transposed
    gradient, weight, result = map(calls.make, _of_input_gradient(c))
    calls.free(gradient, weight)
    plain = calls.make(_plain(c.x) if turned else 0)
    calls.result(0)
    calls.free(plain, result)


def _of_input_gradient(c: Convolution) -> tuple[int, int, int]:
    """Bytes of the result's gradient, the weight and the image's gradient in oneDNN's order."""
    if _is_avx2():
        return convolutions_avx2.input_gradient(c)
    few = c.transposed and c.y.shape[1] < block()
    gradient = 0 if few else blocked(c.y, block())
    turned = c.strided and not c.transposed
    result = c.x.nbytes if turned else blocked(c.x, block())
    return gradient, _weight(c, least=block()), result


def _weight_gradient(c: Convolution, calls: Calls) -> None:
    if _is_avx2():
        convolutions_avx2.weight_gradient(c, calls)
        return
    channels, results = c.x.shape[1], c.y.shape[1]
    small = results <= _SMALL_BLOCK and (c.transposed or _FEW < channels < block())
    small = small and not c.pointwise
    few = c.transposed and results <= _FEW
    gradient = calls.make(0 if few else blocked(c.y, _SMALL_BLOCK if small else block()))
    together = _SMALL_BLOCK if channels < block() and not c.pointwise else block()
    image = calls.make(blocked(c.x, together) if channels > _FEW else 0)
    weight = calls.make(_weight(c, least=_SMALL_BLOCK if channels > _FEW else 1))
    calls.free(gradient, image)
    calls.result(1)
    calls.free(weight)
