"""Modules for ``torch.compile``, and trainings that compare it with plain PyTorch."""

import torch
from torch import nn

from abele.dynamo import Graph, backend, graphs


class Pictures(nn.Module):
    """Convolutions with batch norms, whose statistics forward writes."""

    def __init__(self):
        super().__init__()
        # No bias before the norm: its true gradient is zero, and Adam makes steps of the rounding.
        convolution = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.body = nn.Sequential(
            convolution, nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        return self.head(self.body(x).flatten(1)).square().mean()


class Words(nn.Module):
    """A transformer layer with dropout; its embedding is also its last layer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.15, batch_first=True)
        self.head = nn.Linear(8, 20)
        self.head.weight = self.embed.weight

    def forward(self, x):
        tokens = (x[..., 0, 0].abs() * 10).long() % 20
        return nn.functional.cross_entropy(self.head(self.layer(self.embed(tokens))).mT, tokens)


class Counting(nn.Module):
    """Writes a buffer, then computes with it; writes parts of a result in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(48))
        self.head = nn.Linear(48, 4)

    def forward(self, x):
        x = x.flatten(2).flatten(1)[:, :48]
        self.mean.add_(x.mean(0))
        y = self.head(x * self.mean)
        y[0] = 0.0
        y[:, 1].mul_(2)
        return (y * self.mean[:4]).sum()


class Broken(nn.Module):
    """Two graphs: Dynamo does not look into ``hidden``, and goes on in another graph."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 8), nn.Linear(8, 2)
        self.hidden = torch.compiler.disable(lambda x: x)  # which loads Dynamo

    def forward(self, x):
        h = self.hidden(self.first(x.flatten(1)[:, :16]).relu())
        return self.second(h).square().mean()


class Views(nn.Module):
    """Returns views of an input, of a weight and of a result that backward needs too."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 8) / 8)

    def forward(self, x):
        x = x.flatten(1)[:, :16]
        h = x @ self.weight
        left, right = h.split(4, 1)
        return left.sin(), right, h.t(), h[:, ::2], x[0], self.weight.t(), h.expand(2, *h.shape)


class Precise(nn.Module):
    """Computes in bfloat16 under autocast."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 8), nn.Linear(8, 2)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            h = self.second(self.first(x.flatten(1)[:, :16]).relu())
        return h.float().square().mean()


MODULES = (Pictures, Words, Counting, Broken, Views, Precise)


def loss_of(result):
    """Reduces what a module returns to a number, in which each result weighs otherwise."""
    if isinstance(result, torch.Tensor):
        return result
    return sum((i + 1) * each.square().mean() for i, each in enumerate(result))


def made(kind):
    """The same module at each call."""
    torch.manual_seed(0)
    return kind()


def compiled(function, **options):
    """``torch.compile`` with this backend, which need not be installed."""
    return torch.compile(function, backend=backend, options=options or None)


def trained(module, called, steps=20):
    """Losses of a training with batches of 4 and one of 3, and of an evaluation after it."""
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    torch.manual_seed(1)
    losses = []
    for step in range(steps):
        x = torch.randn(3 if step == 3 else 4, 3, 8, 8)
        optimizer.zero_grad()
        loss = loss_of(called(x))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    module.eval()
    with torch.no_grad():
        losses.append(loss_of(called(torch.randn(4, 3, 8, 8))))
    return torch.stack(losses)


def graphs_of(run) -> list[Graph]:
    """The graphs that a function has compiled."""
    before = set(map(id, graphs()))
    run()
    return [graph for graph in graphs() if id(graph) not in before]
