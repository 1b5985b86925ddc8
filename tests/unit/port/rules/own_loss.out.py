"""A loss that is a module of the program, a limit from a configuration, and a weight of an epoch."""

import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, criterion, model):
        super().__init__()
        self.criterion = criterion
        self.model = model

    def forward(self, x, y, weight):
        loss = self.criterion(self.model(x), y) * weight
        return poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
data = TensorDataset(torch.randn(40, 4), torch.rand(40, 3))


class Dice(nn.Module):
    def __init__(self, smooth):
        super().__init__()
        self.smooth = smooth

    def forward(self, logits, target):
        probs = torch.sigmoid(logits)
        whole = probs.sum() + target.sum() + self.smooth
        return 1 - (2 * (probs * target).sum() + self.smooth) / whole


class Both(nn.Module):
    def __init__(self, smooth):
        super().__init__()
        self.dice, self.bce = Dice(smooth), nn.BCEWithLogitsLoss()

    def forward(self, logits, target):
        return self.dice(logits, target) + self.bce(logits, target)


class Scaled(nn.Module):
    """A loss that is trained, too."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, logits, target):
        return ((logits * self.scale - target) ** 2).mean()


def train(model, criterion, optimizer, loader, epoch, config, limit, training_model):
    weight = config["weight"] * min(1.0, (epoch + 1) / 2)
    model.train()
    for x, y in loader:
        loss = training_model(x, y, torch.as_tensor(weight))
        print(loss.item())


@torch.no_grad()
def evaluate(model, criterion, loader, inference_model):
    model.eval()
    for x, y in loader:
        print(criterion((inference_model if len(x) == loader.batch_size else model)(x), y).item())


def main():
    config = {"train": {"limit": 0.1}, "weight": 0.5, "smooth": 1.0}
    loader, test_loader = poptorch.DataLoader(opts, data, batch_size=8), DataLoader(data, batch_size=16)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    inference_model = poptorch.inferenceModel(model, options=opts)
    criterion, other = Both(config["smooth"]), Scaled()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5, max_grad_norm=config["train"]["limit"])
    training_model = poptorch.trainingModel(
        ModelWithLoss(criterion, model), options=opts, optimizer=optimizer
    )
    for epoch in range(3):
        train(model, criterion, optimizer, loader, epoch, config, config["train"]["limit"], training_model=training_model)
        evaluate(model, criterion, test_loader, inference_model=inference_model)
    print(other(torch.ones(8, 3), torch.ones(8, 3)).item())


main()
