"""Kernel choice and workspace sizes of image convolutions.

``KERNELS`` is the registry; lowerings, memory plans and reports read it. The numbers behind the
limits come from ``benchmarks/convolutions.py``.
"""

from __future__ import annotations

import dataclasses
import math
import platform
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele import _torch, processor
from abele.kernels.binding import CONSTANTS
from abele.kernels.on_tensors import result_shape
from abele.ops import constant_convolution, half_products
from abele.program import node_argument

aten = torch.ops.aten

_FLOAT = 4  # bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution of images or its backward.

    Attributes:
        image: argument ``[N, C, H, W]``; may be without data. Likewise ``weight``.
        slope: of the activation of its result below zero; 1 for none.
        backward: whether the node computes gradients.
        constant: whether its weight is packed once for many calls.
    """

    image: torch.Tensor
    weight: torch.Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int
    slope: float
    backward: bool
    constant: bool = False

    @property
    def suits_kernels(self) -> bool:
        """True if abele's kernels may support the convolution: 2D, float32, wide registers."""
        # DEFAULT: x86-64 without AVX2, or ARM without SVE, whose registers of 128 bits suffice.
        wide = torch.backends.cpu.get_cpu_capability() != "DEFAULT"
        wide = wide or platform.machine() in ("aarch64", "arm64")
        return self.image.dim() == 4 and self.image.dtype is torch.float32 and wide

    @property
    def is_bfloat16(self) -> bool:
        """True if Winograd's kernel may read bfloat16 images: the processor lacks AMX."""
        narrow = self.image.dim() == 4 and self.image.dtype is torch.bfloat16
        own = half_products.has_bfloat16_products() and not half_products.has_bfloat16_tiles()
        return narrow and own

    @property
    def reads_channels_last(self) -> bool:
        """True if the image is channels-last in memory and not also contiguous."""
        image = self.image
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        last = formats.get(image.dim())
        dense = last is not None and image.is_contiguous(memory_format=last)
        return dense and not image.is_contiguous()

    @property
    def moves_by_one(self) -> bool:
        """True if stride, dilation and groups are one and it is not transposed."""
        return {*self.stride, *self.dilation, self.groups} == {1} and not self.transposed


def convolution_of(node: torch.fx.Node) -> Convolution | None:
    """Return the convolution that a graph node computes; ``None`` for other operators.

    Args:
        node: any node of a graph; its values are described in ``meta["val"]``.
    """
    arguments: tuple[Any, ...] = node.args
    slope, backward, transposed, constant, extra = 1.0, False, False, False, (0, 0)
    if node.target is aten.convolution.default:
        x, weight, _, stride, padding, dilation, transposed, extra, groups = arguments
    elif node.target is aten.convolution_backward.default:
        _, x, weight, _, stride, padding, dilation, transposed, extra, groups, _ = arguments
        backward = True
    elif node.target is not None and node.target is _torch.convolution_with_activation():
        x, weight, _, padding, stride, dilation, groups, activation, scalars, _ = arguments
        if activation not in ("none", "leaky_relu"):
            return None
        slope = float(scalars[0]) if scalars else 1.0
    elif node.target is constant_convolution.operator:
        x, weight, _, _, _, _, stride, padding, dilation, groups, _, _ = arguments
        constant = True
    else:
        return None
    return Convolution(
        image=x.meta["val"],
        weight=weight.meta["val"],
        stride=tuple(stride),
        padding=tuple(padding),
        dilation=tuple(dilation),
        transposed=transposed,
        output_padding=tuple(extra),
        groups=groups,
        slope=slope,
        backward=backward,
        constant=constant,
    )


# -- direct: few channels on large images --------------------------------------------------------
#
# There the library reaches a third to two thirds of the processor's speed, and sums weight
# gradients with fifty times the error.

