"""Farthest point sampling of several point clouds. Importing this module registers it."""

from __future__ import annotations

import torch

from abele.ops._register import implements, shapes_of

_FORWARD = "abele::farthest_points"


@implements(_FORWARD, "(Tensor points, Tensor starts, int[] boundaries, int[] counts) -> Tensor")
def _forward(
    points: torch.Tensor, starts: torch.Tensor, boundaries: list[int], counts: list[int]
) -> torch.Tensor:
    chosen = torch.empty(sum(counts), dtype=torch.int64, device=points.device)
    done = 0
    for cloud, count in enumerate(counts):
        begin, end = boundaries[cloud], boundaries[cloud + 1]
        rows = points[begin:end]
        distance = torch.full((end - begin,), torch.inf, device=points.device)
        newest = starts[cloud]
        for index in range(done, done + count):
            chosen[index] = newest + begin
            # From the newest point only: the others were seen when they were the newest.
            gap = (rows - rows[newest]).square().sum(1)
            distance = torch.minimum(distance, gap)
            newest = distance.argmax()
        done += count
    return chosen


@shapes_of(_FORWARD)
def _forward_shape(
    points: torch.Tensor, starts: torch.Tensor, boundaries: list[int], counts: list[int]
) -> torch.Tensor:
    return points.new_empty((sum(counts),), dtype=torch.int64)


forward = torch.ops.abele.farthest_points.default
