"""What convolutions make inside that torch computes itself: as products with patches of images.

The patches of an image that a weight is multiplied with lie beside each other, as the columns of a
matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from abele.arena.calls import Calls
from abele.arena.convolution_shapes import Convolution
from abele.arena.half import is_narrow, widened, widens_sum
from abele.arena.places import LEAST


def forward(c: Convolution, calls: Calls) -> None:
    """The result of a convolution."""
    if c.grouped:
        _forward_of_groups(c, calls)
        return
    weight = calls.make(_reordered(c))
    if c.transposed:
        calls.result(0)
        patches = _columns(c.w, c.x[0])
        made = (
            calls.make(c.x.shape[0] * patches),
            _outside(calls, 2 * patches if is_narrow(c.y) and not c.channels_last else 0),
        )
        calls.free(*made, weight)
        return
    made = calls.make(_patches(c))
    calls.result(0)
    calls.free(made, weight)


def backward(c: Convolution, calls: Calls, wanted: list[bool]) -> None:
    """The gradients of image, weight and bias, those of them that are wanted."""
    if c.grouped:
        _backward_of_groups(c, calls, wanted)
        return
    weight = calls.make(_reordered(c))
    _gradients(c, calls, wanted, calls.result)
    calls.free(weight)


def _forward_of_groups(c: Convolution, calls: Calls) -> None:
    part, results = c.of_group(), _Parts(calls)
    for _ in range(c.groups):
        made = _copy(c, calls, part.x), _part(calls, _patches(part))
        results.make(part.y.nbytes)
        calls.free(*made)
    calls.result(0)
    results.free()


def _backward_of_groups(c: Convolution, calls: Calls, wanted: list[bool]) -> None:
    part, gradients = c.of_group(), [_Parts(calls) for _ in range(3)]
    sizes = part.x.nbytes, part.w.nbytes, part.y.shape[1] * part.y.element_size()
    for _ in range(c.groups):
        copies = [_copy(c, calls, each) for each in (part.y, part.x)]
        _gradients(part, calls, wanted, lambda index: gradients[index].make(sizes[index]))
        calls.free(*copies)
    for index, is_wanted in enumerate(wanted):
        if is_wanted:
            calls.result(index)
    for each in gradients:
        each.free()


def _gradients(
    c: Convolution, calls: Calls, wanted: list[bool], make: Callable[[int], None]
) -> None:
    """The gradients where all channels are one group; ``make`` makes the result of an index.

    Products of half numbers are added up in float32: those for the image where its channels do not
    lie last, and those for the weight where they do.
    """
    threads = min(torch.get_num_threads(), c.x.shape[0])
    wide = is_narrow(c.y)
    if wanted[0]:
        copied = calls.make(c.copied(c.y) if c.transposed else 0)
        make(0)
        if c.transposed:
            calls.free(_part(calls, _patches_of_one(c)), copied)
        else:  # of one image for each thread
            times = 3 if wide and not c.channels_last else 1
            calls.free(_outside(calls, times * threads * _columns(c.w, c.y[0])))
    if wanted[2] and not c.channels_last and widens_sum(c.y, (0, *range(2, c.y.dim()))):
        calls.free(_part(calls, widened(c.y)))
    if wanted[1]:
        make(1)
        copied = calls.make(c.copied(c.y) if c.transposed else 0)
        patches = _part(calls, _patches_of_one(c) if c.transposed else _patches(c))
        summed = _outside(calls, 2 * widened(c.w) if wide and c.channels_last else 0)
        calls.free(patches, summed, copied)


def _reordered(c: Convolution) -> int:
    """Bytes of the weight with its channels last, where those of the image are and it matters."""
    return c.w.nbytes if c.channels_last and not c.pointwise else 0


class _Parts:
    """The results of each group, which are joined at the end.

    Those that are too small for a place are one piece together: there may be thousands of them.
    """

    def __init__(self, calls: Calls):
        self._calls = calls
        self._made: list[int] = []
        self._small: int | None = None

    def make(self, size: int) -> None:
        """The result of one more group, of so many bytes."""
        if size >= LEAST:
            self._made.append(self._calls.make(size))
        elif self._small is None:
            self._small = self._calls.make(size)
            self._calls.elsewhere.add(self._small)
            self._made.append(self._small)
        else:
            self._calls.temporary[self._small][0] += size

    def free(self) -> None:
        """The results are joined."""
        self._calls.free(*self._made)


def _copy(c: Convolution, calls: Calls, group: torch.Tensor) -> int:
    """A group of channels by itself; those of one image lie side by side unless they are last."""
    lies = c.x.shape[0] == 1 and not c.channels_last
    return _part(calls, 0 if lies else group.nbytes)


def _part(calls: Calls, size: int) -> int:
    """A tensor that is freed before there is another group: only those with a place count."""
    return calls.make(size if size >= LEAST else 0)


def _outside(calls: Calls, size: int) -> int:
    """Memory that torch takes from the C library itself."""
    made = calls.make(size)
    calls.elsewhere.add(made)
    return made


def _patches(c: Convolution) -> int:
    """Bytes of the patches of all images; 0 where an image is its own."""
    return 0 if _is_its_own(c) else c.x.shape[0] * _columns(c.w, c.y[0])


def _patches_of_one(c: Convolution) -> int:
    """Bytes of the patches of one result of a transposed convolution, on the way back."""
    return 0 if _is_its_own(c) else _columns(c.w, c.x[0])


def _is_its_own(c: Convolution) -> bool:
    """The patches of an image are the image."""
    return c.pointwise and not c.strided and not max(c.padding)


def _columns(weight: torch.Tensor, image: torch.Tensor) -> int:
    """Bytes of the patches of an image, ``[C, H, W]``, that a weight is multiplied with."""
    return weight[0].numel() * math.prod(image.shape[1:]) * weight.element_size()
