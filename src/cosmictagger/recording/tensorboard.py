"""TensorBoard files: scalars of every metric, and pictures of what was predicted."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

IMAGES_EVERY = 25
"""Steps between two pictures."""


class Summaries:
    """One TensorBoard writer.

    Args:
        folder: of its files.
        step: steps from this one on that earlier files hold are of a run that was cut off, and
            are not shown.
        on: False writes nothing.
    """

    def __init__(self, folder: Path, step: int, on: bool = True):
        self._writer: Any = None
        if on:
            # Takes seconds, so only where it is wanted.
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(folder), purge_step=step or None)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """One scalar per name."""
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def images(self, step: int, logits: Sequence[torch.Tensor], label: torch.Tensor) -> None:
        """Prediction and label of the first image, per plane: cosmic grey, neutrino white.

        Args:
            step: its number.
            logits: three of [B, 3, H, W].
            label: int64 [B, 3, H, W].
        """
        if self._writer is None:
            return
        for plane, scores in enumerate(logits):
            predicted = scores[0].float().argmax(0)
            for name, classes in (("prediction", predicted), ("label", label[0, plane])):
                grey = (classes.float() / 2)[None].cpu()
                self._writer.add_image(f"{name}/plane_{plane}", grey, step)

    def close(self) -> None:
        """Write what is held back."""
        if self._writer is not None:
            self._writer.close()
