"""Tensor functions of the kernels for convolutions, max pools and upsampling.

Each takes the library that ``binding.load`` returns. A static program calls the same convolution at
every step, and describing it takes longer in Python than the call: ``conv`` and ``conv_backward``
prepare it once, for sizes, and return a function of tensors that checks nothing.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele.kernels import binding
from abele.kernels.binding import Clamped, Conv, Patches, Pool, Product, Upsample, threads_for

Tensor = torch.Tensor
#: A convolution of (images, weight, bias), and its backward of (gradient, images, weight).
Forward = Callable[[Tensor, Tensor, Tensor | None], Tensor]
Backward = Callable[[Tensor, Tensor, Tensor], list[Tensor | None]]

PLANES, CHANNELS_LAST = torch.contiguous_format, torch.channels_last
# Samples in the widest register: ``abele_conv_pool`` notes places for all of them.
_PLACED_TOGETHER = 16


def describe(
    images: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    layout: torch.memory_format = torch.contiguous_format,
    slope: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> ctypes.Structure:
    """Return the C structure of a convolution of ``[N, C, H, W]`` with kernel ``[O, C, h, w]``."""
    how = int(layout is torch.channels_last), slope, binding.TYPES[dtype]
    return Conv(*images, kernel[0], *kernel[2:], *stride, *padding, *how)


def result_shape(
    images: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> tuple[int, ...]:
    """Return the shape ``[N, O, H, W]`` of a convolution's result."""
    sizes = zip(images[2:], kernel[2:], stride, padding, strict=True)
    return (images[0], kernel[0], *((n + 2 * pad - k) // step + 1 for n, k, step, pad in sizes))


def conv(
    library: ctypes.CDLL,
    images: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    *,
    layout: torch.memory_format = torch.contiguous_format,
    slope: float = 1.0,
    dtype: torch.dtype = torch.float32,
    threads: int | None = None,
    function: str = "conv",
) -> Forward:
    """Return a function that convolves images ``[N, C, H, W]`` with a weight ``[O, C, h, w]``.

    ``function`` is the middle of its name in ``abi.h``: conv, winograd or pointwise.
    """
    described = ctypes.byref(describe(images, kernel, stride, padding, layout, slope, dtype))
    shape = result_shape(images, kernel, stride, padding)
    run = getattr(library, f"abele_{function}_forward")
    worth = threads_worth(library, 0, math.prod(shape) * math.prod(kernel[1:]))

    def conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = torch.empty(shape, dtype=dtype, memory_format=layout)
        inputs = x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr()
        run(described, *inputs, y.data_ptr(), threads or worth())
        return y

    return conv


def packed_shape(kernel: Sequence[int], points: int) -> tuple[int, ...]:
    """Return the shape of memory for the transformed weight ``[O, C, 3, 3]`` of Winograd."""
    return points, kernel[1], -(-kernel[0] // 16) * 16


def winograd(
    library: ctypes.CDLL,
    images: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    slope: float,
    points: int,
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype = torch.float32,
) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Return a function that convolves NHWC images with one weight, which is transformed here.

    It takes the images, float32 or with 36 points bfloat16, and a tensor of their type that is
    added before the activation and written over, or None. Weight and bias are float32. ``points``
    are those of a transformed tile, 16 or 36.
    """
    kernel = weight.shape
    described = ctypes.byref(describe(images, kernel, stride, padding, CHANNELS_LAST, slope, dtype))
    shape = result_shape(images, kernel, stride, padding)
    packed = weight.new_empty(packed_shape(kernel, points))
    worth = threads_worth(library, 0, math.prod(shape) * math.prod(kernel[1:]))
    library.abele_winograd_pack(described, weight.data_ptr(), packed.data_ptr(), points, worth())
    run = library.abele_winograd_packed_forward

    def winograd(x: Tensor, added: Tensor | None) -> Tensor:
        y = added
        if y is None:
            y = torch.empty(shape, dtype=dtype, memory_format=CHANNELS_LAST)
        of_bias = None if bias is None else bias.data_ptr()
        pointers = x.data_ptr(), packed.data_ptr(), of_bias, y.data_ptr()
        run(described, *pointers, int(added is not None), points, worth())
        return y

    return winograd


def packed_columns(columns: int) -> int:
    """Return the columns of memory for a factor that ``abele_product_pack`` packs."""
    return -(-columns // 64) * 64


def pointwise(
    library: ctypes.CDLL,
    pixels: Sequence[int],
    weight: Tensor,
    bias: Tensor | None,
    bounds: tuple[float, float],
) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Return a function that convolves NHWC images with one weight of 1x1, which is packed here.

    It takes the images and a tensor that is added before the bounds and written over, or None.

    Args:
        library: the kernels.
        pixels: images, height and width.
        weight: ``[O, C, 1, 1]``, contiguous.
        bias: ``[O]``, or None.
        bounds: of the results.
    """
    (outputs, inputs), count = weight.shape[:2], math.prod(pixels)
    packed = _packed(library, weight)
    steps = 0, inputs, 1, 0, 1, inputs, 0, outputs
    described = ctypes.byref(Product(1, count, outputs, inputs, *steps, 1, 0, 0))
    of_bias = weight.new_zeros(outputs) if bias is None else bias
    images, *edges = pixels
    worth = threads_worth(library, 0, 2 * count * outputs * inputs)
    run = library.abele_product_clamped

    def pointwise(x: Tensor, added: Tensor | None) -> Tensor:
        y = added
        if y is None:
            y = torch.empty((images, outputs, *edges), memory_format=CHANNELS_LAST)
        more = None if added is None else added.data_ptr()
        pointers = x.data_ptr(), packed.data_ptr(), of_bias.data_ptr(), more
        run(described, *pointers, *bounds, y.data_ptr(), worth())
        return y

    return pointwise


def few_channels(
    library: ctypes.CDLL,
    images: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    weight: Tensor,
    bias: Tensor | None,
    bounds: tuple[float, float],
) -> Callable[[Tensor, Tensor | None], Tensor]:
    """Return a function that convolves NCHW images to NHWC ones with one weight, contiguous.

    It takes the images, and None: nothing is added.
    """
    packed, (outputs, _, size, _) = _packed(library, weight), weight.shape
    described = Clamped(*images, outputs, size, stride[0], padding[0], *bounds)
    of_bias = weight.new_zeros(outputs) if bias is None else bias
    shape = result_shape(images, weight.shape, stride, padding)
    worth = threads_worth(library, 0, math.prod(shape) * math.prod(weight.shape[1:]))
    run, described = library.abele_clamped_few_channels, ctypes.byref(described)

    def few_channels(x: Tensor, added: Tensor | None) -> Tensor:
        assert added is None
        y = torch.empty(shape, memory_format=CHANNELS_LAST)
        pointers = x.data_ptr(), packed.data_ptr(), of_bias.data_ptr(), y.data_ptr()
        run(described, *pointers, worth())
        return y

    return few_channels


def _packed(library: ctypes.CDLL, weight: Tensor) -> Tensor:
    """Return the weight ``[O, ...]`` of a convolution as a packed factor of GEMMs."""
    outputs, inner = weight.shape[0], math.prod(weight.shape[1:])
    packed = weight.new_empty(inner, packed_columns(outputs))
    described = Product(1, 1, outputs, inner, 0, 0, 0, 0, 1, inner, 0, 0, 0, 0, 0)
    library.abele_product_pack(described, weight.data_ptr(), packed.data_ptr(), 1)
    return packed


def conv_backward(
    library: ctypes.CDLL,
    images: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    output_mask: Sequence[bool],
    *,
    layout: torch.memory_format = torch.contiguous_format,
    dtype: torch.dtype = torch.float32,
    threads: int | None = None,
    function: str = "conv",
) -> Backward:
    """Return a function for a convolution's gradients of images, weight and bias by mask.

    ``function`` is as for ``conv``.
    """
    described = ctypes.byref(describe(images, kernel, stride, padding, layout, dtype=dtype))
    of_x, of_weight, of_bias = output_mask
    multiply_adds = math.prod(result_shape(images, kernel, stride, padding)) * math.prod(kernel[1:])
    run = getattr(library, f"abele_{function}_backward")
    worth = threads_worth(library, 0, (of_x + of_weight) * multiply_adds)

    def conv_backward(grad: Tensor, x: Tensor, weight: Tensor) -> list[Tensor | None]:
        results = [
            torch.empty(images, dtype=dtype, memory_format=layout) if of_x else None,
            torch.empty(kernel, dtype=dtype) if of_weight else None,
            torch.empty(kernel[:1]) if of_bias else None,
        ]
        outputs = [None if each is None else each.data_ptr() for each in results]
        inputs = grad.data_ptr(), x.data_ptr(), weight.data_ptr()
        run(described, *inputs, *outputs, threads or worth())
        return results

    return conv_backward


def threads_worth(library: ctypes.CDLL, floats: int, multiply_adds: int = 0) -> Callable[[], int]:
    """Return ``binding.threads_for`` as a function, cached by torch's number of threads."""
    of = functools.cache(functools.partial(library.abele_threads, floats, multiply_adds))
    return lambda: of(torch.get_num_threads())


# -- patches: kernel and stride are equal ---------------------------------------------------------
#
# ``small`` is [N, S, H, W] and ``large`` [N, L, H h, W w], both channels last; ``weight`` is
# [S, L, h, w], contiguous. These functions raise CorruptExecutable if there is no code for so many
# channels, and ValueError if a tensor has another layout.


def spread(library: ctypes.CDLL, small: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute a transposed patch convolution, or a plain one's input gradient; ``bias`` is [L]."""
    images, _, height, width = small.shape
    _, channels, high, wide = weight.shape
    large = _image(images, channels, height * high, width * wide)
    pointers = pointer(small, CHANNELS_LAST), pointer(weight), pointer(bias)
    sizes, threads = _patches(library, small, weight)
    library.abele_patches_spread(sizes, *pointers, large.data_ptr(), threads)
    return large


def gather(library: ctypes.CDLL, large: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute a plain patch convolution, or a transposed one's input gradient; ``bias`` is [S]."""
    images, _, height, width = large.shape
    channels, _, high, wide = weight.shape
    small = _image(images, channels, height // high, width // wide)
    pointers = pointer(large, CHANNELS_LAST), pointer(weight), pointer(bias)
    sizes, threads = _patches(library, small, weight)
    library.abele_patches_gather(sizes, *pointers, small.data_ptr(), threads)
    return small


def weight_gradient(library: ctypes.CDLL, small: Tensor, large: Tensor, weight: Tensor) -> Tensor:
    """Compute the weight gradient of a plain or transposed patch convolution."""
    result = torch.empty(weight.shape)
    pointers = pointer(small, CHANNELS_LAST), pointer(large, CHANNELS_LAST), result.data_ptr()
    sizes, threads = _patches(library, small, weight)
    library.abele_patches_weight(sizes, *pointers, threads)
    return result


def channel_sums(library: ctypes.CDLL, x: Tensor) -> Tensor:
    """Return the sum of each channel of channels-last images."""
    images, channels, height, width = x.shape
    sums = torch.empty(channels)
    threads = threads_for(library, x.numel())
    sizes = images * height, width, channels
    library.abele_channel_sums(*sizes, pointer(x, CHANNELS_LAST), sums.data_ptr(), threads)
    return sums


def _image(*shape: int) -> Tensor:
    return torch.empty(shape, memory_format=CHANNELS_LAST)


def _patches(library: ctypes.CDLL, small: Tensor, weight: Tensor) -> tuple[ctypes.Structure, int]:
    """Return the C structure of a patch convolution (stride equals kernel), and its threads."""
    images, _, height, width = small.shape
    threads = threads_for(library, 0, small.numel() * weight[0].numel())
    return Patches(images, height, width, *weight.shape), threads


# -- pools and upsampling -------------------------------------------------------------------------


def place_count(shape: Sequence[int]) -> int:
    """Return the number of window positions that ``conv_pool`` stores for a result shape."""
    images, *rest = shape
    return -(-images // _PLACED_TOGETHER) * _PLACED_TOGETHER * math.prod(rest)


def max_pool(
    library: ctypes.CDLL,
    x: Tensor,
    *,
    layout: torch.memory_format = PLANES,
    places: bool = False,
    threads: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute a 2x2 max pool, with the position of each result in its window on request.

    Args:
        library: the kernels.
        x: float32 ``[N, C, H, W]``; a last odd row or column belongs to no window.
        layout: of the images.
        places: whether to return positions in windows: uint8, 0 to 3 in scan order.
        threads: how many work; default: as many as it is worth.

    Raises:
        ValueError: ``x`` does not lie as it has to.
    """
    shape = (*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2)
    y = torch.empty(shape, memory_format=layout)
    where = torch.empty(shape, dtype=torch.uint8, memory_format=layout) if places else None
    pointers = (pointer(each, layout) for each in (x, y, where))
    threads = threads or threads_for(library, x.numel())
    library.abele_max_pool(_pool(x.shape, layout), *pointers, threads)
    return y, where


def max_pool_backward(
    library: ctypes.CDLL,
    grad: Tensor,
    shape: torch.Size,
    places: Tensor,
    *,
    layout: torch.memory_format = PLANES,
    threads: int | None = None,
) -> Tensor:
    """Compute the input gradient of ``max_pool`` from window positions.

    Arguments and errors are those of ``max_pool``.
    """
    grad_x = torch.empty(shape, memory_format=layout)
    pointers = (pointer(each, layout) for each in (grad, places, grad_x))
    threads = threads or threads_for(library, grad_x.numel())
    library.abele_max_pool_backward(_pool(shape, layout), *pointers, threads)
    return grad_x


def upsample(library: ctypes.CDLL, x: Tensor) -> Tensor:
    """Upsample images by two, bilinear, with ``align_corners=False``.

    Args:
        library: the kernels.
        x: float32 ``[N, C, H, W]``, channels last; so is the result.

    Raises:
        ValueError: ``x`` does not lie as it has to.
    """
    images, channels, height, width = x.shape
    y = torch.empty((images, channels, 2 * height, 2 * width), memory_format=CHANNELS_LAST)
    pointers = (pointer(each, CHANNELS_LAST) for each in (x, y))
    library.abele_upsample(Upsample(*x.shape), *pointers, threads_for(library, y.numel()))
    return y


def upsample_backward(library: ctypes.CDLL, grad: Tensor) -> Tensor:
    """Compute the input gradient of ``upsample``; same arguments and errors."""
    images, channels, height, width = grad.shape
    grad_x = torch.empty((images, channels, height // 2, width // 2), memory_format=CHANNELS_LAST)
    pointers = (pointer(each, CHANNELS_LAST) for each in (grad, grad_x))
    threads = threads_for(library, grad.numel())
    library.abele_upsample_backward(Upsample(*grad_x.shape), *pointers, threads)
    return grad_x


def _pool(shape: torch.Size, layout: torch.memory_format) -> ctypes.Structure:
    return Pool(*shape, int(layout is CHANNELS_LAST))


def pointer(tensor: Tensor | None, layout: torch.memory_format = PLANES) -> int | None:
    """Return the address of a tensor's data; None without a tensor.

    Raises:
        ValueError: it does not lie as it has to.
    """
    _require(layout, tensor)
    return None if tensor is None else tensor.data_ptr()


def _require(layout: torch.memory_format, *tensors: Tensor | None) -> None:
    for each in tensors:
        if each is not None and not each.is_contiguous(memory_format=layout):
            raise ValueError(f"The kernels want {layout}, not strides {each.stride()}.")


def channels_last(images: Tensor) -> Tensor:
    """Return images ``[N, C, H, W]`` in channels-last order, copied only if necessary."""
    return images.contiguous(memory_format=CHANNELS_LAST)


def dense(*tensors: Tensor | None) -> list[Any]:
    """Return contiguous tensors, copied if they are not; None stays None."""
    return [None if each is None else each.contiguous() for each in tensors]
