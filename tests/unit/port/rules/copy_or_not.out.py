"""An optimizer of a model or of a copy, as an argument says: its own model is in the program."""

import copy
import sys

import poptorch
import torch
import torch.nn.functional as F
from torch import nn

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, trained):
        super().__init__()
        self.trained = trained

    def forward(self, x):
        loss = F.mse_loss(self.trained(x), x)
        return poptorch.identity_loss(loss, reduction="none")


class ModelWithLoss2(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, chosen):
        super().__init__()
        self.chosen = chosen

    def forward(self, x):
        loss = F.mse_loss(self.chosen(x), x)
        return poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
loader = poptorch.DataLoader(opts, torch.randn(32, 4), batch_size=8)
model = nn.Linear(4, 4)
trained = copy.deepcopy(model) if "--apart" in sys.argv else model
trained.train()
optimizer = poptorch.optim.SGD(trained.parameters(), lr=0.1)
training_model = poptorch.trainingModel(
    ModelWithLoss(trained), options=opts, optimizer=optimizer
)
for x in loader:
    loss = training_model(x)

other = nn.Linear(4, 4)
kept = None
if "--keep" in sys.argv:
    kept = copy.deepcopy(other)
chosen = kept or other
chosen.train()
second = poptorch.optim.SGD(chosen.parameters(), lr=0.1)
training_model_2 = poptorch.trainingModel(
    ModelWithLoss2(chosen), options=opts, optimizer=second
)
for x in loader:
    loss = training_model_2(x)
for each in (trained, model, chosen, other):
    print(each.weight.sum().item())
