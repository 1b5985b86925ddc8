"""What convolutions make inside: what they are given in oneDNN's order, with channels in blocks."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, cast

import torch

from abele.arena.calls import Calls, value
from abele.arena.half import widened, widens_sum

_FEW = 3  # channels that convolutions read as they lie
_SMALL_BLOCK = 8
#: Images from which on those of one place are brought into another order by one thread, too.
_MANY = 16
#: Elements up to which torch itself convolves a single image.
_SMALL_IMAGE = 20480
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


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
    def pointwise(self) -> bool:
        """Each element of the result is made of one place of the image."""
        return math.prod(self.w.shape[2:]) == 1

    @property
    def as_they_lie(self) -> bool:
        """A product of matrices: nothing is brought into another order."""
        if not self.pointwise or self.strided or self.transposed:
            return False
        return self.x.shape[0] < _MANY and torch.get_num_threads() == 1

    @property
    def by_columns(self) -> bool:
        """Torch itself convolves: in half, and one image that is small."""
        if self.x.dtype is torch.float16:
            return True
        large = self.x.shape[0] > 1 or self.x.numel() > _SMALL_IMAGE or min(self.w.shape[2:]) > 3
        return not large and not self.grouped and not self.transposed and not self.strided

    @property
    def grouped(self) -> bool:
        """Not all channels of a result are made of all of the image."""
        return self.w.shape[1] != self.x.shape[1] and not self.transposed

    @property
    def copied(self) -> int:
        """Bytes of the image where it is copied first, because others lie between its elements."""
        lies = self.x.is_contiguous() or self.channels_last
        return 0 if lies else self.x.nbytes


def _of(
    x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, rest: Any, channels_last: bool
) -> _Convolution:
    last = channels_last or _lies_channels_last(x) or _lies_channels_last(w)
    return _Convolution(x=x, w=w, y=y, stride=list(rest[0]), transposed=rest[3], channels_last=last)


def _lies_channels_last(tensor: torch.Tensor) -> bool:
    if tensor.is_contiguous() or tensor.dim() not in _CHANNELS_LAST:
        return False
    return tensor.is_contiguous(memory_format=_CHANNELS_LAST[tensor.dim()])


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
    return _blocked(c.x, _block()) if c.pointwise or c.x.shape[1] >= _block() else 0


def _scratch(c: _Convolution) -> int:
    """Bytes that a transposed convolution adds up in, an image for each thread."""
    if not c.transposed:
        return 0
    threads = min(torch.get_num_threads(), c.x.shape[0])
    return threads * (c.x[0].nbytes + 8216) + 12416


def _result(c: _Convolution) -> int:
    """Bytes of the result in blocks; a transposed one has none."""
    return c.y.nbytes if c.transposed else _blocked(c.y, _block())


def forward(node: torch.fx.Node, channels_last: bool) -> Calls | None:
    """What a convolution makes; None if nothing."""
    x, w = value(node, 0), value(node, 1)
    c, calls = _of(x, w, node.meta["val"], node.args[3:], channels_last), Calls()
    if c.as_they_lie or not (x.numel() and torch.backends.mkldnn.is_available()):
        return None
    copied = calls.make(c.copied)
    if c.by_columns:
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
    calls.free(copied)
    return calls


def _by_columns(c: _Convolution, calls: Calls) -> None:
    """How torch itself convolves: it writes the patches of all images beside each other."""
    if c.transposed:
        calls.result(0)
        patches = _columns(c.w, c.x[0])
        made = calls.make(c.x.shape[0] * patches), _outside(calls, 2 * patches)  # and in float32
        calls.free(*made)
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


def _backward_by_columns(c: _Convolution, calls: Calls, wanted: list[bool]) -> None:
    if wanted[0]:
        calls.result(0)
        if c.transposed:
            calls.free(calls.make(_columns(c.w, c.x[0])))
        else:  # of one image, in half and in float32
            calls.free(_outside(calls, 3 * _columns(c.w, c.y[0])))
    if wanted[2] and widens_sum(c.y, (0, *range(2, c.y.dim()))):
        calls.free(calls.make(widened(c.y)))
    if wanted[1]:
        calls.result(1)
        patches = _columns(c.w, c.x[0]) if c.transposed else c.x.shape[0] * _columns(c.w, c.y[0])
        calls.free(calls.make(patches))


def _outside(calls: Calls, size: int) -> int:
    """Memory that torch takes from the C library itself."""
    made = calls.make(size)
    calls.elsewhere.add(made)
    return made


def _columns(weight: torch.Tensor, image: torch.Tensor) -> int:
    """Bytes of the patches of an image, ``[C, H, W]``, that a weight is multiplied with."""
    return weight[0].numel() * math.prod(image.shape[1:]) * weight.element_size()


def backward(node: torch.fx.Node, channels_last: bool) -> Calls | None:
    """What the gradients of a convolution make; None if nothing."""
    y, x, w = (value(node, index) for index in range(3))
    c, calls = _of(x, w, y, node.args[4:], channels_last), Calls()
    wanted = cast("list[bool]", node.args[-1])
    if c.as_they_lie or not (x.numel() and torch.backends.mkldnn.is_available()):
        return None
    if c.by_columns:
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


def _backward_in_place(c: _Convolution, calls: Calls, wanted: list[bool]) -> None:
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


def _input_gradient(c: _Convolution, calls: Calls) -> None:
    turned = c.strided and not c.transposed
    few = c.transposed and c.y.shape[1] < _block()
    gradient = calls.make(0 if few else _blocked(c.y, _block()))
    weight = calls.make(_weight(c, least=_block()))
    result = calls.make(c.x.nbytes if turned else _blocked(c.x, _block()))
    calls.free(gradient, weight)
    plain = calls.make(c.x.nbytes if turned else 0)
    calls.result(0)
    calls.free(plain, result)


def _weight_gradient(c: _Convolution, calls: Calls) -> None:
    channels, results = c.x.shape[1], c.y.shape[1]
    small = results <= _SMALL_BLOCK and (c.transposed or _FEW < channels < _block())
    small = small and not c.pointwise
    few = c.transposed and results <= _FEW
    gradient = calls.make(0 if few else _blocked(c.y, _SMALL_BLOCK if small else _block()))
    block = _SMALL_BLOCK if channels < _block() and not c.pointwise else _block()
    image = calls.make(_blocked(c.x, block) if channels > _FEW else 0)
    weight = calls.make(_weight(c, least=_SMALL_BLOCK if channels > _FEW else 1))
    calls.free(gradient, image)
    calls.result(1)
    calls.free(weight)
