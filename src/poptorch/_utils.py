"""Helpers at the import path of the original PopTorch; ``poptorch_geometric`` uses one."""

from collections.abc import Iterator, Sequence

import torch


def combine_batch_tensors_gen(tensors: Sequence[Sequence[torch.Tensor]]) -> Iterator[torch.Tensor]:
    """Yield the tensors of a combined batch, each concatenated over the micro-batches."""
    yield from map(torch.cat, zip(*tensors, strict=True))
