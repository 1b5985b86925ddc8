"""A small network of the kind that runs operator by operator, for its tests."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention


class Block(nn.Module):
    """Convolution, batch norm, activation."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, slope: float = 0.01):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
        self.norm = nn.BatchNorm2d(outputs)
        self.slope = slope

    def forward(self, x):
        x = self.norm(self.conv(x))
        return F.relu(x) if self.slope == 0 else F.leaky_relu(x, self.slope)


class Planes(nn.Module):
    """Two planes through the same layers, down and up once, with a sum across; loss inside."""

    def __init__(self, slope: float = 0.01, width: int = 5):
        super().__init__()
        self.first = Block(1, width, slope=slope)
        self.down = Block(width, 2 * width, 1, slope)
        self.deep = Block(2 * width, 2 * width, 5, slope)
        self.up = Block(2 * width, width, 1, slope)
        self.last = nn.Conv2d(width, 3, 1)

    def plane(self, x):
        skip = self.first(x)
        x = self.deep(self.down(F.max_pool2d(skip, 2)))
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return self.last(self.up(x) + skip)

    def forward(self, image, label):
        """[B, 2, H, W] and [B, H, W] -> logits [B, 6, H, W] and the loss."""
        logits = torch.cat([self.plane(x) for x in image.split(1, 1)], 1)
        return logits, F.cross_entropy(logits, label)


# Its true gradient is zero: the norm behind takes it away.
WITHOUT_GRADIENT = tuple(f"{name}.conv.bias" for name in ("first", "down", "deep", "up"))


def planes(slope: float = 0.01) -> Planes:
    """The network with norms that do something."""
    torch.manual_seed(5)
    model = Planes(slope)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.uniform_(-0.5, 0.5)
    return model


def events(count: int, size: int = 16) -> list[list[torch.Tensor]]:
    """Batches of two images."""
    source = torch.Generator().manual_seed(6)
    return [
        [
            torch.randn(2, 2, size, size, generator=source),
            torch.randint(0, 6, (2, size, size), generator=source),
        ]
        for _ in range(count)
    ]
