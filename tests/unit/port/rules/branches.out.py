"""The optimizer is chosen in branches, and gradients are limited before it updates."""

import argparse

import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        out = self.model(x)
        loss = criterion(out, y)
        return out, loss


parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", default="adam")
parser.add_argument("--clip", type=float, default=0.05)
args = parser.parse_args([])

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
if args.optimizer == "sgd":
    optimizer = poptorch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, max_grad_norm=args.clip
    )
elif args.optimizer == "adam":
    optimizer = poptorch.optim.Adam(
        model.parameters(), lr=0.01, max_grad_norm=args.clip
    )
else:
    raise ValueError(args.optimizer)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
criterion = nn.CrossEntropyLoss()
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
data = TensorDataset(torch.randn(160, 4), torch.randint(0, 3, (160,)))
loader = poptorch.DataLoader(opts, data, batch_size=8, shuffle=True)

for x, y in loader:
    out, loss = training_model(x, y)
    scheduler.step()
    training_model.setOptimizer(optimizer)
    print(loss.item(), (out.argmax(1) == y).sum().item())
