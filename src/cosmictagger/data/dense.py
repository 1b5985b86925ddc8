"""From stored pixels to images, at full size or downsampled exactly as the original does it."""

from collections.abc import Sequence
from typing import Literal, overload

import numpy as np
import numpy.typing as npt
import torch

from cosmictagger.data.layout import PLANES, Plane
from cosmictagger.errors import DataError


def dense_size(size: tuple[int, int], downsample: int) -> tuple[int, int]:
    """(H, W) of images after downsampling.

    Args:
        size: (H, W) of the stored images.
        downsample: exponent k: cells of 2^k x 2^k pixels become one.
    """
    factor = 1 << downsample if downsample >= 0 else 0
    if not factor or size[0] % factor or size[1] % factor:
        fitting = [k for k in range(20) if not (size[0] % (1 << k) or size[1] % (1 << k))]
        raise DataError(
            f"downsample={downsample} does not fit images of {size[0]} x {size[1]}: 2^downsample "
            f"has to divide both. Values that fit: {fitting[0]} to {fitting[-1]}."
        )
    return size[0] // factor, size[1] // factor


@overload
def densify(
    planes: Sequence[Plane],
    size: tuple[int, int],
    downsample: int = 0,
    label: Literal[False] = False,
    log: bool = False,
    out: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.float32]: ...
@overload
def densify(
    planes: Sequence[Plane],
    size: tuple[int, int],
    downsample: int = 0,
    *,
    label: Literal[True],
    out: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.int64]: ...
def densify(
    planes: Sequence[Plane],
    size: tuple[int, int],
    downsample: int = 0,
    label: bool = False,
    log: bool = False,
    out: npt.NDArray | None = None,
) -> npt.NDArray:
    """Make images out of the stored pixels of one event.

    Equal to larcv3 3.5 bit for bit. It walks the voxels in stored order (ascending ids: column by
    column, time upwards inside a column), adds each in float32 to its cell, and divides by the
    cell's area at the end; a sum in float64 or by pairs would round differently. Labels take the
    largest class of the cell: neutrino over cosmic over background.

    Args:
        planes: three planes of pixels.
        size: (H, W) of the stored images.
        downsample: exponent k: cells of 2^k x 2^k pixels become one.
        label: whether the values are classes 0..2.
        log: give ln(1 + x) of the image.
        out: [3, H / 2^k, W / 2^k], contiguous and all zeros, to be filled.

    Returns:
        float32 (image) or int64 (label) [3, H / 2^k, W / 2^k]; rows are times, columns are wires.
    """
    height, width = dense_size(size, downsample)
    if len(planes) != PLANES:
        raise DataError(f"An event has {PLANES} planes, found {len(planes)}.")
    if out is None:
        out = np.zeros((PLANES, height, width), np.int64 if label else np.float32)
    for pixels, target in zip(planes, out.reshape(PLANES, -1), strict=True):
        cells = _cells(pixels.ids, size, downsample)
        if label:
            _largest(target, cells, pixels.values)
        else:
            _mean(target, cells, pixels.values, downsample)
            if log:
                # Cells that come twice are read once, before any is written.
                target[cells] = np.log1p(target[cells])
    return out


def _cells(
    ids: npt.NDArray[np.uint64], size: tuple[int, int], downsample: int
) -> npt.NDArray[np.int64]:
    """Return the flat index of each pixel's cell in a downsampled image."""
    # 32-bit division is several times faster than 64-bit, and ids fit: checked by the reader.
    kind = np.uint32 if size[0] * size[1] <= 1 << 32 else np.uint64
    column, row = np.divmod(ids.astype(kind), kind(size[0]))
    width = size[1] >> downsample
    return (row >> kind(downsample)).astype(np.int64) * width + (column >> kind(downsample))


def _mean(
    target: npt.NDArray[np.float32],
    cells: npt.NDArray[np.int64],
    values: npt.NDArray[np.float32],
    downsample: int,
) -> None:
    if not downsample:
        target[cells] = values
        return
    # Walks the values one by one as numpy.add.at does, in a twentieth of its time.
    sums = torch.from_numpy(target)
    sums.index_add_(0, torch.from_numpy(cells), torch.from_numpy(values))
    # Powers of two: the division is exact, and each cell that was hit is divided once.
    target[cells] = target[cells] * np.float32(0.25**downsample)


def _largest(
    target: npt.NDArray[np.int64], cells: npt.NDArray[np.int64], values: npt.NDArray[np.float32]
) -> None:
    for value in (1, 2):
        target[cells[values == value]] = value
