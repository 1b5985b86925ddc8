"""Sampling and matching of point clouds."""

import itertools
import math

import torch

from abele.ops import farthest_points
from poptorch._error import error

Batch = list[int] | torch.Tensor | None


def fps(
    src: torch.Tensor, ptr: list[int], ratio: float = 0.5, random_start: bool = False
) -> torch.Tensor:
    """Sample points of each cloud, each farthest from those chosen before.

    Args:
        src: [points, ...] coordinates; the clouds lie one behind the other.
        ptr: where each cloud begins, and where the last one ends: ``[0, 5, 9]`` for 5 and 4.
        ratio: share of each cloud to keep, rounded up.
        random_start: begin at a random point of each cloud instead of its first.

    Returns:
        int64 rows of ``src``, cloud by cloud, in the order they were chosen. Among points equally
        far the first is taken.

    Raises:
        poptorch.Error: an argument of another type, boundaries that do not rise from 0 to the
            number of points, or a ratio outside 0 < ratio <= 1.
    """
    if not isinstance(src, torch.Tensor):
        raise error(f"poptorch.fps() needs src as a tensor, found {type(src).__name__}.")
    _check_boundaries(ptr, src)
    if not isinstance(ratio, float):
        raise error(f"poptorch.fps() needs ratio as a float, found {type(ratio).__name__}.")
    if not isinstance(random_start, bool):
        raise error(
            f"poptorch.fps() needs random_start as a bool, found {type(random_start).__name__}."
        )
    if not 0 < ratio <= 1:
        raise error(f"poptorch.fps() needs 0 < ratio <= 1, found {ratio}.")
    sizes = [end - begin for begin, end in itertools.pairwise(ptr)]
    # 0.1 * 30 is a bit more than 3 in binary and means 3.
    counts = [math.ceil(size * ratio - 1e-9) for size in sizes]
    if random_start:
        starts = [torch.randint(max(size, 1), (), device=src.device) for size in sizes]
        begins = torch.stack(starts)
    else:
        begins = torch.zeros(len(sizes), dtype=torch.int64, device=src.device)
    points = src.reshape(src.shape[0], -1).float()
    return farthest_points.forward(points, begins, ptr, counts)


def _check_boundaries(ptr: object, src: torch.Tensor) -> None:
    if not isinstance(ptr, list) or not all(type(each) is int for each in ptr):
        raise error(f"poptorch.fps() needs ptr as a list of ints, found {ptr!r}.")
    if len(ptr) < 2:
        raise error(
            f"poptorch.fps() needs at least 2 boundaries in ptr, found {len(ptr)}. One cloud of "
            "all points is [0, len(src)]."
        )
    points = src.shape[0] if src.dim() else 0
    if ptr[0] != 0 or ptr[-1] != points or ptr != sorted(ptr):
        raise error(
            f"poptorch.fps() needs ptr to rise from 0 to the number of points, {points}, "
            f"found {ptr}."
        )


def nearest(
    x: torch.Tensor, y: torch.Tensor, batch_x: Batch = None, batch_y: Batch = None
) -> torch.Tensor:
    """For each row of ``x`` the nearest row of ``y`` that belongs to the same batch.

    Args:
        x: [N] or [N, features].
        y: [M] or [M, features].
        batch_x: N batch numbers, a list or a tensor; None puts all rows into batch 0.
        batch_y: M batch numbers, likewise. A list takes the dtype of the other one.

    Returns:
        [N] int64 rows of ``y``: the first of several equally near, -1 where the batch has none.

    Raises:
        poptorch.Error: an argument of another type, or sizes that do not fit.
    """
    for name, value in (("x", x), ("y", y)):
        if not isinstance(value, torch.Tensor):
            raise error(f"poptorch.nearest() needs {name} as a tensor, found {_kind(value)}.")
    left, right = (value.reshape(value.shape[0], -1).float() for value in (x, y))
    if left.shape[1] != right.shape[1]:
        raise error(
            "poptorch.nearest() needs as many features in x as in y, found "
            f"{left.shape[1]} and {right.shape[1]}."
        )
    # Without matrix products, which round differently and would decide ties at random.
    distance = torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")
    if batch_x is None and batch_y is None:
        return distance.argmin(dim=1)
    ids = _batch("batch_x", batch_x, x, batch_y), _batch("batch_y", batch_y, y, batch_x)
    same_batch = ids[0].unsqueeze(1) == ids[1].unsqueeze(0)
    closest = torch.where(same_batch, distance, math.inf).argmin(dim=1)
    return torch.where(same_batch.any(dim=1), closest, -1)


def _batch(name: str, batch: Batch, rows: torch.Tensor, other: Batch) -> torch.Tensor:
    dtype = other.dtype if isinstance(other, torch.Tensor) else torch.int64
    if batch is None:
        return torch.zeros(rows.shape[0], dtype=dtype, device=rows.device)
    if isinstance(batch, list):
        if not all(type(each) is int for each in batch):
            raise error(f"poptorch.nearest() needs a list of ints as {name}, found {batch!r}.")
        batch = torch.tensor(batch, dtype=dtype, device=rows.device)
    if not isinstance(batch, torch.Tensor):
        raise error(f"poptorch.nearest() needs {name} as a list or tensor, found {_kind(batch)}.")
    if tuple(batch.shape) != (rows.shape[0],):
        raise error(
            f"poptorch.nearest() needs one number per row in {name}, {rows.shape[0]}, found shape "
            f"{list(batch.shape)}."
        )
    return batch


def _kind(value: object) -> str:
    return type(value).__name__