# More weights than this leave the nearest cache, and the library is as fast.
_MOST_WEIGHTS = 32 * 32 * 9
# The kernel computes that many pixels of a row at once.
_LEAST_WIDTH = 16
# With so few channels, Winograd's transforms take as long as it saves with multiplications on
# processors whose multiplications are fast compared with memory.
_MOST_CHANNELS_WITHOUT_TRANSFORMS = 16
# Processors that have it multiply two registers of sixteen at a time; others that have such
# registers multiply one, or take two turns for it.
_MULTIPLIES_TWO = "amx_tile"


def _direct_gains(convolution: Convolution) -> bool:
    if not convolution.suits_kernels:  # there may be one dimension of pixels, or three
        return False
    _, _, height, width = convolution.weight.shape
    return (
        convolution.moves_by_one
        and height == width
        and width in (1, 3, 5)
        and set(convolution.padding) == {width // 2}
        and convolution.image.shape[3] >= _LEAST_WIDTH
        and convolution.weight.numel() <= _MOST_WEIGHTS
    )


def _direct_gains_over_winograd(convolution: Convolution) -> bool:
    # From instructions and not from a clock: results have the same bits in every run.
    capability = torch.backends.cpu.get_cpu_capability()
    fast = capability == "AVX2" or processor.has(_MULTIPLIES_TWO)
    channels = max(convolution.weight.shape[:2])
    few = channels <= _MOST_CHANNELS_WITHOUT_TRANSFORMS
    return _direct_gains(convolution) and fast and few


# -- Winograd's algorithm: 3x3 with many channels ------------------------------------------------
#
# It needs less than half of the multiplications, but has to transform images, weights and results;
# that is worth it from sixteen channels. Where halves of registers multiply as fast as whole ones,
# channels need fill only these.

# Registers hold so many channels; those that are not there are computed in vain.
_WHOLE, _MOST_FILLED = 16, 1.25
_HALF = _WHOLE // 2
_LEAST_CHANNELS = 16
# AMD's processors have the first; those with the second multiply whole registers in one step.
_OF_AMD, _IN_ONE_STEP = "clzero", "avx512_vp2intersect"
# Outputs of tiles of 2x2, with those beyond the image, for each output of the image.
_MOST_TILED = 1.5
_POINTS, _LARGE_POINTS = 16, 36  # of transformed tiles of 2x2 and of 4x4 outputs
# In inference tiles of 4x4 are faster with fewer products, but not where few tiles share weights
# that leave all caches.
_LARGE_EDGE, _FEWER, _FEW_TILES, _MANY_CHANNELS = 4, 0.9, 8, 1 << 17
# Of bfloat16 images, with so many tiles and channels at least, they take 0.67 to 0.89 of oneDNN's
# time with weights in its own order; with 16 channels or tiles 0.93 to 2. In training they take
# 0.4 to 0.9; 1.15 where weights are many and more outputs of tiles lie beyond the image.
_LEAST_OF_BFLOAT16, _MOST_BEYOND = 32, 1.2


def _winograd_gains(convolution: Convolution) -> bool:
    if convolution.is_bfloat16:
        channels, tiles = convolution.weight.shape[:2], _tiles(convolution, _LARGE_EDGE)
        beyond = tiles * _LARGE_EDGE**2 > _MOST_BEYOND * _tiles(convolution, 1)
        reads_much = not convolution.constant and math.prod(channels) > _MANY_CHANNELS
        few = min(tiles, *channels) < _LEAST_OF_BFLOAT16
        if few or (reads_much and beyond) or winograd_points(convolution) != _LARGE_POINTS:
            return False
    return (
        _has_winograd_code(convolution)
        and winograd_lanes(convolution) is not None
        and not _direct_gains_over_winograd(convolution)
    )


def suits_winograd(node: torch.fx.Node) -> bool:
    """Return whether a node is a 3x3 convolution, or its backward, with many channels.

    Winograd is then faster than the library, and on some processors the direct kernel faster yet.
    """
    convolution = convolution_of(node)
    if convolution is None or not _has_winograd_code(convolution):
        return False
    return _fill(convolution.weight.shape[:2], _WHOLE)


def winograd_lanes(convolution: Convolution) -> int | None:
    """Return the number of channels per register in Winograd; ``None`` if many lanes are empty.

    The same choice as in ``conv_winograd.cpp``.
    """
    channels = convolution.weight.shape[:2]
    if _fill(channels, _WHOLE):
        return _WHOLE
    halves = _halves_are_as_fast() and not convolution.is_bfloat16
    return _HALF if halves and _fill(channels, _HALF) else None


def _halves_are_as_fast() -> bool:
    """Return whether AVX-512 runs at half rate, so that 256-bit vectors are as fast."""
    capability = torch.backends.cpu.get_cpu_capability()
    in_two_steps = processor.has(_OF_AMD) and not processor.has(_IN_ONE_STEP)
    return capability == "AVX512" and in_two_steps


def _has_winograd_code(convolution: Convolution) -> bool:
    image, kernel = convolution.image.shape, convolution.weight.shape
    padding = set(convolution.padding)
    return (
        (convolution.suits_kernels or convolution.is_bfloat16)
        and convolution.moves_by_one
        and kernel[2:] == (3, 3)
        and padding in ({0}, {1})
        and _is_tiled(image, padding.pop())
    )


def _is_tiled(image: torch.Size, padding: int) -> bool:
    """Return whether Winograd tiles waste few outputs beyond the image border."""
    pixels = [size + 2 * padding - 2 for size in image[2:]]
    if min(*pixels, image[0]) < 1:
        return False
    return math.prod((size + size % 2) / size for size in pixels) <= _MOST_TILED


def _fill(channels: Sequence[int], lanes: int) -> bool:
    """Return whether channel counts fill most lanes of registers of ``lanes`` elements."""
    return all(
        count >= _LEAST_CHANNELS and _padded(count, lanes) <= _MOST_FILLED * count
        for count in channels
    )


def winograd_points(convolution: Convolution) -> int:
    """Return the points of a transformed tile that is fastest in inference: 16, or 36.

    The second has 0.56 times the products of the first, but 2.25 times its weights.
    """
    tiles = _tiles(convolution, _LARGE_EDGE)
    fewer = _LARGE_POINTS * tiles < _FEWER * _POINTS * _tiles(convolution)
    many = math.prod(convolution.weight.shape[:2]) > _MANY_CHANNELS
    return _LARGE_POINTS if fewer and not (many and tiles < _FEW_TILES) else _POINTS


def _winograd_scratch(convolution: Convolution) -> int:
    lanes = winograd_lanes(convolution)
    assert lanes is not None  # or it would be another kernel
    outputs, inputs = convolution.weight.shape[:2]
    if not convolution.backward:
        return _of_pass(convolution, outputs, inputs, lanes)
    of_images = _of_pass(convolution, inputs, outputs, lanes)
    return max(of_images, _of_weight_gradient(convolution, lanes))


def _of_pass(convolution: Convolution, outputs: int, inputs: int, lanes: int) -> int:
    """Return workspace bytes of Winograd forward or input gradient: weights, tiles per thread."""
    threads, (points, edge) = torch.get_num_threads(), _form(convolution)
    tiles, block = _tiles(convolution, edge), CONSTANTS["ABELE_WINOGRAD_BLOCK"] * _POINTS // points
    panel, weights = 2 * lanes, points * _padded(outputs, lanes) * inputs
    many = points * outputs * inputs >= CONSTANTS["ABELE_WINOGRAD_MANY_WEIGHTS"]
    many &= -(-outputs // panel) >= CONSTANTS["ABELE_WINOGRAD_OWN_PANELS"] * threads
    if many and tiles <= CONSTANTS["ABELE_WINOGRAD_FEW_TILES"]:
        depth = min(inputs, CONSTANTS["ABELE_WINOGRAD_DEPTH"])
        floats = tiles * (_pitch(inputs, lanes) + panel) + depth * panel + 3 * lanes
        return _FLOAT * threads * (points * floats + panel)
    blocks = min(-(-tiles // block // threads) * threads, tiles)
    of_block = points * (-(-tiles // max(blocks, 1)) * _rows(convolution, lanes) + 2 * lanes)
    return _FLOAT * (weights + threads * of_block)


def _of_weight_gradient(convolution: Convolution, lanes: int) -> int:
    """Return workspace bytes of Winograd's weight gradient: partial sums and chunks of tiles."""
    outputs, inputs = convolution.weight.shape[:2]
    threads, (points, edge) = torch.get_num_threads(), _form(convolution)
    tiles, rows = _tiles(convolution, edge), _rows(convolution, lanes)
    size = points * inputs * _padded(outputs, lanes)
    chunk = max(CONSTANTS["ABELE_WINOGRAD_CHUNK_FLOATS"], size) // (points * rows)
    least = CONSTANTS["ABELE_WINOGRAD_LEAST_CHUNK"]
    chunk = min(max(chunk, least), CONSTANTS["ABELE_WINOGRAD_MOST_CHUNK"])
    floats, most = "ABELE_WINOGRAD_PARTS_FLOATS", "ABELE_WINOGRAD_MOST_PARTS"
    if points == _LARGE_POINTS:
        chunk = CONSTANTS["ABELE_WINOGRAD_LARGE_CHUNK"]
        floats, most = "ABELE_WINOGRAD_LARGE_PARTS_FLOATS", "ABELE_WINOGRAD_LARGE_MOST_PARTS"
    parts = min(max(CONSTANTS[floats] // size, 1), CONSTANTS[most], -(-tiles // chunk))
    chunk = min(chunk, -(-tiles // max(parts, 1)))
    rooms = threads if parts % threads == 0 or parts >= 4 * threads else 1
    task = min(inputs, CONSTANTS["ABELE_WINOGRAD_TASK_ROWS"])
    of_tasks = threads * points * task * 2 * lanes
    sums = parts * size if parts > 1 or chunk < tiles else of_tasks
    return _FLOAT * (sums + rooms * points * (chunk * rows + 2 * lanes))


def _form(convolution: Convolution) -> tuple[int, int]:
    """Return points and outputs' edge of the tiles of Winograd's kernels in training."""
    return (_LARGE_POINTS, _LARGE_EDGE) if convolution.is_bfloat16 else (_POINTS, 2)


def _rows(convolution: Convolution, lanes: int) -> int:
    """Return the padded floats of a tile's input and output channels per Winograd point."""
    return sum(_pitch(channels, lanes) for channels in convolution.weight.shape[:2])


def _tiles(convolution: Convolution, size: int = 2) -> int:
    """Return the number of output tiles of ``size`` x ``size`` of the batch."""
    count = convolution.image.shape[0]
    for edge, padding in zip(convolution.image.shape[2:], convolution.padding, strict=True):
        count *= -(-(edge + 2 * padding - 2) // size)
    return count


def _padded(channels: int, lanes: int) -> int:
    return -(-channels // lanes) * lanes


def _pitch(channels: int, lanes: int) -> int:
    short = channels < CONSTANTS["ABELE_WINOGRAD_LONG_ROW"]
    return _padded(channels, lanes) + (0 if short else lanes)


# -- 1x1 as GEMMs --------------------------------------------------------------------------------

# Fewer leave columns of a GEMM's tiles empty.
_LEAST_POINTWISE_CHANNELS = 32
_LEAST_POINTWISE_PIXELS = 32


def _pointwise_gains(convolution: Convolution) -> bool:
    if not convolution.suits_kernels:
        return False
    outputs, inputs, *kernel = convolution.weight.shape
    return (
        set(kernel) == {1}
        and not any(convolution.padding)
        and not convolution.transposed
        and convolution.groups == 1
        and convolution.slope == 1.0
        and min(outputs, inputs) >= _LEAST_POINTWISE_CHANNELS
        and pixels(convolution) >= _LEAST_POINTWISE_PIXELS
    )


def pixels(convolution: Convolution) -> int:
    """Return the number of output pixels of a plain convolution over the batch."""
    sizes = convolution.image.shape, convolution.weight.shape
    count, _, *pixels = result_shape(*sizes, convolution.stride, convolution.padding)
    return count * math.prod(pixels)


def _pointwise_scratch(convolution: Convolution) -> int:
    """Return the workspace bytes of strided 1x1 convolutions (``conv_pointwise.cpp``)."""
    if set(convolution.stride) == {1}:
        return 0
    times = 2 if convolution.backward else 1
    return times * _FLOAT * pixels(convolution) * convolution.weight.shape[1]


# -- few channels, in inference ------------------------------------------------------------------

# Products that are summed in one register (LONGEST_SUM of ``tiles.h``); channels of photographs.
_LONGEST_SUM, _FEW = 192, 4


def reads_few_channels(convolution: Convolution) -> bool:
    """Return whether ``abele_clamped_few_channels`` has code for a convolution."""
    _, inputs, *kernel = convolution.weight.shape
    return (
        convolution.suits_kernels
        and not convolution.transposed
        and {*convolution.dilation, convolution.groups} == {1}
        and len(set(kernel)) == len(set(convolution.padding)) == len(set(convolution.stride)) == 1
        and kernel[0] > 1
        and convolution.stride[0] <= 2
        and inputs * math.prod(kernel) <= _LONGEST_SUM
    )


def reads_planes(node: torch.fx.Node) -> bool:
    """Return whether a constant convolution reads NCHW images, of few channels, and writes NHWC."""
    convolution = convolution_of(node)
    if convolution is None or node.target is not constant_convolution.operator or node.args[5]:
        return False
    few = convolution.image.shape[1] <= _FEW and reads_few_channels(convolution)
    return few and kernel_for(convolution) is None


# -- patches: kernel and stride are equal, also transposed ---------------------------------------
#
# Each pixel of the small images belongs to a window of the large ones; see ``conv_patches.cpp``.
# The library reaches a third of the processor's speed there.

_LANES = 16  # channels in a register
# Rows of small images that are shorter leave tiles of a GEMM empty.
_LEAST_SMALL_WIDTH = 8


def _patches_gain(convolution: Convolution) -> bool:
    small, large, *kernel = convolution.weight.shape
    if not convolution.suits_kernels or list(convolution.stride) != kernel:
        return False
    sizes = convolution.image.shape[2:]
    width = sizes[1] if convolution.transposed else sizes[1] // kernel[1]
    whole = all(size % window == 0 for size, window in zip(sizes, kernel, strict=True))
    return (
        max(kernel) > 1
        and not any(convolution.padding)
        and not any(convolution.output_padding)
        and {*convolution.dilation, convolution.groups} == {1}
        and convolution.slope == 1.0
        and (convolution.transposed or whole)
        and width >= _LEAST_SMALL_WIDTH
        and small % _LANES == 0
        and kernel[1] * large % _LANES == 0
    )


# -- planes: few channels of NCHW images, in emitted code ---------------------------------------

# Fewer samples are computed one by one if rows and columns advance by one, which pays for images of
# any size; else most lanes of a register idle, and only few channels are worth that.
_LEAST_BATCH = 8
_MOST_CHANNELS_OF_ANY_BATCH = 16
# Where both channel counts divide by this the library is as good, and soon better; with few samples
# not before it has so many.
_LIBRARY_BLOCK = 16
_LIBRARY_CHANNELS = 32
_MOST_CHANNELS = 64
# Larger images leave the second-level cache when 16 samples are kept side by side.
_MOST_PIXELS_PER_SAMPLE = 65536


def planes_gain(node: torch.fx.Node) -> bool:
    """Return whether emitted NCHW kernels support a convolution or its backward and are faster.

    They support more convolutions than they are chosen for. Strided gradients are copied.
    """
    convolution = convolution_of(node)
    if (
        convolution is None
        or {*convolution.dilation, convolution.groups} != {1}
        or convolution.transposed
    ):
        return False
    result = node if not convolution.backward else node_argument(node, 0)
    values = convolution.image, convolution.weight, result.meta["val"]
    plain = all(
        each.dim() == 4 and each.numel() > 0 and each.dtype is torch.float32 for each in values
    )
    in_planes = values[:2] if convolution.backward else values  # torch may return channels last
    if not plain or not all(each.is_contiguous() for each in in_planes):
        return False
    x, weight = values[:2]
    borders = zip(pair(convolution.padding), weight.shape[2:], strict=True)
    one_by_one = {*convolution.stride} == {1} and all(pad < kernel for pad, kernel in borders)
    channels, few = weight.shape[:2], x.shape[0] < _LEAST_BATCH
    most, blocks = max(channels), all(count % _LIBRARY_BLOCK == 0 for count in channels)
    if one_by_one and few:
        return most <= (_LIBRARY_CHANNELS if blocks else _MOST_CHANNELS)
    if blocks or most > _MOST_CHANNELS or (few and most >= _MOST_CHANNELS_OF_ANY_BATCH):
        return False
    return max(x[0].numel(), values[2][0].numel()) <= _MOST_PIXELS_PER_SAMPLE


def pair(values: Sequence[int]) -> list[int]:
    """Return (height, width) from a one- or two-element list."""
    return [*values] * 2 if len(values) == 1 else [*values]


# -- the registry --------------------------------------------------------------------------------


def _no_scratch(convolution: Convolution) -> int:
    del convolution
    return 0


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel for convolutions of channels-last images.

    Attributes:
        name: in reports.
        kind: in ``sources.KINDS``.
        gains: returns whether it is faster than the library and the kernels after it.
        scratch: returns the bytes that it takes besides tensors.
        function: middle of the names of its functions in ``abi.h``.
    """

    name: str
    kind: str
    gains: Callable[[Convolution], bool]
    scratch: Callable[[Convolution], int] = _no_scratch
    function: str | None = None


WINOGRAD = Kernel(
    "winograd",
    "winograd",
    _winograd_gains,
    _winograd_scratch,
    "winograd",
)
PATCHES = Kernel(
    "patches",
    "patches",
    _patches_gain,
)
POINTWISE = Kernel(
    "pointwise",
    "pointwise",
    _pointwise_gains,
    _pointwise_scratch,
    "pointwise",
)
DIRECT = Kernel(
    "direct",
    "convolutions",
    _direct_gains,
    function="conv",
)
#: Kernels in order of preference: the first that is faster than the library is used.
KERNELS = (WINOGRAD, PATCHES, POINTWISE, DIRECT)


def kernel_for(convolution: Convolution) -> Kernel | None:
    """Return the fastest kernel for a convolution; ``None`` if the library is faster."""
    return next((kernel for kernel in KERNELS if kernel.gains(convolution)), None)


def kernel_of(node: torch.fx.Node, *, constant: bool = False) -> Kernel | None:
    """Return abele's kernel for a graph node; ``None`` if the library computes it.

    With ``constant``, the one for a weight that is packed once for many calls.
    """
    convolution = convolution_of(node)
    if convolution is not None and constant:
        convolution = dataclasses.replace(convolution, constant=True)
    return None if convolution is None else kernel_for(convolution)


def scratch_bytes(node: torch.fx.Node) -> int:
    """Return the workspace bytes of abele's kernel for a node (cached in ``calls.h``)."""
    convolution = convolution_of(node)
    kernel = None if convolution is None else kernel_for(convolution)
    return 0 if convolution is None or kernel is None else kernel.scratch(convolution)
