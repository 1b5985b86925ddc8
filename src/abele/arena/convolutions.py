"""What convolutions make inside: what they are given in oneDNN's order, with channels in blocks."""

from __future__ import annotations

from typing import cast

import torch

from abele.arena import columns, convolution_shapes, convolutions_avx2, transposed
from abele.arena.calls import Calls, value
from abele.arena.convolution_shapes import Convolution, blocked

_FEW = 3  # channels that convolutions read as they lie
_SMALL_BLOCK = 8


def _is_avx2() -> bool:
    return torch.backends.cpu.get_cpu_capability() != "AVX512"


def block() -> int:
    """Numbers of a vector register, and channels in a block."""
    return convolutions_avx2.BLOCK if _is_avx2() else 16


def _weight(c: Convolution, *, least: int) -> int:
    """Bytes of a plain weight in blocks; input channels have some of ``least``, 1 for none."""
    together = block() if c.w.shape[1] >= block() else least
    size = blocked(c.w, block(), (0,))
    count = c.w.shape[1]
    return size // count * (-(-count // together) * together) if count else 0


def _image(c: Convolution) -> int:
    """Bytes of the image in blocks where forward makes them."""
    return blocked(c.x, block()) if c.pointwise or c.x.shape[1] >= block() else 0


def _transposed(c: Convolution) -> tuple[int, int, int, int]:
    """Bytes of a transposed convolution's scratch memory, image, weight and result."""
    scratch = transposed.scratch(c, block())
    if c.strided:
        return scratch, c.x.nbytes, blocked(c.w, block()), c.y.nbytes
    return scratch, blocked(c.x, block()), blocked(c.w, block(), (0, 1)), blocked(c.y, block())


def _result(c: Convolution) -> int:
    """Bytes of the result in blocks."""
    return blocked(c.y, block())


def _plain(images: torch.Tensor) -> int:
    """Bytes of images whose channels were last; one channel lies the same way."""
    return 0 if _is_avx2() and images.shape[1] == 1 else images.nbytes


def forward(node: torch.fx.Node, channels_last: bool) -> Calls | None:
    """What a convolution makes; None if nothing."""
    x, w, y, bias = value(node, 0), value(node, 1), node.meta["val"], node.args[2] is not None
    c = convolution_shapes.of(x, w, y, node.args[3:], channels_last, bias=bias)
    calls = Calls()
    if not (x.numel() and torch.backends.mkldnn.is_available()):
        return None
    copied = calls.make(c.copied(x))
    if c.as_they_lie:
        calls.result(0)
    elif c.by_columns:
        columns.forward(c, calls)
    elif c.channels_last:
        _forward_in_place(c, calls)
    else:
        *inputs, result = map(calls.make, _of_forward(c))
        calls.free(*inputs)
        turned = c.transposed and c.strided and c.y.shape[1] > 1
        plain = calls.make(c.y.nbytes if turned else 0)
        calls.result(0)
        calls.free(plain, result)
    calls.free(copied)
    return calls


def _forward_in_place(c: Convolution, calls: Calls) -> None:
    """Of images that lie with channels last: only the weight is brought into another order."""
    turned = calls.make(_turned_weight(c))
    calls.result(0)
    scratch = calls.make(transposed.scratch(c, block()) if c.transposed and c.strided else 0)
    weight = calls.make(blocked(c.w, block()) if c.transposed else c.w.nbytes)
    calls.free(turned, scratch, weight)


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
        calls.free(calls.make(c.w.nbytes), calls.make(transposed.scratch_of_gradient(c)))
    if wanted[1]:
        made = [calls.make(c.w.nbytes) for _ in range(2)]
        calls.result(1)
        calls.free(*made, weight)
    calls.free(weight)


def _input_gradient(c: Convolution, calls: Calls) -> None:
    turned = c.strided and not c.transposed
    gradient, weight, result = map(calls.make, _of_input_gradient(c))
    calls.free(gradient, weight, calls.make(transposed.scratch_of_gradient(c)))
    plain = calls.make(_plain(c.x) if turned else 0)
    calls.result(0)
    calls.free(plain, result)


def _of_input_gradient(c: Convolution) -> tuple[int, int, int]:
    """Bytes of the result's gradient, the weight and the image's gradient in oneDNN's order."""
    if _is_avx2():
        return convolutions_avx2.input_gradient(c)
    if c.transposed:
        few = c.y.shape[1] < block()
        weight = blocked(c.w, block(), (0,) if few else (0, 1))
        return 0 if few else blocked(c.y, block()), weight, blocked(c.x, block())
    result = c.x.nbytes if c.strided else blocked(c.x, block())
    return blocked(c.y, block()), _weight(c, least=block()), result


def _weight_gradient(c: Convolution, calls: Calls) -> None:
    if _is_avx2():
        convolutions_avx2.weight_gradient(c, calls)
        return
    gradient, image, weight = map(calls.make, _of_weight_gradient(c))
    calls.free(gradient, image)
    calls.result(1)
    calls.free(weight)


def _of_weight_gradient(c: Convolution) -> tuple[int, int, int]:
    """Bytes of the result's gradient, the image and the weight's gradient in oneDNN's order."""
    channels, results = c.x.shape[1], c.y.shape[1]
    if c.transposed:
        few = results <= _FEW
        together = _SMALL_BLOCK if _FEW < results < block() else block()
        weight = blocked(c.w, together, (0,) if few else (0, 1))
        return 0 if few else blocked(c.y, together), blocked(c.x, together), weight
    small = results <= _SMALL_BLOCK and _FEW < channels < block() and not c.pointwise
    gradient = blocked(c.y, _SMALL_BLOCK if small else block())
    together = _SMALL_BLOCK if channels < block() and not c.pointwise else block()
    image = blocked(c.x, together) if channels > _FEW else 0
    return gradient, image, _weight(c, least=_SMALL_BLOCK if channels > _FEW else 1)
