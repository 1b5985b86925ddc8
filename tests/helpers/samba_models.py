"""Small networks and batches for the tests of sambaflow."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from sambaflow import samba

ROWS, CLASSES = 4, 3


class Net(torch.nn.Module):
    """Convolution, batch norm, dropout and a dense layer; scores [B, 3] of images [B, 1, 8, 8]."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(4)
        self.dropout = torch.nn.Dropout(dropout)
        self.layer = torch.nn.Linear(64, CLASSES)

    def forward(self, image):
        hidden = F.max_pool2d(F.leaky_relu(self.norm(self.conv(image))), 2)
        return self.layer(self.dropout(hidden.flatten(1)))


class NetWithLoss(Net):
    """The same; returns the loss and the scores."""

    def forward(self, image, label):
        scores = super().forward(image)
        return F.cross_entropy(scores, label), scores


class Dense(torch.nn.Module):
    """One layer with its loss."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(5, CLASSES)

    def forward(self, x, y):
        scores = self.layer(x)
        return F.cross_entropy(scores, y), scores


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(ROWS, 1, 8, 8, generator=generator)
    return images, torch.randint(CLASSES, (ROWS,), generator=generator)


def rows(seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(ROWS, 5, generator=generator)
    return values, torch.randint(CLASSES, (ROWS,), generator=generator)


def named(tensors, names=("image", "label")):
    return tuple(
        samba.from_torch_tensor(t, name=n, batch_dim=0)
        for t, n in zip(tensors, names, strict=False)
    )


def equal_states(first, second):
    state, wanted = first.state_dict(), second.state_dict()
    assert state.keys() == wanted.keys()
    for name, value in state.items():
        assert torch.equal(value, wanted[name]), name
