"""What oneDNN makes inside of convolutions without AVX-512: channels lie in blocks of eight.

Its code there also differs from that for AVX-512. Where a window moves by more than one, the way
back to the image, which is also the way forward of a transposed convolution, blocks only the
channels of the image's weight; and of few channels only three are read as they lie.
"""

from __future__ import annotations

from abele.arena.calls import Calls
from abele.arena.convolution_shapes import Convolution, blocked
from abele.arena.transposed import scratch

BLOCK = 8
_AS_THEY_LIE = 3  # channels of an image, no more and no fewer


def transposed(c: Convolution) -> tuple[int, int, int, int]:
    """Bytes of a transposed convolution's scratch memory, image, weight and result."""
    made = scratch(c, BLOCK)
    if c.strided:
        return made, c.x.nbytes, blocked(c.w, BLOCK), c.y.nbytes
    return made, blocked(c.x, BLOCK), blocked(c.w, BLOCK, (0, 1)), blocked(c.y, BLOCK)


def input_gradient(c: Convolution) -> tuple[int, int, int]:
    """Bytes of the result's gradient, the weight and the image's gradient."""
    if c.strided and not c.transposed:
        return c.y.nbytes, blocked(c.w, BLOCK), c.x.nbytes
    few = c.transposed and c.y.shape[1] < BLOCK
    axes = (0,) if few else (0, 1)
    return 0 if few else blocked(c.y, BLOCK), blocked(c.w, BLOCK, axes), blocked(c.x, BLOCK)


def weight_gradient(c: Convolution, calls: Calls) -> None:
    """The tensors around the gradient of the weight."""
    read = c.y if c.transposed else c.x
    lies = read.shape[1] == _AS_THEY_LIE
    gradient = calls.make(0 if lies and c.transposed else blocked(c.y, BLOCK))
    image = calls.make(0 if lies and not c.transposed else blocked(c.x, BLOCK))
    weight = calls.make(blocked(c.w, BLOCK, (0,) if lies else (0, 1)))
    calls.free(gradient, image)
    calls.result(1)
    calls.free(weight)
