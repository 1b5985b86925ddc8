"""Path of the original's helpers, one of which ``poptorch_geometric`` calls."""

from collections.abc import Iterator, Sequence

import torch


def combine_batch_tensors_gen(tensors: Sequence[Sequence[torch.Tensor]]) -> Iterator[torch.Tensor]:
    """Yield the tensors of one combined batch: each is concatenated along its first dimension.

    Args:
        tensors: the tensors of each micro-batch, in the same order.
    """
    yield from map(torch.cat, zip(*tensors, strict=True))
