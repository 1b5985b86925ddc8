"""The six-layer network of the tutorial, in plain PyTorch.

In: pictures, float32 [B, 1, 28, 28] in -1..1. Out: log-probabilities of ten classes, [B, 10].
Its parameter names are those of the original tutorial, so that weights trained there load here.
"""

from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody uses
from torch import Tensor, nn


class GarmentNet(nn.Module):
    """Two convolutions, a normalisation and two linear layers; no loss, as in a model library."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 5, kernel_size=3)
        self.conv2 = nn.Conv2d(5, 12, kernel_size=5)
        self.norm = nn.GroupNorm(3, 12)
        self.fc1 = nn.Linear(12 * 9 * 9, 100)
        self.fc2 = nn.Linear(100, 10)

    def log_probabilities(self, pictures: Tensor) -> Tensor:
        """[B, 1, 28, 28] -> [B, 10]."""
        maps = F.max_pool2d(F.relu(self.conv1(pictures)), kernel_size=2)
        maps = self.norm(F.relu(self.conv2(maps)))
        hidden = F.relu(self.fc1(maps.flatten(start_dim=1)))
        return F.log_softmax(self.fc2(hidden), dim=1)

    def forward(self, pictures: Tensor) -> Tensor:
        """[B, 1, 28, 28] -> [B, 10]."""
        return self.log_probabilities(pictures)


class ClassificationModel(GarmentNet):
    """The same network with its loss inside, which is what lets a device run a whole step alone."""

    def forward(self, pictures: Tensor, labels: Tensor | None = None):
        """While training: (log-probabilities [B, 10], loss); otherwise the former alone."""
        scores = self.log_probabilities(pictures)
        if self.training:
            return scores, F.nll_loss(scores, labels)
        return scores


def load_weights(model: nn.Module, path: str | Path) -> nn.Module:
    """Load a state dictionary into `model` and set it to evaluation.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file holds something else.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"The weights file {path} does not exist. Train first (python examples/introduction.py)"
            " or give the path of a file saved with torch.save(model.state_dict(), path)."
        )
    try:
        # A weights file may come from anywhere: weights_only keeps it from running code.
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # torch raises nearly anything on foreign bytes
        raise ValueError(
            f"{path} does not hold the weights of {type(model).__name__} "
            f"({type(error).__name__}). Save them with torch.save(model.state_dict(), path)."
        ) from error
    return model.eval()
