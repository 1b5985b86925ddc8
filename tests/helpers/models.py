"""Tiny models that every test shares, each with a function that makes one batch for it."""

import dataclasses
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn


def plain_loss(values: torch.Tensor, reduction: str = "sum") -> torch.Tensor:
    """The sum or mean of ``values`` and a constant, in an operator that is seen to be a loss."""
    values = values.float()
    return F.l1_loss(values, torch.full_like(values, -1e9), reduction=reduction)


class Introduction(nn.Module):
    """The classifier of the introduction: convolutions, group norm and two dense layers."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 5, 3)
        self.conv2 = nn.Conv2d(5, 12, 5)
        self.norm = nn.GroupNorm(3, 12)
        self.fc1 = nn.Linear(972, 100)
        self.fc2 = nn.Linear(100, 10)
        self.loss = nn.NLLLoss()

    def forward(self, images, labels):
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = self.norm(F.relu(self.conv2(x)))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        scores = F.log_softmax(self.fc2(x), dim=1)
        return scores, self.loss(scores, labels)


class Normalised(nn.Module):
    """Batch norm and dropout: written buffers and random numbers."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(4 * 6 * 6, 10)

    def forward(self, images, labels):
        x = self.dropout(F.relu(self.norm(self.conv(images))))
        scores = self.fc(torch.flatten(x, 1))
        return scores, F.cross_entropy(scores, labels)


class Tokens(nn.Module):
    """Token ids in: an embedding, layer norm and a dense layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.norm = nn.LayerNorm(16)
        self.fc = nn.Linear(16, 30)

    def forward(self, tokens, following):
        scores = self.fc(self.norm(self.embedding(tokens)))
        return scores, F.cross_entropy(scores.flatten(0, 1), following.flatten())


class Tied(nn.Module):
    """One matrix under two names: the embedding is also the output layer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.fc = nn.Linear(16, 30, bias=False)
        self.fc.weight = self.embedding.weight

    def forward(self, tokens, following):
        scores = self.fc(torch.tanh(self.embedding(tokens)))
        return scores, F.cross_entropy(scores.flatten(0, 1), following.flatten())


class Dense(nn.Module):
    """Two dense layers and a mean squared error: the smallest model with a hidden layer."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(6, 8)
        self.fc2 = nn.Linear(8, 3)

    def forward(self, x, target):
        y = self.fc2(torch.tanh(self.fc1(x)))
        return y, F.mse_loss(y, target)


class Affine(nn.Module):
    """One scale and one shift, small enough to compute by hand; no loss."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("shift", torch.tensor([0.5, 0.25, 0.125]))

    def forward(self, x):
        return x * self.scale + self.shift


def frozen() -> Dense:
    """A dense model whose first layer is not trained."""
    model = Dense()
    model.fc1.requires_grad_(False)
    return model


def images(rows: int, side: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    labels = torch.randint(0, 10, (rows,), generator=generator)
    return torch.randn(rows, 1, side, side, generator=generator), labels


def sentences(rows: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    tokens = torch.randint(0, 30, (rows, 7), generator=generator)
    return tokens, torch.roll(tokens, -1, dims=1)


def points(rows: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    return torch.randn(rows, 6, generator=generator), torch.randn(rows, 3, generator=generator)


def vectors(rows: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    return (torch.randn(rows, 3, generator=generator),)


@dataclasses.dataclass(frozen=True)
class Model:
    """A model, its data, and what a comparison with another compiler has to leave out.

    Attributes:
        make: a fresh instance; weights are drawn from torch's own stream.
        data: one batch of that many rows from a generator.
        zero_gradients: parameters whose true gradient is zero, so that their computed one is
            rounding noise, each with the reason.
        random: forward draws random numbers.
    """

    make: Callable[[], nn.Module]
    data: Callable[[int, torch.Generator], tuple[torch.Tensor, ...]]
    zero_gradients: Mapping[str, str] = dataclasses.field(default_factory=dict)
    random: bool = False

    def fresh(self, seed: int = 7) -> nn.Module:
        """An instance with the weights that belong to ``seed``."""
        torch.manual_seed(seed)
        return self.make()

    def batches(self, count: int, rows: int = 4, seed: int = 11) -> list[tuple[torch.Tensor, ...]]:
        """Batches that differ from each other and are the same at every call."""
        generator = torch.Generator().manual_seed(seed)
        return [self.data(rows, generator) for _ in range(count)]

    def batch(self, rows: int = 4, seed: int = 11) -> tuple[torch.Tensor, ...]:
        """One batch."""
        return self.batches(1, rows, seed)[0]


MODELS = {
    "introduction": Model(Introduction, lambda rows, g: images(rows, 28, g)),
    "batch norm and dropout": Model(
        Normalised,
        lambda rows, g: images(rows, 8, g),
        {"conv.bias": "batch norm subtracts it with the mean of its channel"},
        random=True,
    ),
    "embedding and layer norm": Model(Tokens, sentences),
    "tied weights": Model(Tied, sentences),
    "frozen parameters": Model(frozen, points),
    "dense": Model(Dense, points),
    "affine": Model(Affine, vectors),
}
